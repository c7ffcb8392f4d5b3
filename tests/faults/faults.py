# SPDX-License-Identifier: GPL-3.0-or-later
"""The fault matrix: each row of rows.py on three real servers, with clients that write through all of them.

`make faults` does every row anew; `make faults ROW=NAME` only that one (or several, with commas between), and keeps
what is known of the others. Leaves build/faults/table.md, one folder a row with its histories, and for the summary
figures.json. What is done to a step is faults_done.py's; no row's own check belongs here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
INTEGRATION = ROOT / "tests" / "integration"
sys.path[:0] = [str(ROOT / "tests" / "bed"), str(INTEGRATION / "lib"), str(INTEGRATION / "writes")]

import faults_done  # noqa: E402
import history as recorded  # noqa: E402
import observer  # noqa: E402
import plays  # noqa: E402
import pressure  # noqa: E402
import scenario  # noqa: E402
from admin_api import AdminApi, NoAnswer  # noqa: E402
from bed import Bed, Server  # noqa: E402
from parts import Failed, span  # noqa: E402
from rows import ROWS, Row  # noqa: E402
from writers import Writers  # noqa: E402

FOLDER = ROOT / "build" / "faults"
RESULT = "result.json"
STABLE_SECONDS = 300
WORDS_KEPT = 2000
REGRADE = "/usr/local/bin/regrade"
JOURNAL = "/var/lib/regrade/journal.json"

Result = dict[str, Any]


class Stage:
    """The bed with regrading on, at rest. The rows' step is the first server's."""

    def __init__(self, up: bool = False) -> None:
        self.bed = Bed()
        self.server: Server = self.bed.servers[0]
        self._up = up
        self._failed = False

    def ready(self, level: str) -> AdminApi:
        """Everything is well and the server is at that level, whatever a row before has left. Raises where it cannot
        be."""
        if self._failed:
            self.bed.down()
            self._up = self._failed = False
        if not self._up:
            self._begin_with_what_is_there()
            self.bed.up()
            for server in self.bed.servers:
                pressure.begin(server)
                pressure.put(server, pressure.CALM)
            run = plays.playbook("enable")
            if run.code:
                raise RuntimeError(f"the role failed: {run.output.strip().splitlines()[-1]}")
            self._up = True
        api = AdminApi(self.bed)
        scenario.step(self.server, level)
        observer.wait_for("all is at rest", lambda: not self.trouble(api, level) or None, 120)
        return api

    def _begin_with_what_is_there(self) -> None:
        """What an earlier run has kept may be below full, and a bed is up where all three are Ready there; what
        cannot be brought there goes."""
        back = f"[ ! -e {REGRADE} ] || {REGRADE} step to full"
        for server in self.bed.servers:
            if server.sh(back, check=False, timeout=STABLE_SECONDS).returncode:  # also where there is none
                self.bed.down()
                return

    def anew(self) -> None:
        """A row has failed: the next one begins on servers that nothing was done to. Where there is none, those it has
        failed on stay for whoever looks at them, as far as KEEP lets them."""
        self._failed = True

    def keep_words(self, folder: Path) -> None:
        """What each server's service and k3s said, for whoever looks at why a row has failed."""
        for server in self.bed.servers:
            for name in (faults_done.SERVICE, "k3s"):
                said = server.docker("logs", "--timestamps", f"--tail={WORDS_KEPT}", name, check=False)
                (folder / f"{server.name}-{name}.log").write_text(said.stdout + said.stderr, encoding="utf-8")

    def trouble(self, api: AdminApi, level: str) -> list[str]:
        """In what the servers are not what they are to be with ours at that level and no step open."""
        nodes = api.nodes()
        found = [
            f"{name}: {what}"
            for name, node in sorted(nodes.items())
            for what in _marks(node, self._level(name, level))
        ]
        for server in self.bed.servers:
            runs = observer.runs_at(server)
            wanted = "etcd-only" if self._level(server.name, level) == "etcd-only" else "full"
            if runs != wanted:
                found.append(f"{server.name}: k3s runs at {runs}, not at {wanted}")
            if not observer.etcd_healthy(server):
                found.append(f"{server.name}: its etcd is not well")
        if self.server.sh(f"test ! -e {JOURNAL}", check=False).returncode:
            found.append(f"{self.server.name}: its journal is open")
        holder = api.call("GET", faults_done.LEASE).get("spec", {}).get("holderIdentity")
        return found + ([f"the Lease is held by {holder}"] if holder else [])

    def _level(self, name: str, level: str) -> str:
        return level if name == self.server.name else "full"


def _marks(node: dict[str, Any], level: str) -> list[str]:
    """What of the Node's marks is not as it is at that level."""
    seen = recorded.seen("node", "LISTED", node, "")
    below = None if level == "full" else level
    wanted = {"label": below, "taint": below, "step": None, "unschedulable": bool(below)}
    return [f"{name} is {seen[name]}, not {value}" for name, value in wanted.items() if seen[name] != value]


def run(stage: Stage, row: Row) -> Result:
    """One row: what was done, how it ended, what it took. Never raises for what went wrong in it."""
    folder = FOLDER / row.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    result: Result = {"name": row.name, "what": row.what, "level": row.level, "problem": ""}
    history = recorded.History(folder)
    try:
        api = stage.ready(row.start)
        before = observer.identity(stage.bed, api)
        history.start()
        with Writers(stage.bed, folder) as writers:
            result["figures"] = getattr(faults_done, row.fault)(stage.bed, api, row)
            done = time.monotonic()
            try:
                observer.wait_for(
                    "a stable state", lambda: not stage.trouble(api, row.level) or None, STABLE_SECONDS
                )
            except AssertionError as error:
                raise AssertionError(f"{error}: {'; '.join(stage.trouble(api, row.level))}") from None
            result["seconds"] = round(time.monotonic() - done, 1)
            report = writers.verdict()
        history.catch_up(api)
        history.stop()
        lines = history.lines()
        result |= {"lost": report.lost, "stall": report.longest_stall.seconds, "writes": report.acknowledged}
        broken = [
            *map(str, report.problems),
            *recorded.two_at_once(lines),
            *([] if row.takes_lease else recorded.steps_without_lease(lines)),
            *recorded.unlabelled_below_full(lines),
            *recorded.gaps(lines),
        ]
        if observer.identity(stage.bed, api) != before:
            broken.append("a member, a Node or a node's password is not what it was")
        broken += stage.trouble(api, row.level)
        result["problem"] = broken[0] if broken else ""
    except (AssertionError, Failed, NoAnswer, RuntimeError, OSError) as error:
        result["problem"] = str(error) or type(error).__name__
    finally:
        history.stop()
    if result["problem"]:
        try:
            stage.keep_words(folder)
        except Failed as error:  # what went wrong first is what is told
            print(f"what the servers said could not be kept: {error}", flush=True)
    result["whole_seconds"] = round(time.monotonic() - began, 1)
    (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def chosen(names: str) -> list[Row]:
    """The rows of ROW, all of them where it is empty. Raises ValueError."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    known = {row.name: row for row in ROWS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"ROW names {', '.join(unknown)}: the rows are {', '.join(known)}")
    return [known[name] for name in wanted] or list(ROWS)


def known() -> list[Result]:
    """The result of every row that was done, in the order of the matrix."""
    files = [FOLDER / row.name / RESULT for row in ROWS]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def table(results: list[Result]) -> str:
    """For a person, and for docs/faults.md."""
    lines = [
        "| what is done | ends at | to a stable state | writes lost | longest stall |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        if result["problem"]:
            lines.append(f"| {result['what']} | **{result['problem']}** | | | |")
        else:
            more = ", ".join(f"{name} {value}" for name, value in (result.get("figures") or {}).items())
            what = result["what"] + (f" ({more})" if more else "")
            lines.append(
                f"| {what} | {result['level']} | {result['seconds']:.0f} s | {result['lost']} of "
                f"{result['writes']} | {result['stall']:.1f} s |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    problem = ""
    try:
        rows = chosen(os.environ.get("ROW", ""))
        if not os.environ.get("ROW"):
            for row in ROWS:
                shutil.rmtree(FOLDER / row.name, ignore_errors=True)
        stage = Stage()
        for number, row in enumerate(rows, 1):
            print(f"[{number} of {len(rows)}] {row.name}: {row.what}", flush=True)
            result = run(stage, row)
            told = result["problem"] or f"at {row.level}, stable after {result['seconds']:.0f} s"
            verdict = "FAILED" if result["problem"] else "ok"
            print(f"{verdict}  {row.name}, {span(result['whole_seconds'])}: {told}", flush=True)
            if result["problem"]:
                problem = problem or f"{row.name}: {told}"
                stage.anew()
    except (ValueError, Failed) as error:
        problem = str(error)
    except KeyboardInterrupt:
        problem = "interrupted; the rows that were done are kept, ROW=... does the others"
    results = known()
    (FOLDER / "table.md").write_text(table(results), encoding="utf-8")
    figures = {
        "rows": len(ROWS),
        "rows_done": len(results),
        "rows_good": sum(not result["problem"] for result in results),
        "writes_lost": sum(result.get("lost", 0) for result in results),
        "longest_stall_seconds": max((result.get("stall", 0.0) for result in results), default=0.0),
        **({"problem": problem} if problem else {}),
    }
    (FOLDER / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(results))
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
