# SPDX-License-Identifier: GPL-3.0-or-later
"""What the small machine does: runs one load beside the real watcher, and tells every second what the kernel says.

It tells on the second serial port, a line each (curve.py reads them): `S` a sample, `L` a line of the watcher's log,
`E` an event, `R` how a command ended. What it means is not decided here. Its own memory is locked, so that the
telling does not stall with the rest.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

K3S = Path("/run/k3s")
SETTINGS = {
    "NODE_NAME": "pi1",
    "KUBE_SERVER": "https://127.0.0.2:6443,https://127.0.0.3:6443",
    "KUBECONFIG": str(K3S / "kubeconfig"),
    "RUNTIME": "command",
    "ACTUATOR_COMMAND": "/opt/guest/actuator.sh",
    "STATE_DIR": "/var/lib/regrade",
    "LOCK_FILE": "/run/lock/regrade.lock",
    "PYTHONPATH": "/opt/lib",
    "PATH": "/usr/bin:/bin",
}
WATCH = ("/usr/bin/python3", "-S", "-m", "regrade.cli", "watch")
STATUS = ("/usr/bin/python3", "-m", "regrade.cli", "status")
CGROUP = Path("/sys/fs/cgroup")
BASELINE_SECONDS = 15
AFTER_SECONDS = 10
LEVEL_SECONDS = 180  # for the first settling, in software emulation


class Told:
    """The second serial port."""

    def __init__(self) -> None:
        self._port = os.open("/dev/ttyS1", os.O_WRONLY | os.O_NOCTTY)
        self._lock = threading.Lock()
        subprocess.run(["/bin/busybox", "stty", "-F", "/dev/ttyS1", "raw", "115200"])

    def say(self, kind: str, text: str) -> None:
        line = f"{kind} {time.monotonic():.2f} {' '.join(text.split())}\n".encode()
        with self._lock:
            while line:
                line = line[os.write(self._port, line) :]


class Watcher:
    """The real one, its log told as it comes."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self.known = threading.Event()
        self.decided = threading.Event()
        self.process = subprocess.Popen(
            WATCH, env=SETTINGS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode("utf-8", "replace").strip()
            self._told.say("L", line)
            if " at full: " in line:
                self.known.set()
            if line.startswith("down at "):
                self.decided.set()


def kib(text: str) -> dict[str, int]:
    """Of meminfo and vmstat."""
    return {words[0].rstrip(":"): int(words[1]) for words in map(str.split, text.splitlines()) if len(words) > 1}


def sample(told: Told) -> None:
    while True:
        memory = kib(Path("/proc/meminfo").read_text())
        try:
            stalls = [line.split() for line in Path("/proc/pressure/memory").read_text().splitlines()]
            some, full = (words[-1].partition("=")[2] for words in stalls)
        except OSError:
            some, full = "-", "-"
        killed = kib(Path("/proc/vmstat").read_text()).get("oom_kill", 0)
        swapped = memory["SwapTotal"] - memory["SwapFree"]
        told.say(
            "S", f"{some} {full} {memory['MemAvailable']} {memory['MemTotal']} {memory['MemFree']} {swapped} {killed}"
        )
        time.sleep(1)


def swap(kind: str, told: Told) -> None:
    box = "/bin/busybox"
    device = "/dev/vdd"
    if kind == "none":
        return
    if kind == "zram":
        for module in ("zsmalloc", "lzo", "lzo-rle", "zram"):
            subprocess.run([box, "insmod", f"/run/modules/{module}.ko"])
        device = "/dev/zram0"
        size = kib(Path("/proc/meminfo").read_text())["MemTotal"] // 2
        Path("/sys/block/zram0/disksize").write_text(f"{size}K")
    for words in (["mkswap", device], ["swapon", device]):
        done = subprocess.run([box, *words], stdout=subprocess.DEVNULL)
        if done.returncode:
            told.say("E", f"failed: {' '.join(words)}")


def started(words: list[str], group: str = "", score: int = 500) -> subprocess.Popen[bytes]:
    """A load, killed before others where memory runs out, in a cgroup of its own where it is named."""

    def into() -> None:
        Path("/proc/self/oom_score_adj").write_text(str(score))
        if group:
            (CGROUP / group / "cgroup.procs").write_text("0")

    return subprocess.Popen(
        ["/usr/bin/python3", "-S", "/opt/guest/load.py", *words],
        env={"PATH": "/usr/bin:/bin"}, stdin=subprocess.DEVNULL,
        preexec_fn=into,  # noqa: PLW1509  # it takes no lock; a load must be in its group before its first page
    )  # fmt: skip


def limited_group(mib: int) -> str:
    (CGROUP / "cgroup.subtree_control").write_text("+memory")
    group = CGROUP / "pod"
    group.mkdir()
    (group / "memory.max").write_text(str(mib << 20))
    (group / "memory.swap.max").write_text("0")
    return group.name


def without_psi(told: Told) -> None:
    """What the two verbs that need it say, each in a process that should end by itself."""
    for name, words in (("watch", WATCH), ("status", STATUS)):
        began = time.monotonic()
        try:
            done = subprocess.run(
                words, env=SETTINGS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=120,
            )  # fmt: skip
            code, said = done.returncode, done.stdout.decode("utf-8", "replace")
        except subprocess.TimeoutExpired as error:
            code, said = -1, (error.stdout or b"").decode("utf-8", "replace")
        took = round(time.monotonic() - began, 1)
        told.say("R", json.dumps({"verb": name, "code": code, "seconds": took, "said": said}))


def stand_in(told: Told) -> None:
    K3S.mkdir()
    (K3S / "record").write_text("full\n")
    process = subprocess.Popen(
        ["/usr/bin/python3", "/opt/guest/stand_in.py"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    told.say("E", f"stand-in: {process.stdout.readline().decode().strip()}")


def run(told: Told, load: dict) -> None:
    threading.Thread(target=sample, args=(told,), daemon=True).start()
    swap(load["swap"], told)
    k3s = started(["hold", *map(str, load["k3s"])], score=-998)
    watcher = Watcher(told)
    if not watcher.known.wait(LEVEL_SECONDS):
        told.say("E", "failed: the watcher does not know the level")
        return
    time.sleep(BASELINE_SECONDS)
    group = limited_group(load["limit"]) if load["limit"] else ""
    told.say("E", "load begins")
    loads = [started(words, group) for words in load["processes"]]
    end = time.monotonic() + load["seconds"]
    stop_at = end
    ended = False
    while time.monotonic() < min(end, stop_at):
        time.sleep(0.5)
        if load["until"] == "decision" and watcher.decided.is_set() and stop_at == end:
            stop_at = time.monotonic() + AFTER_SECONDS
        if not ended and any(one.poll() is not None for one in loads):
            ended = True
            told.say("E", f"a load ended: {[one.returncode for one in loads]}")
            if load["until"] == "killed":
                stop_at = time.monotonic() + AFTER_SECONDS
        if load["until"] == "etcd-only" and k3s.poll() is None and "etcd-only" in (K3S / "record").read_text():
            told.say("E", "k3s restarts at etcd-only: its pods and most of its memory go")
            for one in (*loads, k3s):
                one.kill()
            started(["hold", "107", "20"], score=-998)
            ended = True
            stop_at = time.monotonic() + 60
    if k3s.poll() not in (None, -9):
        told.say("E", f"failed: what stands for k3s's memory ended with {k3s.returncode}")
    if watcher.process.poll() is not None:
        told.say("E", f"failed: the watcher ended with {watcher.process.returncode}")


def main() -> None:
    told = Told()
    Path("/proc/self/oom_score_adj").write_text("-1000")
    ctypes.CDLL(None).mlockall(3)
    words = dict(word.partition("=")[::2] for word in Path("/proc/cmdline").read_text().split())
    load = json.loads(Path("/opt/guest/loads.json").read_text())[words["regrade.load"]]
    told.say("E", f"booted: Linux {os.uname().release}, Python {sys.version.split()[0]}")
    try:
        stand_in(told)
        if load["until"] == "told":
            without_psi(told)
        else:
            run(told, load)
    except Exception as error:
        told.say("E", f"failed: {type(error).__name__}: {error}")
    told.say("E", "ends")
    time.sleep(0.5)


if __name__ == "__main__":
    main()
