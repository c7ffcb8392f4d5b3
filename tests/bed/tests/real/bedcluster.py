"""Three servers of the stand-in on a Docker network of their own, and what tests ask of them.

Everything made here carries the prefix `bedtest-<pid>-` and is removed by Cluster.remove(), whatever happened.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

PREFIX = f"bedtest-{os.getpid()}-"
TOKEN = "bed-test-token"
DROP_IN = "/etc/rancher/k3s/config.yaml.d/50-level.yaml"
THREE_FLAGS = "disable-apiserver: true\ndisable-controller-manager: true\ndisable-scheduler: true\n"
ETCD_ONLY = THREE_FLAGS + "disable-agent: true\n"
AVOIDING = ETCD_ONLY + "https-listen-port: 16443\n"
BALANCER_FILE = "/var/lib/rancher/k3s/agent/etc/k3s-agent-load-balancer.json"
# Server 3 gets the outcome of chance that sets the trap, and a short time until it gives up.
TRAPPED = {"BED_APISERVERS_ORDER": "own-first", "BED_API_TIMEOUT_SECONDS": "12"}
# Server 2 the opposite, so that no test of another thing hangs on chance.
UNTRAPPED = {"BED_APISERVERS_ORDER": "own-last"}
# A TLS client inside the container; the stock image has none on its PATH, and neither has this one.
_PROBE = """
import base64, http.client, ssl, sys
port, path, user, password, scheme = sys.argv[1:6]
kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
options = {"context": ssl._create_unverified_context()} if scheme == "https" else {}
connection = kind("127.0.0.1", int(port), timeout=15, **options)
headers = {}
if user:
    headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
try:
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    print(response.status, response.read().decode())
except OSError as error:
    print(0, type(error).__name__)
"""


ROOM = 3


def docker(*arguments: str, check: bool = True, content: str | None = None) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, input=content)
    if check and done.returncode != 0:
        raise AssertionError(f"docker {' '.join(arguments)[:200]}: {done.stderr.strip()}")
    return done.stdout


def until(seconds: float, what: str, check: Callable[[], Any], every: float = 0.25) -> Any:
    """The first true answer of `check`; an assertion that names what was waited for when there is none.

    `seconds` are those of a machine that does nothing else; it is waited for longer, as another bed may work beside.
    """
    ends = time.monotonic() + ROOM * seconds
    last: object = None
    while time.monotonic() < ends:
        try:
            last = check()
            if last:
                return last
        except (AssertionError, ValueError, KeyError) as error:
            last = error
        time.sleep(every)
    raise AssertionError(f"not within {seconds} s: {what} (last: {last!r})")


def slowness() -> float:
    """How many times as long things may take: the machine's load for each of its processors, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Server:
    """One server's container; `number` 1 founds the cluster, the others join it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self.number = number
        self.node = f"server{number}"
        self.container = f"{PREFIX}{number}"
        self.address = f"{cluster.subnet}.1{number}"

    def create(self, address: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        """Run the container; its volumes are kept over recreation."""
        first = f"https://{self._cluster.subnet}.11:6443"
        where = ["--cluster-init"] if self.number == 1 else ["--server", first]
        volumes = [f"{self.container}-{name}" for name in ("data", "config")]
        variables = [part for key, value in (environment or {}).items() for part in ("-e", f"{key}={value}")]
        docker(
            *["run", "-d", "--privileged", "--name", self.container, "--hostname", self.node],
            *["--network", self._cluster.network, "--ip", address or self.address],
            *["-v", f"{volumes[0]}:/var/lib/rancher/k3s", "-v", f"{volumes[1]}:/etc/rancher", *variables],
            *[self._cluster.image, "server", "--token", TOKEN, "--node-name", self.node, *where],
        )

    def destroy(self) -> None:
        docker("rm", "-fv", self.container, check=False)

    def exec(self, *command: str, check: bool = True, content: str | None = None) -> str:
        interactive = ["-i"] if content is not None else []
        return docker("exec", *interactive, self.container, *command, check=check, content=content)

    def kubectl(self, *arguments: str, content: str | None = None, check: bool = True) -> str:
        return self.exec("kubectl", *arguments, content=content, check=check)

    def object(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(docker("inspect", self.container))[0]["State"]
        return found

    def logs(self, since: str = "0") -> str:
        done = subprocess.run(
            ["docker", "logs", "--since", since, self.container],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def write(self, path: str, text: str) -> None:
        self.exec("sh", "-c", f"mkdir -p {path.rpartition('/')[0]} && cat > {path}", content=text)

    def level(self, drop_in: str | None) -> None:
        """Put a drop-in, or take it away, and restart."""
        if drop_in is None:
            self.exec("rm", "-f", DROP_IN)
        else:
            self.write(DROP_IN, drop_in)
        docker("restart", self.container)

    def probe(self, path: str, port: int = 6443, timeout: float = 3) -> tuple[int, str]:
        """Ask from outside without credentials: status and body; status 0 when nothing answers."""
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(self.address, port, timeout=timeout, context=context)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except ConnectionRefusedError:
            return 0, "refused"
        except OSError as error:
            return 0, type(error).__name__
        finally:
            connection.close()

    def inside(
        self, port: int, path: str, *, user: str = "", password: str = TOKEN, scheme: str = "https"
    ) -> tuple[int, str]:
        """Ask on the container's loopback: status and body; status 0 when nothing answers."""
        program = ["/usr/bin/python3", "-c", _PROBE, str(port), path, user, password, scheme]
        status, _, body = self.exec(*program).partition(" ")
        return int(status), body.strip()

    def serves(self, level: str, port: int = 6443) -> bool:
        status, body = self.probe("/readyz", port)
        return status == 401 if level == "full" else status == 503 and "apiserver disabled" in body

    def etcd_healthy(self) -> bool:
        return '"health":"true"' in self.exec("wget", "-qO-", "http://127.0.0.1:2381/health", check=False)

    def members(self) -> list[dict[str, Any]]:
        status, body = self.inside(6443, "/db/info")
        assert status == 200, body
        listed: list[dict[str, Any]] = json.loads(body)["members"]
        return listed


class Cluster:
    """The three servers, their network and their volumes."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.network = f"{PREFIX}net"
        self.subnet = self._create_network()
        self.servers = [Server(self, number) for number in (1, 2, 3)]

    def _create_network(self) -> str:
        """A subnet nobody uses, so that addresses can be pinned; its first three numbers."""
        for _ in range(20):
            subnet = f"172.{random.randint(20, 31)}.{random.randint(0, 255)}"
            if docker("network", "create", "--subnet", f"{subnet}.0/24", self.network, check=False):
                return subnet
        raise AssertionError("no free subnet found for a Docker network")

    def ready(self, server: Server, count: int = 3) -> bool:
        nodes = server.object("nodes")["items"]
        conditions = [c for node in nodes for c in node["status"]["conditions"] if c["type"] == "Ready"]
        return sum(condition["status"] == "True" for condition in conditions) == count

    def settle(self) -> None:
        """Bring every server back to full and wait until all is well."""
        for server in self.servers:
            if server.state()["Running"] and not server.exec("ls", DROP_IN, check=False):
                continue
            docker("start", server.container)
            server.level(None)
        for server in self.servers:
            until(90, f"{server.node} at full", lambda s=server: s.serves("full"))
        until(90, "three Nodes Ready", lambda: self.ready(self.servers[0]))
        until(60, "three endpoints", lambda: len(self.endpoints()) == 3)

    def endpoints(self) -> list[str]:
        found = self.servers[0].object("endpoints", "kubernetes")["subsets"]
        return sorted(address["ip"] for subset in found for address in subset["addresses"])

    def last_words(self) -> str:
        """What each server's launcher said last, to explain a failure."""
        words = []
        for server in self.servers:
            lines = [line for line in server.logs().splitlines() if line.startswith("time=")]
            lines = [line for line in lines if "level=fatal" in line] or lines[-6:]
            words += [
                f"{server.node}: {server.state()['Status']}, exit code {server.state()['ExitCode']}",
                *lines,
            ]
        return "\n".join(words)

    def remove(self) -> None:
        for server in self.servers:
            server.destroy()
        volumes = docker("volume", "ls", "-q", "--filter", f"name={PREFIX}", check=False).split()
        if volumes:
            docker("volume", "rm", *volumes, check=False)
        docker("network", "rm", self.network, check=False)
