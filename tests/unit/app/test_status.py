# SPDX-License-Identifier: GPL-3.0-or-later
"""What `status` tells a person: in words and as JSON, and in its place whatever it cannot tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import pair_files
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app import watcher_notes
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import (
    settle,
    status,
    step_to,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.reports import (
    StatusReport,
    status_words,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import marks, watch
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import (
    LevelUnknown,
    RegradeError,
    SettingsWrong,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease, Taint
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import Sample
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.settings import Settings
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster, fails, unreachable

S = "server1"
MIB = 1 << 20


class Host:
    """A server with files of its own, and a watcher that wrote its notes last."""

    def __init__(self, folder: Path, **settings: str) -> None:
        (folder / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")
        (folder / "pressure").write_text("some avg10=0 avg60=0 avg300=0 total=0\n")
        (folder / "state").mkdir()
        self.folder = folder
        self.cluster = Cluster(
            LOCK_FILE=str(folder / "lock"), STATE_DIR=str(folder / "state"), MEMINFO_FILE=str(folder / "meminfo"),
            PRESSURE_FILE=str(folder / "pressure"), **{"STEP_UP": "automatic", **settings},
        )  # fmt: skip
        self.host = self.cluster.hosts[S]

    def settings(self) -> Settings:
        return self.cluster.process(S).world.settings

    def watched(self, change: Optional[Callable[[watch.Watch], watch.Watch]] = None, available: int = 3000) -> None:
        """A watcher that has known the level for 70 s, and just wrote what it knows."""
        found, now = watch.begin({}, {}, ""), self.cluster.time.seconds
        found = found._replace(state=found.state._replace(level=self.host.current_level()), busy="settle")
        for past in range(70, -1, -5):
            if past == 5 and change:
                found = change(found)
            sample = Sample(now - past, now - past, "boot-1", 0, available * MIB, 4000 * MIB)
            found, decision, _commands = watch.on_sample(found, sample, self.settings())
        watcher_notes.Notes(self.settings()).write(watch.notes(found, decision, sample))

    def status(self) -> StatusReport:
        """Its JSON is JSON, and its words are lines."""
        report = status(self.cluster.process(S))
        assert json.loads(json.dumps(report)) == report
        self.words = status_words(report)
        assert "None" not in self.words
        return report


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_taints_of_others_that_keep_pods_away_are_named(host: Host) -> None:
    assert host.status()["foreign_taints"] == []
    assert "taints " not in host.words
    host.cluster.api.set_node(S, taints=(Taint("node.kubernetes.io/out-of-service", "", "NoExecute"),))
    assert host.status()["foreign_taints"] == ["node.kubernetes.io/out-of-service:NoExecute"]
    assert "taints     not ours, and they keep pods away: node.kubernetes.io/out-of-service:NoExecute" in host.words


def test_a_server_that_is_well(host: Host) -> None:
    host.watched()
    found = host.status()
    assert found["streaks"] == {"over": 0, "calm": 10, "over_asked": 60, "calm_asked": 300}
    assert found["cooldown"] == {"down": 0, "up": 0}
    assert (found["relapses"], found["exhausted"], found["blocked"], found["back"]) == (0, False, None, "")
    assert found["trap"] == {"trapped": False, "detail": ""}
    errors = [value for key, value in found.items() if key.endswith("_error")]
    assert errors == [""] * 5
    assert found["next"] == "calm at full"
    assert found["up"] == {"to": "", "needs": [], "automatic_needs": []}
    assert found["down"]["to"] == "control-plane"
    assert found["down"]["needs"] == []
    [over] = found["down"]["automatic_needs"]
    assert "pressure 20% or more with less than 50% available, or less than 8% available" in over
    assert over.endswith("for 60 s, so far 0 s")
    assert "down       to control-plane by hand needs: nothing more" in host.words
    assert "over for 0 s of 60 s, calm for 10 s of 300 s (relapses: 0)" in host.words


def test_over_and_refused_tells_the_reason_the_cure_and_when_it_is_tried_again(host: Host) -> None:
    def refused(found: watch.Watch) -> watch.Watch:
        now = host.cluster.time.seconds - 5
        sample = Sample(now, now, "boot-1", 0, 100 * MIB, 4000 * MIB)
        answer = {"result": "refused", "reason": "ready", "cure": "bring it back", "message": "ready: server3"}
        return watch.on_answer(found._replace(busy="down"), answer, sample, host.settings())[0]

    step_to(host.cluster.process(S), "control-plane", hold=False)
    host.watched(refused, available=100)
    found = host.status()
    assert not any("refused" in need for need in found["up"]["automatic_needs"])
    assert found["blocked"] == {
        "move": "down", "reason": "ready", "message": "ready: server3", "cure": "bring it back", "retry_in": 25,
    }  # fmt: skip
    assert found["down"]["automatic_needs"] == ["it was refused for ready, and is tried again in 25 s"]
    assert "refused for ready: ready: server3; tried again in 25 s; cure: bring it back" in host.words


def test_a_journal_that_cannot_be_read_is_said_in_its_place(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(name: str) -> Optional[Dict[str, object]]:
        raise RegradeError(f"{name}.json cannot be read: Expecting value; expected a JSON object")

    monkeypatch.setattr(host.host, "read", torn)
    found = host.status()
    assert (found["journal"], found["level"], found["lease"]["free"]) == (None, "full", True)
    assert "journal.json cannot be read" in found["journal_error"]
    assert "journal.json cannot be read" in found["next"]
    assert "journal.json cannot be read" in found["down"]["needs"][0]
    assert "open step  unknown: journal.json cannot be read" in host.words


def test_a_record_that_cannot_be_read_is_said_in_its_place(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> str:
        raise RegradeError("the record begins with 'x'")

    monkeypatch.setattr(host.host, "recorded_level", wrong)
    assert host.status()["recorded_error"] == "the record begins with 'x'"
    assert "recorded unknown: the record begins with 'x'" in host.words


def test_a_cluster_that_does_not_answer_is_said_in_its_place(host: Host) -> None:
    for call in ("nodes", "node", "read_lease"):
        host.cluster.api.faults.append(fails(call, unreachable(), 99))
    found = host.status()
    assert (found["level"], found["label"], found["hold"]) == ("full", None, None)
    assert "answered within" in found["node_error"]
    assert "answered within" in found["lease"]["error"]
    assert {item["ok"] for item in found["gate"]} == {None}
    assert found["next"].startswith("no step until the cluster answers")
    assert len(found["down"]["needs"]) == 2


def test_a_level_that_is_not_known_is_what_both_ways_need(host: Host) -> None:
    host.host.running = ""
    found = host.status()
    for move in (found["down"], found["up"]):
        assert (move["to"], move["needs"]) == ("", ["the level has to become known: k3s does not answer"])


def test_each_check_that_refuses_has_its_cure(host: Host) -> None:
    host.cluster.api.set_node("server3", ready=None, unschedulable=True, etcd_is_voter=False)
    host.cluster.api.set_node("server2", labels={marks.LEVEL: "etcd-only"})
    found = host.status()
    cures = {item["check"]: item["cure"] for item in found["gate"] if item["ok"] is False}
    assert sorted(cures) == ["full", "ready", "serviced", "voter"]
    assert all(cures.values())
    assert len(found["down"]["needs"]) == 4
    assert all(item["cure"] == "" for item in found["gate"] if item["ok"] is not False)


def test_a_held_lease_tells_its_age_and_how_long_it_lasts(host: Host) -> None:
    host.cluster.api.lease = Lease("server2/beef", 900, "", "", 3, "50")
    with pytest.raises(RegradeError):
        step_to(host.cluster.process(S), "down")
    host.cluster.time.sleep(20)
    found = host.status()
    assert (found["lease"]["holder"], found["lease"]["age"], found["lease"]["duration"]) == (
        "server2/beef",
        20,
        900,
    )
    assert "held by server2/beef, seen unchanged for 20 s of 900 s" in host.words
    host.cluster.time.sleep(900)
    assert host.status()["lease"]["free"] is True
    assert "may be taken over" in host.words


def test_a_missing_lease_is_cured_by_the_role(host: Host) -> None:
    host.cluster.api.lease = None
    assert "run the role" in host.status()["lease"]["cure"]


def test_what_a_dead_watcher_told_is_not_taken_for_now(host: Host) -> None:
    host.watched(available=100)
    assert host.status()["streaks"]["over"] == 70
    host.cluster.time.sleep(300)
    found = host.status()
    assert set(found["streaks"].values()) == {None}
    assert "silent for 300 s" in found["watcher_error"]
    assert any("a watcher has to run" in need for need in found["down"]["automatic_needs"])
    assert "no watcher runs" in found["next"]


def test_the_cooldown_is_told_without_a_watcher(host: Host) -> None:
    pair_files.write(
        str(host.folder / "state" / pair_files.LAST_STEP),
        {"boottime": "990", "boot_id": "boot-1", "direction": "down", "level": "control-plane"},
    )
    assert host.status()["cooldown"] == {"down": 110, "up": 590}
    assert any("110 s to go" in need for need in host.status()["down"]["automatic_needs"])


@pytest.mark.parametrize(
    ("key", "words"),
    [(marks.HOLD, "regrade release"), (marks.PAUSE, "regrade-pause"), (marks.DRY_RUN, "regrade-dry-run")],
)
def test_a_switch_holds_the_watcher_up_and_no_person(host: Host, key: str, words: str) -> None:
    host.cluster.api.set_node(S, annotations={**host.cluster.node(S).annotations, key: "yes"})
    found = host.status()
    assert found["down"]["needs"] == []
    assert any(words in need for need in found["down"]["automatic_needs"])


def test_manual_says_that_a_person_steps_up(tmp_path: Path) -> None:
    host = Host(tmp_path, STEP_UP="manual")
    step_to(host.cluster.process(S), "control-plane", hold=False)
    assert "STEP_UP=manual" in " ".join(host.status()["up"]["automatic_needs"])
    assert host.status()["up"]["needs"] == []


def test_a_trap_is_told_with_its_cure(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    step_to(host.cluster.process(S), "etcd-only", hold=False)
    assert host.status()["trap"] == {"trapped": False, "detail": ""}
    host.host.is_trapped = host.host.incurable = True
    assert "the watcher restarts it" in host.status()["trap"]["detail"]
    with pytest.raises(RegradeError):
        settle(host.cluster.process(S), automatic=True)
    found = host.status()
    assert found["trap"]["trapped"] is True
    assert "a restart did not cure it; cure: step up" in found["trap"]["detail"]
    assert "trap       yes: k3s is locked behind its own address" in host.words

    def silent() -> bool:
        raise LevelUnknown("docker does not answer")

    monkeypatch.setattr(host.host, "trapped", silent)
    assert host.status()["trap"] == {"trapped": None, "detail": "docker does not answer"}


def test_a_recreated_container_is_told_until_it_is_back(host: Host) -> None:
    step_to(host.cluster.process(S), "etcd-only", hold=False)
    host.host.running = "full"
    found = host.status()
    assert (found["level"], found["recorded"], found["label"]) == ("full", "etcd-only", "etcd-only")
    assert "the Node's marks say etcd-only and have to say full" in found["down"]["needs"][0]
    settle(host.cluster.process(S), automatic=True)
    found = host.status()
    assert found["back"] == "etcd-only"
    assert not any("memory" in need for need in found["down"]["automatic_needs"])
    assert any("stepped down to etcd-only again first" in need for need in found["up"]["automatic_needs"])
    assert "back       the container came back" in host.words


def test_over_at_the_lowest_level_is_told(host: Host) -> None:
    step_to(host.cluster.process(S), "etcd-only", hold=False)
    host.watched(available=100)
    assert host.status()["exhausted"] is True
    assert "exhausted  memory is short at the lowest level" in host.words


def test_without_pressure_it_stops_at_full_and_tells_the_rest_below(host: Host) -> None:
    (host.folder / "pressure").unlink()
    with pytest.raises(SettingsWrong, match="psi=1"):
        host.status()
    step_to(host.cluster.process(S), "control-plane")
    found: Any = host.status()
    assert "psi=1" in found["reading_error"]
    assert any("psi=1" in need for need in found["up"]["automatic_needs"])
    assert "nothing steps up by itself" in found["next"]


def test_notes_too_long_for_their_file_lose_the_last_and_no_more(host: Host) -> None:
    notes = watcher_notes.Notes(host.settings())
    for length in range(watcher_notes.SIZE - 60, watcher_notes.SIZE):
        notes.write({"level": "full", "reason": "x" * length, "unhealthy": "y" * 20})
        assert watcher_notes.read(host.settings())["level"] == "full", length
        assert (host.folder / watcher_notes.NOTES).stat().st_size == watcher_notes.SIZE
    notes.write({"level": "full", "reason": "\U0001f600" * 4000})
    assert watcher_notes.read(host.settings()) == {"level": "full"}
