# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What forbids regrading on one server, whatever runs it: each rule says what was found and what to do.

Pure. What concerns Docker alone is `placement_docker`'s, what concerns the whole cluster `placement_cluster`'s.
"""

from __future__ import annotations

import posixpath
import re
from typing import Callable, Dict, Iterator, Tuple

from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.docker_probe import (
    plain_address,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters.odd_json import (
    mapping,
    mappings,
    text,
    texts,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import settings as core_settings
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import SettingsWrong
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import ETCD_ONLY
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.marks import (
    LEVEL,
    OURS,
    REMOVED_MEMBER,
)

from . import placement
from .placement import Cluster, Server

STALL = re.compile(r"^some .*\btotal=\d+\b", re.M)
ETCD_ROLE_LABEL = "node-role.kubernetes.io/etcd"
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
K3S_PROVIDER = "k3s://"
IN_CLUSTER = "headscale_in_cluster"
KUBE_VIP_LEASE = "plndr-cp-lock"
OUR_UNIT = "regrade.service"
UNITS = "/etc/systemd/system"
CGROUPS = "/sys/fs/cgroup"

# How the one that is meant is named, by what runs it.
CURES = {
    "container": "Name the container of the server in github_runner_cluster_container_name",
    "unit": "Name the unit of the server in github_runner_cluster_regrade_unit",
}

Rule = Callable[[Server, Cluster], Iterator[str]]

# What of the role sets each of the core's settings that others are bound to.
VARIABLES: Dict[str, Tuple[str, ...]] = {
    "SAMPLE_SECONDS": ("sample_seconds",),
    "PRESSURE_WINDOW_SECONDS": ("window_samples", "sample_seconds"),
    "PRESSURE_THRESHOLD": ("pressure_threshold",),
    "PRESSURE_CEILING": ("pressure_ceiling",),
    "MEMAVAILABLE_FLOOR": ("memavailable_floor",),
    "HEADROOM_ETCD_ONLY": ("headroom_etcd_only",),
    "HEADROOM_CONTROL_PLANE": ("headroom_control_plane",),
    "SUSTAIN_DOWN_SECONDS": ("sustain_down_windows",),
    "SUSTAIN_UP_SECONDS": ("sustain_up_windows",),
    "COOLDOWN_DOWN_SECONDS": ("cooldown_down_windows",),
    "COOLDOWN_UP_SECONDS": ("cooldown_up_windows",),
    "DRAIN_TIMEOUT_SECONDS": ("drain_timeout_seconds",),
    "ETCD_ONLY_HTTPS_PORT": ("etcd_only_https_port",),
    "KUBE_SERVER": ("kube_server",),
    "METRICS_FILE": ("metrics_file",),
}


def looked_at(server: Server, _cluster: Cluster) -> Iterator[str]:
    """It is a k3s server that runs; only then is there more to be seen of it."""
    kind, role = text(server.found.get("kind")), server.found.get("role")
    cure = CURES.get(kind, "See what runs there")
    if text(server.found.get("error")):
        yield (
            f"its k3s {kind} could not be looked at: {server.found.get('error')}. {cure}, or take the host out of the "
            "run."
        )
    elif role != "server":
        yield f"its {kind} does not run `k3s server`. {cure}."
    elif not server.found.get("running"):
        yield f"its k3s {kind} does not run. Start it and run the role again."


def agent(server: Server, _cluster: Cluster) -> Iterator[str]:
    yield (
        f"its {server.found.get('kind')} runs `k3s agent`, and an agent holds no etcd vote to keep. "
        "Leave github_runner_cluster_regrade off on this host."
    )


def unfit(server: Server, _cluster: Cluster) -> Iterator[str]:
    """What the runtime's own look found, in its own words."""
    if text(server.found.get("unfit")):
        yield text(server.found.get("unfit"))


def pressure(server: Server, _cluster: Cluster) -> Iterator[str]:
    said, error = text(server.found.get("pressure")), text(server.found.get("pressure_error"))
    if error or not STALL.search(said):
        # Absent, empty, EOPNOTSUPP: which state it is does not tell the two causes apart.
        why = " ".join(error.split()) or (
            "no line `some ... total=`" if said.strip() else "the file is empty"
        )
        yield (
            f"its memory pressure cannot be read ({why}). The kernel is built without CONFIG_PSI (take one that has "
            "it), or PSI is switched off (add psi=1 to the kernel command line, on Raspberry Pi OS in "
            f"/boot/firmware/cmdline.txt, and reboot {placement.ONE_BY_ONE}). Where the file is another one, name it "
            "in github_runner_cluster_regrade_pressure_file."
        )


def settings(server: Server, cluster: Cluster) -> Iterator[str]:
    error = server.settings_error or _unmoved(server, cluster)
    total = server.found.get("memory_total")
    if server.settings and isinstance(total, int) and total > 0:
        try:
            core_settings.check_memory(server.settings, total)
        except SettingsWrong as wrong:
            error = str(wrong)
    if error:
        words = re.findall(r"[A-Z_]+", error)
        names = dict.fromkeys(
            f"github_runner_cluster_regrade_{name}" for word in words for name in VARIABLES.get(word, ())
        )
        told = f" Put it right in {', '.join(names)}." if names else ""
        yield f"its settings cannot be used: {error}.{told}"


def _unmoved(server: Server, cluster: Cluster) -> str:
    """The core knows k3s's usual port, and not what this server was given in its place."""
    port = placement.flags_of(cluster.nodes.get(server.node_name, {})).get("https-listen-port", "")
    if not server.settings or port != str(server.settings.etcd_only_https_port):
        return ""
    return (
        f"ETCD_ONLY_HTTPS_PORT={port} is the port of this server's own API, which is to be moved at etcd-only; choose "
        "another, or 0 to leave k3s's own"
    )


def named(server: Server, cluster: Cluster) -> Iterator[str]:
    """The Node is there, and is this server's."""
    if not cluster.nodes:
        return
    at = placement.node_at(server.addresses, cluster.nodes)
    node = cluster.nodes.get(server.node_name)
    found = ""
    if node is None:
        found = f"the cluster has no Node {server.node_name} (it has {', '.join(sorted(cluster.nodes))})"
    elif server.addresses and not set(placement.addresses_of(node)) & set(server.addresses):
        found = (
            f"the Node {server.node_name} is at {', '.join(placement.addresses_of(node)) or 'no address'}, which this "
            f"server does not hold (it holds {', '.join(server.addresses)}): it is another server's"
        )
    if found and at:
        yield f"{found}. The Node at this server's address is {at}: set github_runner_cluster_node_name: {at} here."
    elif found:
        yield (
            f"{found}, and its Node cannot be told from its addresses either. Name this server's Node in "
            "github_runner_cluster_node_name."
        )


def etcd_role(server: Server, cluster: Cluster) -> Iterator[str]:
    node = cluster.nodes.get(server.node_name)
    if node is not None and placement.labels_of(node).get(ETCD_ROLE_LABEL) != "true":
        yield (
            f"its Node {server.node_name} has no etcd role, so it holds no vote to keep. "
            "Leave github_runner_cluster_regrade off on this host."
        )


def removed_member(server: Server, cluster: Cluster) -> Iterator[str]:
    yield from (f"its {words}" for words in removed_words(server.node_name, cluster))


def removed_words(name: str, cluster: Cluster) -> Iterator[str]:
    """Of a Node whose etcd member was taken away by an annotation."""
    for key in REMOVED_MEMBER:
        if key in placement.annotations_of(cluster.nodes.get(name, {})):
            yield (
                f"Node {name} carries the annotation {key}: its etcd member was removed on purpose, and no step is "
                f"taken while that Node is there. Delete it (`kubectl delete node {name}`), and let the server join "
                "anew or leave it out of the group."
            )


def unmarked_label(server: Server, cluster: Cluster) -> Iterator[str]:
    yield from (f"its {words}" for words in unmarked_words(server.node_name, cluster))


def unmarked_words(name: str, cluster: Cluster) -> Iterator[str]:
    """Of a Node whose level was set by something else."""
    node = cluster.nodes.get(name, {})
    level = placement.labels_of(node).get(LEVEL)
    if level is not None and OURS not in placement.annotations_of(node):
        yield (
            f"Node {name} carries the label {LEVEL}={level} without this collection's mark: another implementation "
            "of regrading stepped it. Bring it to full with that one and turn that one off, or take the label off "
            f"(`kubectl label node {name} {LEVEL}-`)."
        )


def cloud_provider(server: Server, cluster: Cluster) -> Iterator[str]:
    signs = cloud_signs(server, cluster)
    if signs and not server.allow_cloud_provider:
        yield (
            f"a cloud provider manages its Node {server.node_name} ({signs}). Such a provider deletes a Node that is "
            "not Ready, which a stepped-down server's is, and k3s then removes its etcd member. See that it leaves "
            "this Node alone and set github_runner_cluster_regrade_allow_cloud_provider: true, or leave "
            "github_runner_cluster_regrade off on this host."
        )


def cloud_signs(server: Server, cluster: Cluster) -> str:
    spec = mapping(cluster.nodes.get(server.node_name), "spec")
    provider = text(spec.get("providerID"))
    taints = [taint.get("key") for taint in mappings(spec.get("taints"))]
    signs = [f"spec.providerID is {provider}"] if provider and not provider.startswith(K3S_PROVIDER) else []
    return " and ".join(signs + ([f"taint {UNINITIALIZED}"] if UNINITIALIZED in taints else []))


def headscale(server: Server, cluster: Cluster) -> Iterator[str]:
    if server.mesh != IN_CLUSTER or not cluster.nodes:
        return
    founders = [name for name, node in cluster.nodes.items() if placement.founded(node)]
    if server.node_name in founders:
        why = "its k3s was started with cluster-init"
    elif not founders and server.host == next(iter(cluster.group), ""):
        why = (
            f"no server was started with cluster-init, and it is the first of the group {cluster.group_name}"
        )
    else:
        return
    yield (
        f"it is the bootstrap server of a mesh whose Headscale runs in this cluster ({why}): at etcd-only its kubelet "
        "ends, and Headscale and the mesh with it. Leave github_runner_cluster_regrade off on this host, or move "
        "Headscale out of the cluster."
    )


def memory_limit(server: Server, _cluster: Cluster) -> Iterator[str]:
    limits = [
        (int(limit["bytes"]), text(limit.get("cgroup")))
        for limit in mappings(server.found.get("memory_limits"))
    ]
    own = server.found.get("memory_limit")  # where the kernel's own files do not show it
    if not limits and isinstance(own, int) and own > 0:
        limits = [(own, "")]
    cgroup = text(server.found.get("cgroup"))
    if not limits or (server.settings and _names_cgroup(server.settings.pressure_file, cgroup)):
        return
    size, where = limits[0]
    there = f" (cgroup {where})" if where else ""
    if server.found.get("kind") == "unit" or where.endswith(".slice"):
        unit = posixpath.basename(where) or text(server.found.get("unit"))
        cure = f"`systemctl set-property {unit} MemoryMax=infinity MemoryHigh=infinity`, which restarts nothing"
    else:
        cure = (
            "`mem_limit` or `deploy.resources.limits.memory` in Compose, which makes k3s's container anew, on "
            f"{placement.ONE_BY_ONE}"
        )
    # Under version 1 no container has a pressure of its own.
    file = f"{CGROUPS}{where or cgroup}/memory.pressure"
    other = (
        f", or name the pressure of that cgroup ({file}) in github_runner_cluster_regrade_pressure_file"
        if cgroup not in ("", "/")
        else ""
    )
    yield (
        f"its k3s runs under a memory limit of {size >> 20} MiB{there}: what it lacks below that limit does not show "
        f"as the host's. Take the limit off ({cure}){other}."
    )


def _names_cgroup(file: str, cgroup: str) -> bool:
    """Whether it is the pressure of k3s's cgroup or of one above it; the root's is the host's."""
    folder = posixpath.dirname(posixpath.normpath(file))
    if not cgroup or not folder.startswith(CGROUPS + "/"):
        return False
    return f"{cgroup}/".startswith(folder[len(CGROUPS) :] + "/")


def other_unit(server: Server, _cluster: Cluster) -> Iterator[str]:
    for name in texts(server.found.get("units")):
        if name == OUR_UNIT and server.found.get("kind") != "unit":
            yield own_other_runtime(
                "systemd", f"`systemctl disable --now {name}`, then {UNITS}/{name} and /opt/regrade"
            )
        elif name != OUR_UNIT:
            yield (
                f"another implementation of regrading is there: the unit {name}, where this role runs its own as a "
                f"{server.found.get('kind')}. Turn that one off and remove its file (`systemctl disable --now {name}`)."
            )


def own_other_runtime(runtime: str, by_hand: str) -> str:
    return (
        f"this role's own service of the runtime {runtime} is still there. Turn it off first: play `disable` with "
        f"github_runner_cluster_regrade_runtime: {runtime}. Where that is refused because no k3s runs that way any "
        f"more, remove it by hand: {by_hand}."
    )


def other_service(server: Server, _cluster: Cluster) -> Iterator[str]:
    """Of the containers on the host, whatever its k3s runs in."""
    unit = server.found.get("kind") == "unit"
    ours = ""
    for entry in mappings((server.found if unit else server.docker).get("others")):
        name, project = text(entry.get("name")), text(entry.get("project"))
        if project != server.project:
            whose = f"the Compose project {project}" if project else "no Compose project"
            yield (
                f"another implementation of regrading is there: container {name}, service `regrade` of {whose} (this "
                f"role's is {server.project}). Turn that one off and remove its container (`docker rm --force {name}`)."
            )
        elif unit:
            ours = ours or name
    folder = text(server.found.get("compose_folder")) if unit else ""
    if ours or folder:
        words = [f"`docker rm --force {ours}`" if ours else "", f"the folder {folder}" if folder else ""]
        yield own_other_runtime("docker", ", then ".join(filter(None, words)))


# --- KUBE_SERVER: the other servers' APIs ---

HERE = "github_runner_cluster_regrade_kube_server"
REACH: Dict[str, str] = {
    "name": "does not resolve ({words}). Name an address in {here}.",
    "network": "cannot be reached from the service's network ({words}). Let this host reach it (route, firewall, "
    "mesh), or name an address of that server that it reaches in {here}.",
    "certificate": "leads to a server whose certificate is not for it ({words}). Add it to that server's tls-san and "
    "restart it, or name an address that is in the certificate in {here}.",
    "authority": "shows a certificate that is not of this cluster's authority ({words}). Name an API of this cluster "
    "in {here}.",
    "validity": "shows a certificate that is not valid now ({words}). Set the clocks right, or restart that k3s, "
    "which renews it.",
    "answer": "is no API that serves ({words}). Bring that server to full, or name another one in {here}.",
}


def kube_server(server: Server, cluster: Cluster) -> Iterator[str]:
    if not cluster.nodes or next(named(server, cluster), ""):
        return  # who is another server is not known
    if "authority" in cluster.unread:
        return  # and said
    for entry in mappings(server.found.get("kube_server")):
        wrong = _own_address(server, cluster, texts(entry.get("addresses")))
        problem = text(entry.get("problem"))
        if not wrong and problem in REACH and not _stepped_down(entry, problem, cluster):
            wrong = REACH[problem].format(words=text(entry.get("words")).rstrip("."), here=HERE)
        if wrong:
            yield f"KUBE_SERVER {entry.get('url')} {wrong}"


def _own_address(server: Server, cluster: Cluster, found: Tuple[str, ...]) -> str:
    nodes_own = placement.addresses_of(cluster.nodes.get(server.node_name, {}))
    for address in map(plain_address, found):
        if address in nodes_own or address.startswith("127.") or address == "::1":
            return f"is this server itself, whose API is gone at etcd-only. Name other servers' addresses in {HERE}."
        if address in server.addresses:
            return (
                f"is a virtual address ({address}) that this server holds now: it moves from server to server, and "
                f"leads whoever holds it to itself. Name the other servers' own addresses in {HERE}."
            )
    return ""


def _stepped_down(entry: Dict[str, object], problem: str, cluster: Cluster) -> bool:
    """Whether no answer is right: a server at etcd-only has moved its port."""
    at = placement.node_at(tuple(map(plain_address, texts(entry.get("addresses")))), cluster.nodes)
    return (
        problem in ("network", "answer")
        and placement.labels_of(cluster.nodes.get(at, {})).get(LEVEL) == ETCD_ONLY
    )


RULES: Tuple[Rule, ...] = (
    unfit, pressure, settings, memory_limit, named, etcd_role, removed_member, unmarked_label, cloud_provider,
    headscale, kube_server, other_unit, other_service,
)  # fmt: skip


# --- What is told and refuses nothing ---


def kube_vip(server: Server, cluster: Cluster) -> Iterator[str]:
    if server.node_name and cluster.leases.get(KUBE_VIP_LEASE) == server.node_name:
        yield (
            f"it holds kube-vip's virtual address (Lease kube-system/{KUBE_VIP_LEASE}). At etcd-only kube-vip ends "
            "with the kubelet and the address moves; see that nothing of this server is reached by it alone."
        )


def cloud_allowed(server: Server, cluster: Cluster) -> Iterator[str]:
    signs = cloud_signs(server, cluster)
    if signs and server.allow_cloud_provider:
        yield (
            f"a cloud provider manages its Node {server.node_name} ({signs}), which is allowed: should it delete the "
            "Node of a stepped-down server, k3s removes its etcd member."
        )


WARNINGS: Tuple[Rule, ...] = (kube_vip, cloud_allowed)
