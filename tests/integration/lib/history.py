# SPDX-License-Identifier: GPL-3.0-or-later
"""Every revision of the Nodes and of the Lease, kept by a watch, and what must hold over all of them.

    python3 history.py FILE      record into FILE (one JSON document a line) until SIGTERM

A watch goes on from the last revision it saw, at another server's API where its own went away, so that no
revision is missed. Where no API can go on from there the whole is listed anew, and the file says so in a line
`gap`: the check takes no gap for granted. Revisions of Nodes and Leases are of one etcd and so have one order.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

BED = Path(__file__).resolve().parents[2] / "bed"
if str(BED) not in sys.path:
    sys.path.insert(0, str(BED))

from admin_api import AdminApi, NoAnswer  # noqa: E402
from background import Background  # noqa: E402
from bed import Bed  # noqa: E402

PREFIX = "github-runner.exadev.com/"
LEVEL = PREFIX + "regrade-level"
STEP = PREFIX + "regrade-step"
OURS = PREFIX + "regrade-ours"

STREAMS = {
    "node": "/api/v1/nodes",
    "lease": "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?fieldSelector=metadata.name%3Dk3s-regrade",
}
WATCH_SECONDS = 10
PATIENCE_SECONDS = 20
GONE = 410

Line = dict[str, Any]


# -- recording


class Recorder:
    """Writes what two watches see into one file."""

    def __init__(self, api: AdminApi, path: Path) -> None:
        self._api = api
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()

    def run(self) -> None:
        threads = [threading.Thread(target=self._follow, args=(of,), daemon=True) for of in STREAMS]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1)
                if self._ended.is_set():
                    return

    def _write(self, line: Line) -> None:
        with self._lock:
            self._file.write(json.dumps({"time": time.time(), **line}, separators=(",", ":")) + "\n")

    def _follow(self, of: str) -> None:
        revision = ""
        broke: Optional[float] = None  # since when no API goes on from there
        while not self._ended.is_set():
            gone = 0
            followed = False
            for server in self._api.servers if revision else ():
                try:
                    for event in self._api.watch(server, STREAMS[of], revision, WATCH_SECONDS):
                        revision = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self._write(seen(of, event["type"], event["object"], server.name))
                    followed = True
                    break
                except NoAnswer as error:
                    gone += error.status == GONE
            if followed:
                broke = None
                continue
            if revision:
                # Where no API answers, none can be written through either. Where those that do no longer go back
                # that far, one that is silent now may: it is waited for before the whole is listed anew.
                broke = broke or time.time()
                patient = time.time() < broke + PATIENCE_SECONDS
                if not gone or (gone < len(self._api.servers) and patient):
                    time.sleep(0.5)
                    continue
            listed = self._list(of, revision, broke)
            if listed:
                revision, broke = listed, None

    def _list(self, of: str, after: str, broke: Optional[float]) -> str:
        try:
            found = self._api.call("GET", STREAMS[of])
        except NoAnswer:
            time.sleep(0.5)
            return ""
        at = str(found["metadata"]["resourceVersion"])
        if after:
            self._write({"kind": "gap", "of": of, "after": int(after), "rv": int(at), "broke": broke})
        for item in found["items"]:
            self._write(seen(of, "LISTED", item, "list"))
        return at


def seen(of: str, what: str, item: dict[str, Any], through: str) -> Line:
    """One revision of one object, with what the checks look at."""
    meta = item["metadata"]
    line: Line = {
        "kind": of,
        "rv": int(meta["resourceVersion"]),
        "type": what,
        "name": meta["name"],
        "through": through,
    }
    if of == "lease":
        return {**line, "holder": item.get("spec", {}).get("holderIdentity") or ""}
    annotations = meta.get("annotations") or {}
    spec = item.get("spec", {})
    return {
        **line,
        "uid": meta["uid"],
        "label": (meta.get("labels") or {}).get(LEVEL),
        "step": annotations.get(STEP),
        "ours": annotations.get(OURS),
        "taint": next(
            (taint.get("value") for taint in spec.get("taints") or [] if taint["key"] == LEVEL), None
        ),
        "unschedulable": bool(spec.get("unschedulable")),
    }


# -- steering a recorder from a test


class History:
    """A recorder as a process of its own, so that it lives through the steps of a scenario."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "history.jsonl"
        self._recorder = Background(self.path)

    def start(self) -> None:
        self._recorder.start(
            [__file__, str(self.path)],
            begun=lambda: {line["kind"] for line in self.lines()} >= set(STREAMS),
        )

    def running(self) -> bool:
        return self._recorder.running()

    def stop(self) -> None:
        self._recorder.stop()

    def mark(self, **what: object) -> None:
        """A line of the test's own, in between."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "kind": "mark", **what}) + "\n")

    def lines(self) -> list[Line]:
        return [
            json.loads(line)
            for line in self.path.read_text(encoding="utf-8").splitlines()
            if line.endswith("}")
        ]

    def catch_up(self, api: AdminApi, seconds: float = 60) -> None:
        """Wait until what the API lists now has been seen, or lies in a gap that `gaps` will tell. Raises NoAnswer."""
        until = time.monotonic() + seconds
        wanted = {
            (of, item["metadata"]["name"], int(item["metadata"]["resourceVersion"]))
            for of, path in STREAMS.items()
            for item in api.call("GET", path)["items"]
        }
        while True:
            missing = unseen(wanted, self.lines())
            if not missing:
                return
            if time.monotonic() > until:
                raise NoAnswer(f"the history never saw {sorted(missing)}")
            time.sleep(0.5)


# -- what must hold


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Each revision once, in etcd's order."""
    found = {
        (line["kind"], line["name"], line["rv"], line["type"] == "DELETED"): line
        for line in lines
        if line["kind"] in STREAMS
    }
    return sorted(found.values(), key=lambda line: (line["rv"], line["kind"]))


def busy(line: Line) -> str:
    """In what way this Node is below full or in a step; empty where it is neither."""
    return f"at {line['label']}" if line["label"] else "in a step" if line["step"] else ""


def two_at_once(lines: Iterable[Line]) -> list[str]:
    """Every revision at which two servers are below full or in a step."""
    now: dict[str, str] = {}
    found = []
    for line in in_order(lines):
        if line["kind"] != "node":
            continue
        now[line["name"]] = "" if line["type"] == "DELETED" else busy(line)
        both = {name: why for name, why in now.items() if why}
        if len(both) > 1:
            found.append(
                f"revision {line['rv']}: "
                + " and ".join(f"{name} {why}" for name, why in sorted(both.items()))
            )
    return found


def unlabelled_below_full(lines: Iterable[Line]) -> list[str]:
    """Every revision at which a Node carries a mark of a level below full without the label that names it."""
    return [
        f"revision {line['rv']}: {line['name']} has taint {line['taint']}, mark {line['ours']}, label {line['label']}"
        for line in in_order(lines)
        if line["kind"] == "node"
        and (line["taint"] or line["ours"])
        and line["label"] != (line["taint"] or line["label"] or "?")
    ]


def steps_without_lease(lines: Iterable[Line]) -> list[str]:
    """Every revision at which a Node shows an open step while its server does not hold the Lease."""
    holder = ""
    stepping: set[str] = set()
    found = []
    for line in in_order(lines):
        if line["kind"] == "lease":
            holder = line["holder"]
        elif line["step"]:
            stepping.add(line["name"])
        else:
            stepping.discard(line["name"])
        found += [
            f"revision {line['rv']}: {name} is in a step, and the Lease's holder is {holder or 'nobody'}"
            for name in sorted(stepping)
            if holder.split("/")[0] != name
        ]
    return found


def unseen(wanted: set[tuple[str, str, int]], lines: Iterable[Line]) -> set[tuple[str, str, int]]:
    """Those of (stream, name, revision) that no line has and no gap covers: a watch that had to list anew never sees
    what was between."""
    whole = list(lines)
    seen_now = {(line["kind"], line.get("name"), line.get("rv")) for line in whole}
    missed = [(line["of"], line["after"], line["rv"]) for line in whole if line["kind"] == "gap"]
    return {
        (of, name, rv)
        for of, name, rv in wanted - seen_now
        if not any(of == kind and after < rv <= at for kind, after, at in missed)
    }


def gaps(lines: Iterable[Line]) -> list[str]:
    """Where revisions may have been missed, but for what broke in an outage that the test itself made and marked:
    that may be seen only after its end."""
    whole = list(lines)
    made = outages(whole)
    return [
        f"{line['of']}: between {line['after']} and {line['rv']}"
        for line in whole
        if line["kind"] == "gap" and not any(begun <= line["broke"] <= ended for begun, ended in made)
    ]


def outages(lines: Iterable[Line]) -> list[tuple[float, float]]:
    """From when to when the test itself took the quorum away, on the wall clock; the last may have no end."""
    found: list[tuple[float, float]] = []
    for line in lines:
        if line["kind"] == "mark" and line.get("outage"):
            found.append((line["time"], float("inf")))
        elif line["kind"] == "mark" and "outage" in line:
            found[-1] = (found[-1][0], line["time"])
    return found


def levels_of(lines: Iterable[Line], name: str) -> list[str]:
    """The levels a Node's label went through, in order, full where it had none."""
    found: list[str] = []
    for line in in_order(lines):
        if line["kind"] == "node" and line["name"] == name:
            level = line["label"] or "full"
            if found[-1:] != [level]:
                found.append(level)
    return found


def main(arguments: Sequence[str]) -> int:
    recorder = Recorder(AdminApi(Bed()), Path(arguments[0]))
    signal.signal(signal.SIGTERM, lambda *_: recorder.end())
    recorder.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
