# SPDX-License-Identifier: GPL-3.0-or-later
"""What the bed needs of the machine: Debian packages, a Docker engine that answers, the Compose v2 plugin.

An engine that answers is used as it is and never touched. Nothing is installed or started unless this runs as root,
and then it is said. Standard library only: it runs before there is any virtual environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import cache
from parts import Failed, Part, say

HERE = Path(__file__).resolve().parent
COMPOSE_VERSION = "v2.40.3"

# The engine outlives the checkout and the cache that it was started from, so what it runs with lies outside both.
ENGINE_FOLDER = Path("/usr/local/libexec/exadev-k3s-regrade")
ENGINE_LOG = Path("/var/log/exadev-k3s-regrade-dockerd.log")
WRAPPER = HERE / "host" / "runc_without_sys_resource.py"
CAP_SYS_RESOURCE = 24

# Pid files of an engine and of the containerd it starts, with the name of the program that each speaks of.
PID_FILES = (
    (Path("/var/run/docker.pid"), "dockerd"),
    (Path("/var/run/docker/containerd/containerd.pid"), "containerd"),
)


def packages(*names: str) -> None:
    """Install the Debian packages among ``names`` that are missing; only root can, and it is said."""
    missing = [name for name in names if not _installed(name)]
    if not missing:
        return
    listed = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise Failed(
            f"the Debian packages {listed} are needed and there is no apt-get: install their like by hand"
        )
    if os.geteuid() != 0:
        raise Failed(
            f"the Debian packages {listed} are missing: run `apt-get install {listed}` as root, or this as root"
        )
    with cache.lock("apt"):
        # Whoever held the lock may have installed them.
        missing = [name for name in names if not _installed(name)]
        if not missing:
            return
        with Part("Debian packages") as part:
            say(f"[Debian packages] running as root: installing {' '.join(missing)}")
            env = {"DEBIAN_FRONTEND": "noninteractive"}
            apt = ["apt-get", "-q", "-o=DPkg::Lock::Timeout=300"]
            part.run([*apt, "update"], env=env, timeout=600)
            part.run([*apt, "install", "-y", "--no-install-recommends", *missing], env=env, timeout=1200)


def unpacked(name: str) -> Path:
    """A Debian package in the cache, not installed: its programs without the service that it would start."""
    kept = cache.folder("debian") / name
    with cache.lock("apt"):
        if kept.is_dir():
            return kept
        if shutil.which("apt-get") is None:
            raise Failed(
                f"programs of the Debian package {name} are needed and there is no apt-get: install them by hand"
            )
        with Part("Debian packages") as part, tempfile.TemporaryDirectory(dir=kept.parent) as made:
            say(f"[Debian packages] unpacking {name} into {kept}; nothing is installed")
            if os.geteuid() == 0:
                part.run(["apt-get", "-q", "update"], timeout=600)
            # Where nothing but root may enter, apt says so and downloads as root.
            part.run(["apt-get", "-q", "download", name], cwd=Path(made), timeout=600)
            (found,) = Path(made).glob("*.deb")
            part.run(["dpkg-deb", "--extract", str(found), f"{made}/{name}"], timeout=120)
            Path(made, name).rename(kept)
    return kept


def _installed(name: str) -> bool:
    try:
        answer = subprocess.run(["dpkg-query", "-W", "-f=${Status}", name], capture_output=True, text=True)
    except OSError:
        return False
    return answer.stdout.startswith("install ok installed")


def answers() -> Optional[str]:
    """None when a Docker engine answers, else the reason why not, in one line."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    try:
        info = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"], capture_output=True, text=True, timeout=30
        )
    except subprocess.TimeoutExpired:
        return "docker info did not answer in 30 s"
    # Some clients exit 0 here though no server answered.
    if info.returncode == 0 and info.stdout.strip():
        return None
    lines = (info.stderr or info.stdout).strip().splitlines()
    return lines[-1] if lines else "docker info names no server version"


def ensure_engine() -> None:
    """Return when a Docker engine answers: the one that is there, else one installed and started here, as root."""
    why_not = answers()
    if why_not is None:
        return
    if os.environ.get("DOCKER_HOST"):
        raise Failed(
            f"DOCKER_HOST names an engine that does not answer ({why_not}): start it, or unset DOCKER_HOST"
        )
    if os.geteuid() != 0:
        raise Failed(
            f"no Docker engine answers ({why_not}): start one, or run this as root, which starts one itself"
        )
    say(
        f"[Docker engine] none answers ({why_not}); running as root, so one is installed where absent, and started"
    )
    packages("docker.io", "containerd", "runc", "iptables", "iproute2")
    with cache.lock("engine"), Part("Docker engine") as part:
        # A package that starts its own service gets the time to do so; another process may have been here first.
        if _await_answer(15 if Path("/run/systemd/system").is_dir() else 2) is None:
            return
        part.now("starting dockerd, detached")
        start(ENGINE_FOLDER, ENGINE_LOG)


def start(
    folder: Path, log: Path, *flags: str, host: Optional[str] = None, patience: float = 60
) -> subprocess.Popen[bytes]:
    """Start dockerd detached, with a configuration file of our own in ``folder``, and wait until it answers.

    ``flags`` and ``host`` are for a second engine beside the machine's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wrapper = None
    if not has_sys_resource():
        wrapper = folder / WRAPPER.name
        new = wrapper.with_suffix(".new")
        shutil.copyfile(WRAPPER, new)
        new.chmod(0o755)
        new.replace(wrapper)
    for pid_file, program in PID_FILES:
        forget_dead(pid_file, program)
    # The machine's own configuration is honoured and left as it is.
    own = Path("/etc/docker/daemon.json")
    try:
        config = configuration(json.loads(own.read_text(encoding="utf-8")) if own.is_file() else {}, wrapper)
    except ValueError as error:
        raise Failed(f"{own} is not JSON ({error}): no Docker engine starts with it, mend it") from error
    file = folder / "daemon.json"
    file.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    with log.open("ab") as out:
        child = subprocess.Popen(
            ["dockerd", f"--config-file={file}", *flags, *([f"--host={host}"] if host else [])],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    why_not = _await_answer(patience, child, host)
    if why_not is not None:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        said = f"; it said last: {lines[-1]}" if lines else ""
        raise Failed(f"dockerd does not answer ({why_not}){said}; its log: {log}")
    return child


def forget_dead(pid_file: Path, program: str, proc: Path = Path("/proc")) -> None:
    """Remove a pid file whose process has ended, also where its number belongs to another program now.

    An engine that was killed leaves its own and containerd's, and dockerd takes any process of that number for them:
    it then refuses to start, or waits for a containerd that is none.
    """
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
        running = (proc / str(pid) / "comm").read_text(encoding="utf-8").strip() == program
    except (OSError, ValueError):
        running = False
    if not running:
        pid_file.unlink(missing_ok=True)


def configuration(own: Mapping[str, Any], wrapper: Optional[Path]) -> dict[str, Any]:
    """The machine's own daemon.json, with the wrapper as default runtime where one is needed."""
    config = dict(own)
    if wrapper is not None:
        name = "runc-without-sys-resource"
        config["runtimes"] = {**config.get("runtimes", {}), name: {"path": str(wrapper)}}
        config["default-runtime"] = name
    return config


def has_sys_resource(status: Optional[str] = None) -> bool:
    """Whether CAP_SYS_RESOURCE is in the bounding set, from ``/proc/self/status``."""
    text = status if status is not None else Path("/proc/self/status").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("CapBnd:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_RESOURCE & 1)
    raise Failed("/proc/self/status has no line CapBnd: this needs a Linux with capabilities")


def _await_answer(
    seconds: float, child: Optional[subprocess.Popen[bytes]] = None, host: Optional[str] = None
) -> Optional[str]:
    until = time.monotonic() + seconds
    while True:
        why_not = answers() if host is None else _answers_at(host)
        if why_not is None or time.monotonic() > until:
            return why_not
        if child is not None and child.poll() is not None:
            return f"it ended with exit code {child.returncode}"
        time.sleep(0.5)


def _answers_at(host: str) -> Optional[str]:
    version = subprocess.run(
        ["docker", "--host", host, "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        text=True,
    )
    return None if version.returncode == 0 else version.stderr.strip()


def compose_plugin() -> Path:
    """The Compose v2 plugin as a static program, built from Go modules at most once on a machine."""
    source = HERE / "compose"
    path = cache.folder("compose", cache.key(COMPOSE_VERSION, source)) / "docker-compose"
    with cache.lock("compose"):
        if path.is_file():
            return path
        go = shutil.which("go")
        if go is None:
            raise Failed(
                "the Compose v2 plugin is built with Go 1.25 or newer, and there is no go on PATH: install it"
            )
        with Part("Compose plugin") as part:
            part.now("go build of Docker Compose")
            version = f"-X github.com/docker/compose/v2/internal.Version={COMPOSE_VERSION}"
            new = path.with_suffix(".new")
            command = [go, "build", "-trimpath", "-ldflags", f"-s -w {version}", "-o", str(new)]
            part.run([*command, "github.com/docker/compose/v2/cmd"], cwd=source, env={"CGO_ENABLED": "0"})
            new.replace(path)
    return path


def ensure_compose() -> None:
    """Return when ``docker compose`` works for this user; where it does not, install the plugin we build."""
    if _compose_works():
        return
    plugin = compose_plugin()
    config = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    target = config / "cli-plugins" / "docker-compose"
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"[Compose plugin] docker compose does not work here: installing {COMPOSE_VERSION} as {target}")
    new = target.with_suffix(".new")
    shutil.copyfile(plugin, new)
    new.chmod(0o755)
    new.replace(target)
    if not _compose_works():
        raise Failed(
            f"docker compose does not work with the plugin at {target}: run `docker compose version` to see why"
        )


def _compose_works() -> bool:
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
