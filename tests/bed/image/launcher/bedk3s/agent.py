"""The agent's part: containerd, images from files, the pod network, the kubelet.

Node metadata and the node password are in node.py; when each part starts is server.py's business.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

from . import cgroups, components, https, log
from .kubeapi import KubeAPI
from .layout import CNI_PROGRAMS, CONTAINERD_SOCKET, KUBELET_DIR, PROGRAMS, RUN, RUNC_WRAPPER, Layout, write
from .processes import ENVIRONMENT, Process, Processes
from .settings import Settings

BUNDLED_IMAGES = Path("/bed/images")
SHIM = Path("/usr/bin/containerd-shim-runc-v2")
SANDBOX_IMAGE = "local/pause:1"
CAP_SYS_RESOURCE = 24
INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")


def lacks_sys_resource(status: str) -> bool:
    """Whether /proc/self/status says that no process here may have CAP_SYS_RESOURCE."""
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            return not int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1
    return False


def containerd_config(layout: Layout, wrapped: bool) -> str:
    """containerd's configuration; its root lies on the data volume, as overlay cannot lie on overlay."""
    runtime = f'\n            BinaryName = "{RUNC_WRAPPER}"' if wrapped else ""
    return f"""version = 2
root = "{layout.containerd}"
state = "{RUN}/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.containerd}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  # A negative oom_score_adj cannot be set without CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PROGRAMS}"
    conf_dir = "{layout.agent_etc}/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
          [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
            SystemdCgroup = false{runtime}
"""


def unpack_shim(layout: Layout) -> None:
    """containerd's shim where k3s has it, below its data; the others act as well from where Debian has them."""
    target = layout.programs / SHIM.name
    if not target.exists():
        write(target, SHIM.read_bytes(), 0o755)


def start_containerd(layout: Layout, processes: Processes, **options: Any) -> Process:
    """containerd finds its shim by PATH."""
    wrapped = lacks_sys_resource(Path("/proc/self/status").read_text())
    config = layout.agent_etc / "containerd" / "config.toml"
    write(config, containerd_config(layout, wrapped))
    allow_inotify()
    unpack_shim(layout)
    path = {"PATH": f"{layout.programs}:{ENVIRONMENT['PATH']}"}
    return processes.start(
        "containerd", ["containerd", "-c", config, "-l", "warn"], environment=path, **options
    )


def import_images(layout: Layout, processes: Processes) -> None:
    """Import every tar of agent/images, as k3s does, and those the image carries itself."""
    ctr: components.Command = ["ctr", "-a", CONTAINERD_SOCKET, "-n", "k8s.io"]
    for _ in range(150):
        if CONTAINERD_SOCKET.exists() and processes.run("ctr version", [*ctr, "version"]) == 0:
            break
        time.sleep(0.2)
    for archive in [*sorted(BUNDLED_IMAGES.glob("*.tar")), *sorted(layout.images.glob("*.tar"))]:
        if processes.run("ctr import", [*ctr, "images", "import", archive], timeout=120) == 0:
            log.info(f"Imported images from {archive}")
        else:
            log.error(f"Failed to import images from {archive}")


def cni_config(pod_cidr: str) -> str:
    """A bridge with the node's own pod addresses; there are no routes between nodes."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": pod_cidr}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "cbr0", "plugins": [bridge, portmap]}, indent=2)


def configure_network(api: KubeAPI, settings: Settings, layout: Layout) -> None:
    """Write the network's configuration once the Node has its pod addresses."""
    while True:
        try:
            node = api.find(f"/api/v1/nodes/{settings.node_name}")
            pod_cidr = (node or {}).get("spec", {}).get("podCIDR")
            if pod_cidr:
                write(layout.agent_etc / "cni" / "net.d" / "10-bridge.conflist", cni_config(pod_cidr))
                return
        except https.Failure as failure:
            log.info(f"Waiting for the pod addresses of this node: {failure}")
        time.sleep(0.3)


def kubelet_config(settings: Settings, layout: Layout, cgroup_root: str) -> dict[str, Any]:
    taints = []
    for taint in settings.node_taints:
        key_value, _, effect = taint.rpartition(":")
        key, _, value = key_value.partition("=")
        taints.append({"key": key, "value": value, "effect": effect})
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.tls / "client-ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "evictionHard": {"imagefs.available": "5%", "nodefs.available": "5%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "oomScoreAdj": 0,
        "protectKernelDefaults": False,
        "providerID": f"k3s://{settings.node_name}",
        "registerWithTaints": taints,
        "resolvConf": "/etc/resolv.conf",
        "serializeImagePulls": False,
        "tlsCertFile": str(layout.tls / "serving-kubelet.crt"),
        "tlsPrivateKeyFile": str(layout.tls / "serving-kubelet.key"),
    }


def allow_inotify(path: Path = INOTIFY_INSTANCES, wanted: int = 8192) -> None:
    """Raise the machine's limit of inotify instances per user: 128 are used up by a few servers.

    A kubelet that gets none ends at once ("inotify_init: too many open files").
    """
    try:
        if int(path.read_text()) < wanted:
            path.write_text(str(wanted))
            log.info(f"Set {path} to {wanted}")
    except (OSError, ValueError) as error:
        log.warning(f"{path} stays as it is: {error}")


def start_kubelet(settings: Settings, layout: Layout, processes: Processes, **options: Any) -> Process:
    """Start the kubelet; the node's password must have been admitted before."""
    config = layout.agent_etc / "kubelet.yaml"
    root = cgroups.prepare(settings.node_name)
    write(config, yaml.safe_dump(kubelet_config(settings, layout, root), sort_keys=False))
    command: components.Command = [
        PROGRAMS / "kubelet",
        f"--config={config}",
        f"--kubeconfig={layout.cred / 'kubelet.kubeconfig'}",
        f"--hostname-override={settings.node_name}",
        f"--node-ip={settings.node_ip}",
        f"--root-dir={KUBELET_DIR}",
        f"--cert-dir={layout.agent / 'kubelet' / 'pki'}",
        *(f"--{argument.lstrip('-')}" for argument in settings.extra.get("kubelet-arg", ())),
    ]
    return processes.start("kubelet", command, **options)
