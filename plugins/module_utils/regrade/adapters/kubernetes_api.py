# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The cluster as the core sees it, through the API of *other* servers (`ports.Cluster`).

Built on the REST client of the official `kubernetes` package with plain JSON: its models refuse what a
real API sends now and then (a null time, a Lease without a duration), and cost memory where there is
little. No decision belongs here: this file asks, bounds, reads and words errors.

- Every operation has one total time, CALL_TIMEOUT_SECONDS, over all URLs of KUBE_SERVER. The library's
  retries are off: a write is sent once, and an unknown answer is `Unreachable`, to be read back. A read goes
  on to the next server, and the next call begins there: one that is in trouble (no answer, 5xx) is not asked
  first again while another serves.
- Reads carry no resourceVersion, so the API answers them from a quorum of etcd.
- Of the kubeconfig only the CA and the bearer token are used, and it is read at every call: the role may
  write it anew while a step is under way. There is no fall-back to localhost.
- An administrator's (`admin`, from a file or stdin, for one command) is read once. It may hold a client
  certificate instead, as k3s's own does, and the server it names is asked after those of KUBE_SERVER.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from ..core.marks import ETCD_ROLE
from ..core.model import Eviction, Lease, Node, NodeChange, PeerAnswer, Pod, Taint
from ..ports import ClusterError, Conflict, Forbidden, Missing, Unreachable
from .bounded import OutOfTime, within
from .kubernetes_rest import rest
from .odd_json import mapping, mappings, number, parsed, string_pairs, text, texts

if TYPE_CHECKING:
    from ..core.settings import Settings

FIELD_MANAGER = "k3s-regrade"
PEER_TIMEOUT_SECONDS = 3.0  # a peer with its etcd port cut hangs a quorum read past 10 s (measured)
DEFAULT_PORT = 6443
REFUSED = "connection refused"
ELSEWHERE = ("apiserver disabled", "apiserver not ready", "starting")  # k3s's 503 for "ask another server"
COORDINATION = "/apis/coordination.k8s.io/v1"
OTHER_POD = re.compile(r"UID in (?:the )?precondition")  # the API server words it in two ways
TOKEN = re.compile(r"[!-~]+")  # what a header takes
MERGE_PATCH = "application/merge-patch+json"
TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|\+00:00)", re.ASCII)

Json = dict[str, Any]


class Target(NamedTuple):
    """What a request is about, for the words of its errors."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        name = "/".join(part for part in (self.namespace, self.name) if part)
        return " ".join(part for part in (self.verb, self.resource, name) if part)


class Credentials(NamedTuple):
    ca: str  # PEM
    token: str
    certificate: str = ""  # PEM, an administrator's alone
    key: str = ""
    server: str = ""  # URL, an administrator's alone


class _Access(NamedTuple):
    """What a kubeconfig gave, and the connections made with it."""

    written: bytes  # the file, to see that it is another one
    credentials: Credentials
    clients: dict[str, Any]  # by URL
    files: tuple[str, ...] = ()  # of a client certificate and its key


class _Answer(NamedTuple):
    status: int
    body: bytes

    def text(self) -> str:
        """The API's own message, on one line."""
        try:
            message = text(mapping(parsed(self.body)).get("message"))
        except ValueError:
            message = self.body.decode("utf-8", "replace")
        return " ".join(message.split())[:300]


class _NotSent(Exception):
    """The request certainly did not reach an API server; its text says why."""


class _Unknown(Exception):
    """The request may have been carried out; its text says what happened."""


def micro_time(given: str) -> str:
    """The time with exactly six fractional digits: the API refuses a Lease with any other number of them.

    Raises ClusterError for what is no UTC time.
    """
    match = TIME.fullmatch(given)
    if not match:
        raise ClusterError(
            f"{given!r} is no UTC time for a Lease such as 2026-01-01T00:00:00.000000Z: a bug of ours"
        )
    return f"{match.group(1)}.{(match.group(2) or '')[:6]:0<6}Z"


def read_kubeconfig(path: str, admin: bool = False) -> Credentials:
    """CA and bearer token of the current context; an administrator's may hold a client certificate instead, and
    come from stdin (`-`). Raises ClusterError, naming path and mode."""
    return _credentials(path, _kubeconfig_bytes(path, admin), admin)


def _kubeconfig_bytes(path: str, admin: bool = False) -> bytes:
    if admin and path == "-":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        cure = "give --kubeconfig a readable file" if admin else "set KUBECONFIG to a readable file or run the role"
        raise ClusterError(f"{_unreadable(path, error)}; {cure}") from None


def _credentials(path: str, written: bytes, admin: bool = False) -> Credentials:
    import yaml

    cure = "give an administrator's" if admin else "run the role to write it anew"
    try:
        document = yaml.safe_load(written)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        where = getattr(error, "problem_mark", None)  # the text itself may hold the token
        line = f", line {where.line + 1}" if where else ""
        raise ClusterError(
            f"kubeconfig {path} is no YAML ({type(error).__name__}{line}); {cure}"
        ) from None
    if not isinstance(document, dict):
        raise ClusterError(f"kubeconfig {path} is empty or no mapping; {cure}")
    context = _named(document, "contexts", document.get("current-context"), "context")
    cluster = _named(document, "clusters", context.get("cluster"), "cluster")
    user = _named(document, "users", context.get("user"), "user")
    try:
        ca = base64.b64decode(text(cluster.get("certificate-authority-data")), validate=True).decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=ca)
    except (binascii.Error, ssl.SSLError, ValueError):
        raise ClusterError(
            f"kubeconfig {path} has no certificate-authority-data that is a PEM certificate in base64; {cure}"
        ) from None
    token = text(user.get("token")).strip()
    certificate, key = (_pem(user.get(f"client-{part}-data")) for part in ("certificate", "key"))
    if admin and certificate and key and not token:
        return Credentials(ca, "", certificate, key, _server(cluster))
    if admin and not token:
        raise ClusterError(
            f"kubeconfig {path} has neither a token nor client-certificate-data with client-key-data; files and "
            "commands that it names are not used (`kubectl config view --raw --flatten` puts files in)"
        )
    if not token:
        raise ClusterError(
            f"kubeconfig {path} has no bearer token (client certificates expire after a year "
            "and are "
            "not used); run the role to write it anew"
        )
    if not TOKEN.fullmatch(token):
        raise ClusterError(
            f"kubeconfig {path} has a bearer token with characters that none has (it is broken or cut "
            f"off); {cure}"
        )
    return Credentials(ca, token, server=_server(cluster) if admin else "")


def _server(cluster: Json) -> str:
    return text(cluster.get("server")).rstrip("/")


def _pem(data: object) -> str:
    """Of base64, "" where it is none."""
    try:
        return base64.b64decode(text(data), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return ""


def _in_memory(pem: str) -> str:
    """A path that leads to the text for this process alone: the TLS library takes paths only, and an
    administrator's key shall be written to no disk."""
    descriptor = os.memfd_create("regrade")
    os.write(descriptor, pem.encode())
    return f"/proc/self/fd/{descriptor}"


def _named(document: Json, section: str, name: object, inner: str) -> Json:
    """The entry of that name, or the first; {} where there is none."""
    entries = mappings(document.get(section))
    named = [entry for entry in entries if entry.get("name") == name]
    return mapping((named or entries or [{}])[0], inner)


def _unreadable(path: str, error: OSError) -> str:
    """Which part of the path stands in the way, and its mode: a folder one may not search hides the file."""
    culprit = path
    while True:
        parent = os.path.dirname(os.path.abspath(culprit))
        if os.access(parent, os.X_OK) or parent == culprit:
            break
        culprit = parent
    try:
        found = os.stat(culprit)
        mode = f"{culprit} has mode {found.st_mode & 0o7777:04o}, owner {found.st_uid}:{found.st_gid}"
    except OSError:
        mode = f"{culprit} cannot be looked at"
    return (
        f"kubeconfig {path} cannot be read: {error.strerror} ({mode}; this process is uid "
        f"{os.geteuid()})"
    )


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]


class KubernetesCluster:
    """`ports.Cluster` over KUBE_SERVER. Safe to use from two threads (the Lease is renewed from its own)."""

    def __init__(self, settings: Settings, admin: bool = False) -> None:
        """Reads the kubeconfig; `admin`: it is an administrator's. Raises ClusterError."""
        if not settings.kube_server:
            raise ClusterError(
                "KUBE_SERVER is not set; name one or more other servers, such as https://10.0.0.12:6443"
            )
        self._settings = settings
        self._admin = admin
        self._urls: list[str] = list(settings.kube_server)
        self._good = 0  # index into _urls of the one to ask first
        self._last: _Access | None = None
        access = self._access()
        own = access.credentials.server
        if own.startswith("https://") and own not in self._urls:
            self._urls.append(own)
        for url in self._urls:
            _client(access, url)  # imports the library now, not in the time of the first call

    # --- Lease ---

    def read_lease(self) -> Lease:
        name = self._settings.lease_name
        try:
            return _lease(self._call("GET", _lease_path(name), Target("get", "leases", "kube-system", name)))
        except Missing:
            raise Missing(f"Lease kube-system/{name} does not exist: run the role, which makes it") from None

    def write_lease(self, lease: Lease) -> Lease:
        name = self._settings.lease_name
        path = _lease_path(name)
        # A replace takes the metadata with it: what others wrote there (labels, k3s's own annotations
        # for what it applied from a manifest) must be sent back, so it is read again.
        end = time.monotonic() + self._settings.call_timeout_seconds
        found = self._call("GET", path, Target("get", "leases", "kube-system", name), end=end)
        metadata = _metadata(found)
        if not lease.resource_version or metadata.get("resourceVersion") != lease.resource_version:
            raise Conflict(
                f"Lease kube-system/{name} was written by somebody else meanwhile (holder "
                f"{mapping(found, 'spec').get('holderIdentity') or 'nobody'}); nothing was "
                "written"
            )
        metadata.pop("managedFields", None)
        spec: Json = dict(mapping(found, "spec"))
        spec.update(
            holderIdentity=lease.holder or None,
            leaseDurationSeconds=lease.duration_seconds,
            acquireTime=micro_time(lease.acquire_time) if lease.acquire_time else None,
            renewTime=micro_time(lease.renew_time) if lease.renew_time else None,
            leaseTransitions=lease.transitions,
        )
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {key: value for key, value in spec.items() if value is not None},
        }
        target = Target("update", "leases", "kube-system", name)
        return _lease(self._call("PUT", path, target, body, end=end))

    def k3s_etcd_lease(self) -> Lease:
        target = Target("get", "leases", "kube-system", "k3s-etcd")
        return _lease(self._call("GET", _lease_path("k3s-etcd"), target))

    def node_lease_renewals(self) -> dict[str, str]:
        target = Target("list", "leases", "kube-node-lease")
        found = self._call("GET", f"{COORDINATION}/namespaces/kube-node-lease/leases", target)
        return {
            text(_metadata(item).get("name")): text(mapping(item, "spec").get("renewTime"))
            for item in mappings(found.get("items"))
        }

    # --- Nodes ---

    def nodes(self) -> tuple[Node, ...]:
        found = self._call(
            "GET", "/api/v1/nodes", Target("list", "nodes"), query={"labelSelector": f"{ETCD_ROLE}=true"}
        )
        nodes = tuple(_node(item) for item in mappings(found.get("items")))
        self._learn(nodes)
        return nodes

    def all_nodes(self) -> tuple[Node, ...]:
        found = self._call("GET", "/api/v1/nodes", Target("list", "nodes"))
        return tuple(_node(item) for item in mappings(found.get("items")))

    def node(self, name: str) -> Node:
        return _node(self._call("GET", f"/api/v1/nodes/{quote(name)}", Target("get", "nodes", "", name)))

    def change_node(self, name: str, change: NodeChange, resource_version: str) -> Node:
        if not resource_version:
            raise ClusterError(f"Node {name} has no resourceVersion: a write would not be conditional")
        # One merge patch that carries metadata.resourceVersion: the API server answers 409 where that has
        # moved. A list is replaced whole, which is what taints need; null removes a key.
        metadata: Json = {"resourceVersion": resource_version}
        if change.labels:
            metadata["labels"] = dict(change.labels)
        if change.annotations:
            metadata["annotations"] = dict(change.annotations)
        spec: Json = {}
        if change.taints is not None:
            spec["taints"] = [_taint_json(taint) for taint in change.taints] or None
        if change.unschedulable is not None:
            spec["unschedulable"] = True if change.unschedulable else None
        body: Json = {"metadata": metadata}
        if spec:
            body["spec"] = spec
        return _node(
            self._call(
                "PATCH",
                f"/api/v1/nodes/{quote(name)}",
                Target("patch", "nodes", "", name),
                body,
                query={"fieldManager": FIELD_MANAGER},
                content_type=MERGE_PATCH,
            )
        )

    def record_event(self, node: Node, kind: str, reason: str, message: str) -> None:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{node.name}.", "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": FIELD_MANAGER, "host": node.name},
        }
        self._call("POST", "/api/v1/namespaces/default/events", Target("create", "events", "default"), body)

    # --- Pods ---

    def pods(self, node: str) -> tuple[Pod, ...]:
        found = self._call(
            "GET", "/api/v1/pods", Target("list", "pods"), query={"fieldSelector": f"spec.nodeName={node}"}
        )
        return tuple(_pod(item) for item in mappings(found.get("items")))

    def evict(self, pod: Pod) -> Eviction:
        target = Target("create", "pods/eviction", pod.namespace, pod.name)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        path = f"/api/v1/namespaces/{quote(pod.namespace)}/pods/{quote(pod.name)}/eviction"
        answer = self._ask("POST", path, target, body)
        message = answer.text()
        if answer.status == 404 and "not found" in message and "namespaces" not in message:
            return Eviction(True)
        if answer.status == 409:
            # Another pod has the name now, so the one that was meant is gone; other conflicts pass.
            return Eviction(bool(OTHER_POD.search(message)), message)
        if answer.status == 429 or (answer.status == 500 and "PodDisruptionBudget" in message):
            return Eviction(False, "; ".join([message, *_causes(answer.body)]))
        if answer.status >= 500:  # a webhook that fails for this pod must not keep the others here
            return Eviction(False, f"the API answered {answer.status}: {message}")
        self._check(answer, target)
        return Eviction(True)

    # --- Peers ---

    def ask_peer(self, address: str) -> PeerAnswer:
        """See `ports.Cluster`. Each of the two has PEER_TIMEOUT_SECONDS at most."""
        port = urlsplit(self._settings.kube_server[0]).port or DEFAULT_PORT
        host = f"[{address}]" if ":" in address else address
        url = f"https://{host}:{port}"
        name = self._settings.lease_name
        target = Target("get", "/readyz/etcd")
        readyz, connected = self._ask_one_peer(url, "/readyz/etcd", target)
        if not connected:
            moved = self._settings.etcd_only_https_port
            if moved and REFUSED in readyz:  # a server that lives, at etcd-only with its port moved, says so there
                said, connected = self._ask_one_peer(f"https://{host}:{moved}", "/readyz", target)
                readyz = f"{readyz}; {said}" if connected and said else readyz
            return PeerAnswer(readyz, readyz)
        lease, connected = self._ask_one_peer(
            url, _lease_path(name), Target("get", "leases", "kube-system", name)
        )
        return PeerAnswer(readyz, lease)

    def _ask_one_peer(self, url: str, path: str, target: Target) -> tuple[str, bool]:
        """What was wrong ("" for nothing), and whether a connection came about."""
        try:
            access = self._access()
        except ClusterError as error:
            return str(error), False
        try:
            answer = _send(
                access, url, "GET", path, None, "", connect=PEER_TIMEOUT_SECONDS, total=PEER_TIMEOUT_SECONDS
            )
        except _NotSent as error:
            return f"{url}: {error}", False
        except _Unknown as error:
            return f"{url}{path}: {error}", True
        if answer.status == 200:
            return "", True
        try:
            self._check(answer, target)
        except ClusterError as error:
            return f"{url}{path}: {error}", True
        return f"{url}{path}: answered {answer.status}", True

    def api_addresses(self) -> tuple[str, ...]:
        target = Target("get", "endpointslices", "default", "kubernetes")
        found = self._call(
            "GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", target
        )
        return tuple(
            address
            for endpoint in mappings(found.get("endpoints"))
            for address in texts(endpoint.get("addresses"))
        )

    # --- Requests ---

    def _learn(self, nodes: tuple[Node, ...]) -> None:
        """Peers found in the Nodes are asked after those of KUBE_SERVER: its only one may be next to fall."""
        port = urlsplit(self._settings.kube_server[0]).port or DEFAULT_PORT
        for node in nodes:
            if node.name != self._settings.node_name and node.addresses:
                address = node.addresses[0]
                url = f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"
                if url not in self._urls:
                    self._urls.append(url)

    def _call(
        self,
        method: str,
        path: str,
        target: Target,
        body: Json | None = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
        end: float | None = None,
    ) -> Json:
        """The JSON object of a good answer. Raises ClusterError. `end` on CLOCK_MONOTONIC, where this is one of
        an operation's several calls."""
        if query:
            path = f"{path}?{urlencode(query)}"
        answer = self._ask(method, path, target, body, content_type, end)
        self._check(answer, target)
        try:
            found = parsed(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Unreachable(
                f"{target}: answered {answer.status} with no JSON object, so the outcome is unknown"
            )
        return found

    def _ask(
        self,
        method: str,
        path: str,
        target: Target,
        body: Json | None = None,
        content_type: str = "application/json",
        end: float | None = None,
    ) -> _Answer:
        """The first answer of a server that serves, beginning with the last good one. Raises ClusterError."""
        access = self._access()
        total = self._settings.call_timeout_seconds
        end = time.monotonic() + total if end is None else end
        urls = list(self._urls)
        first = self._good
        said: list[str] = []
        for turn in range(len(urls)):
            index = (first + turn) % len(urls)
            left = end - time.monotonic()
            if left <= 0:
                break
            # Of the time left each server gets its share to connect, so that one that hangs in the TLS
            # handshake (a paused host) does not take it all; once connected it may use what is left.
            share = left / (len(urls) - turn)
            try:
                answer = _send(
                    access, urls[index], method, path, body, content_type, connect=share, total=left
                )
            except _NotSent as error:
                said.append(f"{urls[index]}: {error}")
                continue
            except _Unknown as error:
                self._good = (index + 1) % len(urls)
                said.append(f"{urls[index]}: {error}")
                if method == "GET":
                    continue
                raise Unreachable(f"{target}: the outcome is unknown, {'; '.join(said)}") from None
            if answer.status == 503 and any(word in answer.text() for word in ELSEWHERE):
                said.append(f"{urls[index]}: 503 {answer.text()}")
                continue
            in_trouble = answer.status >= 500 or (method == "GET" and answer.status == 429)
            if in_trouble:
                self._good = (index + 1) % len(urls)
                if method == "GET":
                    said.append(f"{urls[index]}: {answer.status} {answer.text()}")
                    continue
                return answer
            self._good = index
            return answer
        raise Unreachable(
            f"{target}: no API server of KUBE_SERVER served it within {total:g} s: "
            f"{'; '.join(said) or 'its time was up'}"
        )

    def _access(self) -> _Access:
        """By the kubeconfig as it is now; an administrator's was read once. Raises ClusterError."""
        if self._admin:
            if self._last is None:
                given = read_kubeconfig(self._settings.kubeconfig, admin=True)
                files = tuple(map(_in_memory, (given.certificate, given.key))) if given.key else ()
                self._last = _Access(b"", given, {}, files)
            return self._last
        written = _kubeconfig_bytes(self._settings.kubeconfig)
        if self._last is None or self._last.written != written:
            self._last = _Access(written, _credentials(self._settings.kubeconfig, written), {})
        return self._last

    def _check(self, answer: _Answer, target: Target) -> None:
        """Raise what a 4xx or 5xx means."""
        if answer.status < 300:
            return
        said = answer.text()
        if answer.status in (401, 403):
            self._forbidden(answer.status, said, target)
        if answer.status == 404:
            raise Missing(f"{target}: not found ({said})")
        if answer.status == 409:
            raise Conflict(f"{target}: somebody else wrote first, nothing was written ({said})")
        if answer.status in (408, 429) or answer.status >= 500:
            raise Unreachable(
                f"{target}: the API answered {answer.status}, so the outcome is unknown ({said})"
            )
        raise ClusterError(
            f"{target}: the API refused our request with {answer.status}, a bug of ours: "
            "please report it "
            f"({said})"
        )

    def _forbidden(self, status: int, said: str, target: Target) -> NoReturn:
        where = f" in namespace {target.namespace}" if target.namespace else ""
        what = f"{target.verb} {target.resource}{where}" + (f" ({target.name})" if target.name else "")
        if self._admin:
            raise Forbidden(
                f"the kubeconfig given may not {what} ({status}): give an administrator's that is valid ({said})"
            )
        if status == 401:
            raise Forbidden(
                f"not accepted as a user (401) for {what}: the token of "
                f"{self._settings.kubeconfig} is not "
                f"valid any more; run the role to write it anew ({said})"
            )
        raise Forbidden(f"no permission to {what} (403): run the role, which sets the rights ({said})")


def _send(
    access: _Access,
    url: str,
    method: str,
    path: str,
    body: Json | None,
    content_type: str,
    *,
    connect: float,
    total: float,
) -> _Answer:
    """One request to one server, sent once. Raises _NotSent, _Unknown."""
    import urllib3.exceptions as wrong

    client = _client(access, url)
    headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
    if access.credentials.token:
        headers["Authorization"] = f"Bearer {access.credentials.token}"
    if body is not None:
        headers["Content-Type"] = content_type

    def request() -> _Answer:
        got = client.request(
            method, url + path, headers=headers, body=body, _request_timeout=(connect, total)
        )
        try:
            return _Answer(got.status, got.read())
        finally:
            got.response.release_conn()

    try:
        return within(total, request)
    except OutOfTime as error:
        raise _Unknown(str(error)) from None
    except (wrong.NewConnectionError, wrong.ConnectTimeoutError, wrong.NameResolutionError) as error:
        raise _NotSent(_plain(error)) from None
    except rest().error as error:  # status 0: TLS, wrapped by the library
        raise _NotSent(_plain_tls(str(error.reason))) from None
    except wrong.SSLError as error:
        raise _NotSent(_plain_tls(str(error))) from None
    except (wrong.ReadTimeoutError, TimeoutError):
        raise _Unknown(f"no answer within {round(total, 1):g} s") from None
    except (wrong.HTTPError, OSError, ValueError) as error:
        raise _Unknown(_plain(error)) from None


def _client(access: _Access, url: str) -> Any:
    client = access.clients.get(url)
    if client is None:
        library = rest()
        configuration = library.configuration(host=url)
        configuration.proxy = None  # peers are asked directly, whatever the environment says
        configuration.retries = False
        configuration.ca_cert_data = access.credentials.ca
        if access.files:
            configuration.cert_file, configuration.key_file = access.files
        configuration.connection_pool_maxsize = 2  # the step and the thread that renews the Lease
        client = access.clients[url] = library.client(configuration)
    return client


def _plain(error: BaseException) -> str:
    """A connection error in a few words."""
    text = str(error)
    for part, words in (
        ("refused", REFUSED),
        ("No route to host", "no route to host"),
        ("unreachable", "network is unreachable"),
        ("resolve", "its name does not resolve"),
        ("timed out", "no connection in time"),
        ("reset", "connection reset"),
        ("IncompleteRead", "its answer broke off"),
        ("closed connection without", "connection closed without an answer"),
    ):
        if part in text:
            return words
    return _one_line(text)


def _plain_tls(text: str) -> str:
    """A TLS error in plain words."""
    for part, words in (
        ("certificate has expired", "its certificate has expired (k3s renews its own at a restart)"),
        ("not yet valid", "its certificate is not valid yet: look at this host's clock"),
        ("IP address mismatch", "its certificate is not for this address: add it to the server's tls-san"),
        ("doesn't match", "its certificate is not for this name: add it to the server's tls-san"),
        ("Hostname mismatch", "its certificate is not for this name: add it to the server's tls-san"),
        ("self-signed certificate", "its certificate is not signed by the kubeconfig's CA"),
        ("self signed certificate", "its certificate is not signed by the kubeconfig's CA"),
        ("unable to get local issuer", "its certificate is not signed by the kubeconfig's CA"),
        ("signature failure", "its certificate is not signed by the kubeconfig's CA"),
        ("handshake operation timed out", "no TLS handshake in time"),
        ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
        ("record layer failure", "it does not speak TLS"),
    ):
        if part in text:
            return words
    return f"TLS: {_one_line(text)}"


def _lease_path(name: str) -> str:
    return f"{COORDINATION}/namespaces/kube-system/leases/{quote(name)}"


def _metadata(item: Json) -> Json:
    return mapping(item, "metadata")


def _lease(item: Json) -> Lease:
    spec = mapping(item, "spec")
    return Lease(
        holder=text(spec.get("holderIdentity")),
        duration_seconds=number(spec.get("leaseDurationSeconds")),
        acquire_time=text(spec.get("acquireTime")),
        renew_time=text(spec.get("renewTime")),
        transitions=number(spec.get("leaseTransitions")) or 0,
        resource_version=text(_metadata(item).get("resourceVersion")),
    )


def _node(item: Json) -> Node:
    metadata, spec, status = _metadata(item), mapping(item, "spec"), mapping(item, "status")
    conditions = {text(entry.get("type")): entry for entry in mappings(status.get("conditions"))}
    ready = conditions.get("Ready", {})
    return Node(
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        resource_version=text(metadata.get("resourceVersion")),
        created=text(metadata.get("creationTimestamp")),
        addresses=tuple(
            text(entry.get("address"))
            for entry in mappings(status.get("addresses"))
            if entry.get("type") == "InternalIP" and text(entry.get("address"))
        ),
        labels=string_pairs(metadata.get("labels")),
        annotations=string_pairs(metadata.get("annotations")),
        taints=tuple(
            Taint(
                text(entry.get("key")),
                text(entry.get("value")),
                text(entry.get("effect")),
                text(entry.get("timeAdded")) or None,
            )
            for entry in mappings(spec.get("taints"))
        ),
        unschedulable=bool(spec.get("unschedulable")),
        cordoned_by=_managers_of_cordon(metadata),
        ready=_truth(ready),
        ready_heartbeat=text(ready.get("lastHeartbeatTime")),
        etcd_is_voter=_truth(conditions.get("EtcdIsVoter", {})),
        provider_id=text(spec.get("providerID")),
        ready_since=text(ready.get("lastTransitionTime")),
    )


def _truth(condition: Json) -> bool | None:
    return {"True": True, "False": False}.get(text(condition.get("status")))


def _managers_of_cordon(metadata: Json) -> tuple[str, ...]:
    return tuple(
        text(entry.get("manager"))
        for entry in mappings(metadata.get("managedFields"))
        if "f:unschedulable" in mapping(entry, "fieldsV1", "f:spec")
    )


def _taint_json(taint: Taint) -> Json:
    found = {"key": taint.key, "value": taint.value, "effect": taint.effect, "timeAdded": taint.time_added}
    return {key: value for key, value in found.items() if value}


def _pod(item: Json) -> Pod:
    metadata = _metadata(item)
    owners = mappings(metadata.get("ownerReferences"))
    controllers = [owner for owner in owners if owner.get("controller")]
    return Pod(
        namespace=text(metadata.get("namespace")),
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        owner_kind=text((controllers or owners or [{}])[0].get("kind")),
        mirror="kubernetes.io/config.mirror" in mapping(metadata, "annotations"),
        finished=mapping(item, "status").get("phase") in ("Succeeded", "Failed"),
        terminating=bool(metadata.get("deletionTimestamp")),
    )


def _causes(body: bytes) -> list[str]:
    """Messages of a Status's causes: they name the PodDisruptionBudget."""
    try:
        causes = mappings(mapping(parsed(body), "details").get("causes"))
    except ValueError:
        return []
    return [text(cause.get("message")) for cause in causes if text(cause.get("message"))]
