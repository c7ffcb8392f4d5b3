"""One life of a server, from its start to its exit code.

The order of the start is k3s's, as seen from outside on 6443: refused; 503 `starting`; 503 `apiserver not
ready` or `apiserver disabled` (measured). Each step's content is in the module it calls; here are only order,
threads, and what ends the process.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import addresses, agent, certificates, components, duties, https, log, node, supervisor, token
from .authorities import authority
from .balancer import Balancer
from .election import Election
from .etcdclient import EtcdClient
from .kubeapi import KubeAPI
from .layout import PROGRAMS, SUPERVISOR_SOCKET, Layout
from .manifests import Manifests
from .member import EtcdMember, Refused
from .processes import Process, Processes
from .settings import Settings

CLOUD_CONTROLLER_PORT = 10258
# k3s ended in 0.9 to 1.8 s after SIGTERM (measured); etcd gets most of that to hand over its leadership.
ETCD_STOP_SECONDS = 1.2
# 6444 answers 503 for some seconds at every etcd-only boot, also a good one (measured).
LIST_SECONDS = 1.5

Exit = tuple[int, str]


class Server:
    """One server; run() returns its exit code."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.layout = Layout(settings.data_dir)
        self.processes = Processes()
        self.hostname = socket.gethostname()
        self._exit: queue.SimpleQueue[Exit] = queue.SimpleQueue()
        self._stopping = False
        self._running: list[Process] = []
        self._etcd_process: Process | None = None
        self._balancer: Balancer | None = None
        self._api_seen = threading.Event()

    # -- the process itself

    def run(self) -> int:
        """Start everything, wait for a reason to end, end everything."""
        signal.signal(signal.SIGTERM, lambda *_: self._exit.put((0, "")))
        signal.signal(signal.SIGINT, lambda *_: self._exit.put((0, "")))
        self._thread("boot", self._boot)
        code, reason = self._exit.get()
        self._stopping = True
        if reason:
            (log.fatal if code else log.info)(reason)
        self._stop()
        return code

    def _end(self, code: int, reason: str) -> None:
        self._exit.put((code, reason))

    def _thread(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Refused as refusal:
                self._end(1, str(refusal))
            except Exception as error:  # a dead thread must not leave half a server running unseen
                self._end(1, f"{name}: {type(error).__name__}: {error}")

        threading.Thread(target=guarded, name=name, daemon=True).start()

    def _every(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        """Repeat a duty for as long as the server runs; a failed pass is logged and tried again."""

        def loop() -> None:
            while not self._stopping:
                try:
                    work()
                except https.Failure as failure:
                    log.warning(f"{name}: {failure}")
                time.sleep(seconds)

        self._thread(name, loop)

    def _start(self, name: str, command: components.Command) -> Process:
        process = self.processes.start(name, command, ended=self._child_ended, pipe_in=name == "front")
        self._running.append(process)
        return process

    def _child_ended(self, process: Process) -> None:
        if self._stopping:
            return
        if process is self._etcd_process and process.code == 0:
            # etcd ends by itself, and well, only when its member was removed; k3s stays up with a dead etcd
            # (measured) and joins anew at its next start.
            self.member.bury()
            log.error("etcd: the member has been permanently removed from the cluster")
        elif process.name in {"kube-controller-manager", "kube-scheduler"}:
            # They run inside k3s, whose process a lost election ends (measured: about 11 s without quorum).
            self._end(1, f"{process.name}: leaderelection lost")
        else:
            self._end(1, f"{process.name} ended with code {process.code}")

    def _stop(self) -> None:
        """End the children: at once, as k3s's parts end with its process, so no lease or endpoint is released."""
        if self._balancer is not None:
            self._balancer.stop()  # first: it must not move on when this server's own port closes
        for process in self._running:
            if process is not self._etcd_process:
                process.send(signal.SIGKILL)
        if self._etcd_process is not None:
            self._etcd_process.send(signal.SIGTERM)
            if not self._etcd_process.wait(ETCD_STOP_SECONDS):
                self._etcd_process.send(signal.SIGKILL)
                self._etcd_process.wait(1)

    # -- the start

    def _boot(self) -> None:
        settings, layout = self.settings, self.layout
        log.info(f"Starting k3s {version()}")
        layout.create()
        secret = token.obtain(settings.token, layout)
        ca_pem = authority(secret, "server-ca").pem
        pinned = token.pin(settings.token)
        if pinned and pinned != token.pin(token.full(secret, "server", ca_pem)):
            raise Refused("token CA hash does not match the Cluster CA certificate hash")
        certificates.create(settings, secret, layout)
        token.keep(secret, ca_pem, layout)

        self.etcd = EtcdClient(layout)
        self.api = KubeAPI(layout, settings.client_port)
        self.member = EtcdMember(settings, layout, secret)
        self.supervisor = supervisor.Supervisor(settings, layout, secret, self.etcd)
        self._thread("supervisor", supervisor.serve(self.supervisor, SUPERVISOR_SOCKET))
        self._front = self._start("front", components.front(settings, layout))
        if settings.agent:
            self._running.append(agent.start_containerd(layout, self.processes, ended=self._child_ended))
            self._thread("images", lambda: agent.import_images(layout, self.processes))
        self._thread("cloud controller", self._serve_cloud_controller)
        if settings.needs_balancer:
            # Until the list is known it asks this server itself: 503 for some seconds at every boot (measured).
            self._balancer = Balancer(settings.balancer_port, [f"127.0.0.1:{settings.https_port}"])
            self._balancer.start()

        self.member.prepare()
        self._etcd_process = self._start("etcd", components.etcd(layout))
        self._wait_for_etcd()
        self._say("apiserver not ready" if settings.apiserver else "apiserver disabled")
        self._wait_for_voter()
        self._every("learners", 2, self._promote)

        if settings.apiserver:
            self._start("kube-apiserver", components.apiserver(settings, layout))
            self._wait_for_local_api()
        else:
            self._choose_api()
            self._wait_for_api()
        self._api_seen.set()
        log.info("Kube API server is now running")
        if settings.controller_manager:
            self._start("kube-controller-manager", components.controller_manager(settings, layout))
        if settings.scheduler:
            self._start("kube-scheduler", components.scheduler(settings, layout))
        if settings.agent:
            self._thread("agent", self._run_agent)
        self._take_up_duties()
        log.info("k3s is up and running")
        notify_systemd()

    def _say(self, state: str) -> None:
        """Tell the front what it is to answer."""
        assert self._front.stdin is not None
        try:
            self._front.stdin.write(f"{state}\n".encode())
            self._front.stdin.flush()
        except BrokenPipeError:
            pass  # its end is reported by itself

    def _wait_for_etcd(self) -> None:
        """Wait until etcd runs, with a quorum or without: its metrics port opens first."""
        while True:
            try:
                socket.create_connection(("127.0.0.1", 2381), 1).close()
                return
            except OSError:
                time.sleep(0.1)

    def _wait_for_voter(self) -> None:
        """Wait until this member is a voter of a cluster with a quorum, for ever if need be, as k3s does."""
        logged_at = 0.0
        while (wanting := self.member.check(self.etcd)) is not None:
            if time.monotonic() - logged_at >= 5:
                log.info(f"Failed to test etcd connection: {wanting}")
                logged_at = time.monotonic()
            time.sleep(0.2)

    def _wait_for_local_api(self) -> None:
        direct = KubeAPI(self.layout, self.settings.api_port)
        while not direct.ready():
            time.sleep(0.2)
        self._say("ready")

    # -- an API server elsewhere

    def _choose_api(self) -> None:
        """Point the balancer at the first of the listed API servers, whoever that is."""
        assert self._balancer is not None
        listed: list[str] = []
        while not listed:
            time.sleep(LIST_SECONDS)
            try:
                listed = self.supervisor.addresses()
            except https.Failure as failure:
                log.info(f"Failed to get the list of API servers: {failure}")
        self._default = listed[0]
        log.info(f"Running load balancer k3s-agent-load-balancer 127.0.0.1:{self._balancer.port} -> {listed}")
        addresses.save(self.layout, self._default, listed)
        self._balancer.set_servers(listed)

    def _wait_for_api(self) -> None:
        """Wait for an API behind the balancer; without one for long enough k3s ends with code 0 (measured)."""
        ends = time.monotonic() + self.settings.api_timeout
        while not self.api.ready():
            if time.monotonic() > ends:
                self._end(0, "failed to wait for API server to become ready: context deadline exceeded")
                threading.Event().wait()
            time.sleep(random.uniform(0.5, 1))
        self._every("endpoints", 5, self._follow_endpoints)

    def _follow_endpoints(self) -> None:
        assert self._balancer is not None
        listed = duties.endpoints(self.api)
        if listed and set(addresses.updated(self._default, listed)) != set(self._balancer.servers):
            self._balancer.set_servers(addresses.updated(self._default, listed))
            addresses.save(self.layout, self._default, listed)

    # -- duties

    def _take_up_duties(self) -> None:
        self._every("voters", 15, self._mark_voters)
        self._hold("k3s-cloud-controller-manager", 15, 10, fatal=self.settings.apiserver)
        if not self.settings.apiserver:
            return
        # Only a server with an API server of its own stands for k3s-etcd (k3s source, pkg/etcd/etcd.go).
        etcd_lease = self._hold("k3s-etcd", 45, 30, fatal=True)
        self._written: list[str] = []

        def write_addresses() -> None:
            if etcd_lease.held:
                self._written = duties.write_addresses(self.api, self.etcd, self._written)
            else:
                self._written = []

        self._every("address list", 1, write_addresses)
        self._every(
            "members", 2, lambda: duties.care_for_members(self.api, self.etcd) if etcd_lease.held else None
        )
        self._every("manifests", 5, Manifests(self.layout, self.processes).apply)

    def _hold(self, lease: str, duration: int, renew_deadline: float, *, fatal: bool) -> Election:
        election = Election(self.api, lease, self.hostname, duration=duration, renew_deadline=renew_deadline)

        def attempt() -> None:
            if not election.attempt() and fatal:
                self._end(1, f"leaderelection lost for {lease}")

        self._every(f"lease {lease}", 3, attempt)
        return election

    def _leads_etcd(self) -> bool:
        status = self.etcd.status()
        return status.leader == status.member_id

    def _promote(self) -> None:
        if self._leads_etcd():
            duties.promote(self.etcd)

    def _mark_voters(self) -> None:
        if self._leads_etcd():
            duties.mark_voters(self.api, self.etcd)

    def _serve_cloud_controller(self) -> None:
        """The cloud controller manager's port, which listens at every level (measured)."""

        class Healthy(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Nothing of interest."""

            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/healthz" else 403)
                self.end_headers()
                self.wfile.write(b"ok" if self.path == "/healthz" else b"")

        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        serving = self.layout.tls / "serving-kube-apiserver"
        tls.load_cert_chain(serving.with_suffix(".crt"), serving.with_suffix(".key"))
        server = ThreadingHTTPServer(("127.0.0.1", CLOUD_CONTROLLER_PORT), Healthy)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.serve_forever()

    # -- the agent

    def _run_agent(self) -> None:
        settings = self.settings
        password = node.password()
        while True:
            try:
                if node.admit(self.api, settings.node_name, password):
                    break
                node.refuse(self.api, settings.node_name)
                time.sleep(5)
            except https.Failure as failure:
                log.info(f"Waiting to retrieve agent configuration; server is not ready: {failure}")
                time.sleep(1)
        self._running.append(
            agent.start_kubelet(settings, self.layout, self.processes, ended=self._child_ended)
        )
        self._thread("pod network", lambda: agent.configure_network(self.api, settings, self.layout))
        wanted = node.metadata(settings, self.member.name(), self.hostname)
        while True:
            try:
                self.api.patch(f"/api/v1/nodes/{settings.node_name}", wanted)
                return
            except https.Failure as failure:
                if failure.status != 404:  # not registered yet
                    log.info(f"Unable to set the labels and annotations of this node: {failure}")
                time.sleep(0.3)


def notify_systemd() -> None:
    """READY=1 to the service manager, where one started us (k3s source, pkg/cli/server/server.go)."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messenger:
            messenger.sendto(b"READY=1", where.replace("@", "\0", 1) if where.startswith("@") else where)


def version() -> str:
    """The version of the Kubernetes inside, as the Node says it."""
    return (PROGRAMS / "version").read_text().strip()
