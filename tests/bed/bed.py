#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""The test bed: three hosts, each with a Docker engine of its own on which the fleet's Compose project runs k3s;
or, in its second shape (REGRADE_BED_SHAPE=systemd), three machines on which k3s is a unit of systemd.

    python3 tests/bed/bed.py prepare       build or pull every image
    python3 tests/bed/bed.py up            prepare, then three servers whose Nodes are Ready; verifies a bed that runs
    python3 tests/bed/bed.py status        what is there
    python3 tests/bed/bed.py load IMAGE    put one more image of this machine's engine on the three hosts
    python3 tests/bed/bed.py down          remove its containers, network and volumes

It knows nothing of what is tested on it. Standard library and the docker command only. From a test:
``from bed import Bed`` (this folder is on pytest's path), then ``Bed().servers``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import io
import json
import os
import ssl
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, TypeVar, Union

import cache
import engine
import images
import layout
from layout import CONFIG, CONTAINER, DATA, LABEL, MADE_FROM, PROJECT_FOLDER, SYSTEMD, UNIT, Place, Settings
from parts import Failed, Part, say, span

Result = subprocess.CompletedProcess[str]
T = TypeVar("T")

HEALTH = "http://127.0.0.1:2381/health"
READY_SECONDS = 180
STOP_SECONDS = 90
"""A host that is stopped gives its engine this long to stop k3s."""


class BedError(Failed):
    """A command on the bed failed; one line. ``result`` is what it answered, None when it did not in time."""

    def __init__(self, message: str, result: Optional[Result] = None) -> None:
        super().__init__(message)
        self.result = result


def run(
    command: Sequence[str], *, check: bool = True, input: Optional[str] = None, timeout: float = 60
) -> Result:
    """Run a command and capture its text. Raises BedError when it fails (with ``check``) or takes too long."""
    shown = " ".join(command)
    shown = shown if len(shown) < 160 else shown[:157] + "..."
    try:
        result = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            **({"stdin": subprocess.DEVNULL} if input is None else {"input": input}),
        )
    except subprocess.TimeoutExpired as error:
        raise BedError(f"`{shown}` did not end in {span(timeout)}") from error
    if check and result.returncode:
        said = (result.stderr or result.stdout).strip().splitlines()
        raise BedError(
            f"`{shown}` gave exit code {result.returncode}: {said[-1] if said else 'it said nothing'}", result
        )
    return result


class Server:
    """One server of a bed, reached by ``docker exec`` into its host."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.name = place.name
        self.address = place.address
        self.host_container = place.host_container

    def __repr__(self) -> str:
        return f"Server({self.name}, {self.address})"

    def sh(
        self, script: str, *, check: bool = True, input: Optional[str] = None, timeout: float = 60
    ) -> Result:
        """Run a shell script on the host."""
        return self._exec(["sh", "-euc", script], check, input, timeout)

    def docker(
        self, *args: str, check: bool = True, input: Optional[str] = None, timeout: float = 60
    ) -> Result:
        """The docker command on the host's own engine."""
        return self._exec(["docker", *args], check, input, timeout)

    def compose(self, *args: str, check: bool = True, timeout: float = 120) -> Result:
        """``docker compose`` in the fleet's own project on the host."""
        return self.docker(
            "compose", "--project-directory", PROJECT_FOLDER, *args, check=check, timeout=timeout
        )

    def kubectl(
        self, *args: str, check: bool = True, input: Optional[str] = None, timeout: float = 60
    ) -> Result:
        """kubectl in this server's k3s container, with the rights of k3s's own administrator."""
        keep_open = [] if input is None else ["-i"]
        return self.docker(
            "exec", *keep_open, CONTAINER, "kubectl", *args, check=check, input=input, timeout=timeout
        )

    # -- k3s, whatever runs it

    def k3s_status(self) -> str:
        """``running`` where it runs, else a word for what it is; ``absent`` where there is none."""
        found = self.docker("inspect", "--type=container", "--format={{.State.Status}}", CONTAINER, check=False)
        return found.stdout.strip() if found.returncode == 0 else "absent"

    def k3s_started(self) -> str:
        """Of its last start; another text means that it was started anew."""
        return self.docker("inspect", "--format={{.Id}} {{.State.StartedAt}}", CONTAINER).stdout.strip()

    def k3s_log(self) -> str:
        """The end of its log."""
        logs = self.docker("logs", "--tail=400", CONTAINER, check=False)
        return logs.stdout + logs.stderr

    def k3s_file(self, path: str, check: bool = True) -> Result:
        """A file as k3s sees it, on stdout."""
        return self.docker("exec", CONTAINER, "cat", path, check=check)

    def etcd_says(self) -> str:
        """What etcd answers on its /health, "" where it does not say that it is well."""
        # No -T: wget of Debian's busybox 1.35 ends with a segmentation fault on it. etcd itself answers in time.
        found = self.docker("exec", CONTAINER, "wget", "-q", "-O", "-", HEALTH, check=False)
        return found.stdout if found.returncode == 0 else ""

    def stop_k3s(self) -> None:
        """As a person does."""
        self.docker("stop", CONTAINER, timeout=120)

    def start_k3s(self) -> None:
        self.docker("start", CONTAINER)

    def _exec(self, command: list[str], check: bool, input: Optional[str], timeout: float) -> Result:
        keep_open = [] if input is None else ["-i"]
        whole = ["docker", "exec", *keep_open, self.host_container, *command]
        return run(whole, check=check, input=input, timeout=timeout)

    def api_answers(self, timeout: float = 3) -> bool:
        """Whether this server's own API serves: 401 (or 200) to a caller without credentials."""
        # The bed's certificate authority is its own; who answers is told by the address alone.
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=unverified)
        )
        try:
            with opener.open(f"https://{self.address}:6443/readyz", timeout=timeout) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False

    def stop_host(self) -> None:
        """Shut the host down in order."""
        run(["docker", "stop", f"--time={STOP_SECONDS}", self.host_container], timeout=STOP_SECONDS + 30)

    def start_host(self) -> None:
        """Start the host and wait until it is up; k3s starts by itself where it ran."""
        run(["docker", "start", self.host_container])
        self.await_up()

    def await_up(self, timeout: float = 60) -> None:
        """Wait until what runs k3s on this host answers."""
        until = time.monotonic() + timeout
        while not self._is_up():
            if time.monotonic() > until:
                logs = run(["docker", "logs", "--tail=5", self.host_container], check=False)
                said = (logs.stdout + logs.stderr).strip().splitlines()
                raise BedError(f"{self.name} does not come up: {said[-1] if said else 'no log'}")
            time.sleep(0.3)

    def _is_up(self) -> bool:
        return self.docker("version", check=False, timeout=20).returncode == 0


class Machine(Server):
    """One server of the second shape: a host whose systemd runs k3s, with no Docker on it."""

    def docker(
        self, *args: str, check: bool = True, input: Optional[str] = None, timeout: float = 60
    ) -> Result:
        raise BedError(f"{self.name} has no Docker: it is of the bed's shape {SYSTEMD}")

    def systemctl(self, *args: str, check: bool = True, timeout: float = 120) -> Result:
        return self._exec(["systemctl", *args], check, None, timeout)

    def kubectl(
        self, *args: str, check: bool = True, input: Optional[str] = None, timeout: float = 60
    ) -> Result:
        return self._exec(["k3s", "kubectl", *args], check, input, timeout)

    def k3s_status(self) -> str:
        shown = self.systemctl("show", "--property=LoadState,ActiveState,SubState", UNIT).stdout
        state = dict(line.partition("=")[::2] for line in shown.splitlines())
        if state["LoadState"] != "loaded":
            return "absent"
        # Until k3s says that it is up its unit is on its way.
        return "running" if state["SubState"] in ("running", "start") else state["ActiveState"]

    def k3s_started(self) -> str:
        shown = self.systemctl("show", "--property=InvocationID,ExecMainStartTimestampMonotonic", UNIT).stdout
        state = dict(line.partition("=")[::2] for line in shown.splitlines())
        return f"{state['InvocationID']} {state['ExecMainStartTimestampMonotonic']}"

    def k3s_log(self) -> str:
        return self.sh(f"journalctl --unit={UNIT} --lines=400 --no-pager", check=False).stdout

    def k3s_file(self, path: str, check: bool = True) -> Result:
        return self._exec(["cat", path], check, None, 60)

    def etcd_says(self) -> str:
        found = self.sh(f"busybox wget -q -O - {HEALTH}", check=False)
        return found.stdout if found.returncode == 0 else ""

    def stop_k3s(self) -> None:
        self.systemctl("stop", UNIT)

    def start_k3s(self) -> None:
        self.systemctl("start", "--no-block", UNIT)

    def _is_up(self) -> bool:
        state = self.systemctl("is-system-running", check=False, timeout=20).stdout.strip()
        # Late in its boot it waits for k3s, which may wait for its peers.
        return state in ("running", "degraded", "starting")


class Bed:
    """The three servers as one thing."""

    def __init__(self, settings: Optional[Settings] = None) -> None:
        self.settings = settings or Settings.read(os.environ)
        self.places = layout.places(self.settings)
        kind = Machine if self.settings.shape == SYSTEMD else Server
        self.servers: tuple[Server, ...] = tuple(kind(place) for place in self.places)

    # -- using it

    def kubectl(
        self, *args: str, check: bool = True, input: Optional[str] = None, timeout: float = 60
    ) -> Result:
        """kubectl through the first server whose API answers. Raises BedError when none does."""
        for server in self.servers:
            if server.api_answers():
                return server.kubectl(*args, check=check, input=input, timeout=timeout)
        raise BedError("no server's API answers on port 6443: see `python3 tests/bed/bed.py status`")

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait until every server's own API serves and its Node is Ready. Raises BedError that names who is not."""
        until = time.monotonic() + timeout
        while True:
            missing = self._not_ready()
            if not missing:
                return
            if time.monotonic() > until:
                for server in self.servers:
                    say(f"[bed] {server.name}: {self._last_words(server)}")
                raise BedError(f"not ready after {span(timeout)}: {'; '.join(missing)}")
            time.sleep(1)

    @staticmethod
    def _last_words(server: Server) -> str:
        """How k3s is there, and what it said that sounds like the reason."""
        lines = server.k3s_log().strip().splitlines() or ["it said nothing"]
        grave = [line for line in lines if "level=fatal" in line or "level=error" in line]
        return f"k3s is {server.k3s_status()}; {(grave or lines)[-1]}"

    def _not_ready(self) -> list[str]:
        # Ready alone is no sign of life: it stays for 40 s after a server is gone.
        silent = [server.name for server in self.servers if not server.api_answers()]
        if len(silent) == len(self.servers):
            return ["no API answers"]
        nodes = self.kubectl("get", "nodes", "-o", "json", "--request-timeout=5s", check=False, timeout=20)
        ready = layout.ready(json.loads(nodes.stdout)) if nodes.returncode == 0 else set()
        late = [server.name for server in self.servers if server.name not in ready]
        return [f"{name}: its API does not answer" for name in silent] + [
            f"{name}: its Node is not Ready" for name in late if name not in silent
        ]

    # -- making it

    def prepare(self) -> dict[str, str]:
        """Every image, built or pulled, as what it is for and its tag. Long parts run side by side."""
        engine.packages("ca-certificates", "openssh-client")
        with concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
            if self.settings.shape == SYSTEMD:
                engine.ensure_engine()
                k3s = pool.submit(images.stand_in)
                made = {"host": images.machine(k3s.result(), images.service_base(images.debian()))}
            else:
                # The two Go builds are the long parts: the plugin needs no engine and begins at once.
                plugin = pool.submit(engine.compose_plugin)
                engine.ensure_engine()
                k3s = pool.submit(images.k3s, self.settings.k3s_image)
                base = pool.submit(images.debian)
                service = pool.submit(images.service, base.result())
                host = pool.submit(images.host, base.result(), plugin.result())
                made = {"k3s": k3s.result(), "host": host.result(), "service": service.result()}
        engine.ensure_compose()
        return made

    def up(self) -> None:
        """Three servers whose Nodes are Ready; on a bed that runs, verify, and start what is stopped."""
        made = self.prepare()
        with cache.lock(f"bed-{self.settings.name}"):
            key = cache.key(
                *sorted(f"{tag} {images.present(tag)}" for tag in made.values()), Path(layout.__file__)
            )
            found = {place.host_container: self._label(place.host_container) for place in self.places}
            whole = all(label == key for label in found.values())
            if any(label is not None for label in found.values()) and not whole:
                say("[bed] what is there is not whole, or was made from other images: taking it down first")
                self._down()
            serve = self._serving(made)
            with Part("three servers" if self.settings.shape != SYSTEMD else "three machines") as part:
                if not whole:
                    self._make(made["host"], key)
                part.now("hosts, what runs k3s on them, and k3s")
                _each(self.servers, serve)
                self._let_ansible_in()
                part.now("waiting for three Ready Nodes")
                self.wait_ready()

    def _let_ansible_in(self) -> None:
        """By ssh, as to any host. The key is this machine's; what ssh has to know lies beside it."""
        folder = cache.folder("ssh")
        key, public = folder / "key", folder / "key.pub"
        with cache.lock("ssh-key"):
            if not public.is_file():
                key.unlink(missing_ok=True)
                run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "bed", "-f", str(key)])
            (folder / f"{self.settings.name}.conf").write_text(
                layout.ssh_config(self.places, key), encoding="utf-8"
            )
        for server in self.servers:
            server.sh("umask 77 && mkdir -p /root/.ssh && cat >/root/.ssh/authorized_keys", input=public.read_text())

    def _serving(self, made: Mapping[str, str]) -> Callable[[Server], None]:
        """What brings one host to a running k3s, from wherever it is."""
        if self.settings.shape == SYSTEMD:
            return self._serve_machine
        archives = {what: images.archive(made[what]) for what in ("k3s", "service")}
        pods = None if images.is_stand_in(made["k3s"]) else images.pods()
        return lambda server: self._serve(server, made, archives, pods)

    def _label(self, container: str) -> Optional[str]:
        template = f'{{{{index .Config.Labels "{MADE_FROM}"}}}}'
        found = run(["docker", "inspect", "--type=container", "--format", template, container], check=False)
        return found.stdout.strip() if found.returncode == 0 else None

    def _make(self, image: str, key: str) -> None:
        name = self.settings.name
        mark = f"--label={LABEL}={name}"
        # Whatever a crash left: a volume with an old cluster in it would make a server refuse to join.
        self._down()
        run(["docker", "network", "create", mark, f"--subnet={self.settings.subnet}", name])
        for place in self.places:
            command = ["docker", "create", "--privileged", mark, f"--label={MADE_FROM}={key}"]
            command += [f"--name={place.host_container}", f"--hostname={place.name}"]
            command += [f"--network={name}", f"--ip={place.address}", f"--stop-timeout={STOP_SECONDS}"]
            command += ["--tmpfs=/run", "--tmpfs=/tmp:exec"]
            if self.settings.shape == SYSTEMD:
                # systemd keeps its groups of processes at the root of what it sees.
                command += ["--tmpfs=/run/lock", "--cgroupns=private"]
            else:
                run(["docker", "volume", "create", mark, place.volume])
                command += ["--init", f"--volume={place.volume}:/var/lib/docker"]
            run([*command, image])

    def _serve(
        self, server: Server, made: Mapping[str, str], archives: Mapping[str, Path], pods: Optional[bytes]
    ) -> None:
        server.start_host()
        self._load_missing(server, made["k3s"], archives["k3s"])
        if server.docker("inspect", "--type=container", CONTAINER, check=False).returncode:
            files = layout.files(self.places, server.place, made["k3s"], pods)
            server.sh(f"mkdir -p {PROJECT_FOLDER}")
            self._write(server, ["tar", "-xC", PROJECT_FOLDER], files.project)
            # The container is made before it runs, so that what lies on its data volume is there at its first start.
            server.compose("create")
            if files.data:
                self._write(server, ["docker", "cp", "-", f"{CONTAINER}:{DATA}"], files.data)
        server.compose("up", "--detach", "--no-recreate")
        # While k3s boots.
        self._load_missing(server, made["service"], archives["service"])

    def _serve_machine(self, server: Server) -> None:
        server.start_host()
        if server.sh(f"test -e {CONFIG}/config.yaml", check=False).returncode:
            server.sh(f"mkdir -p {CONFIG}")
            self._write(server, ["tar", "-xC", CONFIG], layout.machine_files(self.places, server.place))
            server.sh(f"systemctl enable {UNIT}")
        server.start_k3s()

    def _load_missing(self, server: Server, image: str, archive: Path) -> None:
        if server.docker("image", "inspect", image, check=False).returncode:
            self._load(server, archive)

    @staticmethod
    def _write(server: Server, command: list[str], files: Mapping[str, bytes]) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name in sorted({str(parent) for path in files for parent in list(Path(path).parents)[:-1]}):
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(folder)
            for name, data in files.items():
                file = tarfile.TarInfo(name)
                file.size, file.mode = len(data), 0o600 if name.endswith("config.yaml") else 0o644
                tar.addfile(file, io.BytesIO(data))
        _feed(["docker", "exec", "-i", server.host_container, *command], packed.getvalue())

    @staticmethod
    def _load(server: Server, archive: Path) -> None:
        with archive.open("rb") as file:
            _feed(["docker", "exec", "-i", server.host_container, "docker", "load", "-q"], file, timeout=300)

    def load(self, image: str) -> None:
        """Put one image of the outer engine on the three hosts."""
        if not images.present(image):
            raise BedError(f"there is no image {image} here: build or pull it first")
        archive = cache.folder("load") / f"{cache.key(image)}.tar"
        try:
            run(["docker", "save", "-o", str(archive), image], timeout=300)
            _each(self.servers, lambda server: self._load(server, archive))
        finally:
            with contextlib.suppress(FileNotFoundError):
                archive.unlink()

    # -- ending it

    def down(self) -> None:
        """Remove containers, network and volumes, also of a bed that is only half there."""
        with cache.lock(f"bed-{self.settings.name}"):
            self._down()
            left = self.left()
        if left:
            raise BedError(f"still there after removing: {', '.join(left)}; remove them with docker by hand")

    def _down(self) -> None:
        containers = self._ours("ps", "--all", form="{{.Names}}")
        if containers:
            run(["docker", "rm", "--force", "--volumes", *containers], timeout=180)
        for volume in self._ours("volume", "ls", form="{{.Name}}"):
            run(["docker", "volume", "rm", volume])
        for network in self._ours("network", "ls", form="{{.Name}}"):
            run(["docker", "network", "rm", network])

    def left(self) -> list[str]:
        """What of this bed the outer engine still has: ``container NAME``, ``volume NAME``, ``network NAME``."""
        return (
            [f"container {name}" for name in self._ours("ps", "--all", form="{{.Names}}")]
            + [f"volume {name}" for name in self._ours("volume", "ls", form="{{.Name}}")]
            + [f"network {name}" for name in self._ours("network", "ls", form="{{.Name}}")]
        )

    def _ours(self, *listing: str, form: str) -> list[str]:
        mark = f"--filter=label={LABEL}={self.settings.name}"
        return run(["docker", *listing, mark, f"--format={form}"]).stdout.split()

    def status(self) -> list[str]:
        """One line a server, for people."""
        lines = []
        for server in self.servers:
            host = run(
                [
                    "docker",
                    "inspect",
                    "--type=container",
                    "--format={{.State.Status}}",
                    server.host_container,
                ],
                check=False,
            )
            if host.returncode:
                lines.append(f"{server.name}: no host {server.host_container}")
                continue
            line = f"{server.name} {server.address}: host {host.stdout.strip()}"
            if host.stdout.strip() == "running":
                line += f", k3s {server.k3s_status()}"
                line += f", API {'answers' if server.api_answers() else 'does not answer'}"
            lines.append(line)
        return lines


def _each(servers: Sequence[Server], action: Callable[[Server], T]) -> list[T]:
    """The same on every server, side by side; the first failure is raised once all have ended."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(servers)) as pool:
        return [future.result() for future in [pool.submit(action, server) for server in servers]]


def _feed(command: list[str], data: Union[bytes, io.BufferedReader], timeout: float = 60) -> None:
    """A command that reads bytes, from memory or straight from a file."""
    source: dict[str, Any] = {"input": data} if isinstance(data, bytes) else {"stdin": data}
    try:
        result = subprocess.run(command, capture_output=True, timeout=timeout, **source)
    except subprocess.TimeoutExpired as error:
        raise BedError(f"`{' '.join(command)}` did not end in {span(timeout)}") from error
    if result.returncode:
        said = (result.stderr or result.stdout).decode(errors="replace").strip().splitlines()
        raise BedError(
            f"`{' '.join(command)}` gave exit code {result.returncode}: {said[-1] if said else 'nothing said'}"
        )


def main(arguments: Sequence[str]) -> int:
    """The command. 0 is success, 1 a failure said in one line, 2 a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="bed.py", description="The test bed: three servers on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="build or pull every image")
    commands.add_parser("up", help="three servers whose Nodes are Ready")
    commands.add_parser("status", help="what is there")
    load = commands.add_parser("load", help="put an image on the three hosts")
    load.add_argument("image")
    commands.add_parser("down", help="remove its containers, network and volumes")
    chosen = parser.parse_args(arguments)
    try:
        bed = Bed()
        if chosen.command == "prepare":
            for what, tag in bed.prepare().items():
                say(f"{what}: {tag}")
        elif chosen.command == "up":
            bed.up()
            say(f"{bed.settings.name}: three servers, all Ready")
        elif chosen.command == "status":
            for line in bed.status():
                say(line)
        elif chosen.command == "load":
            bed.load(chosen.image)
            say(f"{chosen.image}: on the three hosts")
        else:
            why_not = engine.answers()
            if why_not is not None:
                say(f"no Docker engine answers ({why_not}): nothing of a bed can be there")
                return 0
            bed.down()
            say(f"{bed.settings.name}: nothing is left")
    except (Failed, layout.BadSetting) as error:
        print(f"bed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bed: interrupted; `bed.py down` removes what is there", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
