# SPDX-License-Identifier: GPL-3.0-or-later
"""Section A of the field cases, the pressure signal: what is not known is never calm; memory counts beside stall."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Callable, List, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.adapters import psi
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.app.operations import status, step_to
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import policy, watch
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.errors import SettingsWrong
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.levels import LEVELS
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.policy import (
    State,
    judge,
    observe,
)
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import (
    Reading,
    Sample,
    stall_share,
)
from ansible_collections.exadev.k3s_regrade.tests.simulation.world import Cluster
from ansible_collections.exadev.k3s_regrade.tests.unit.properties.histories import (
    SHORT,
    Event,
    samples,
    settings,
)

MIB = 1 << 20
MEMINFO = "MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def raising(error: OSError) -> Callable[[str], str]:
    def read(_path: str) -> str:
        raise error

    return read


def actions(events: List[Event], level: str) -> List[str]:
    state, found = State(level=level), []
    for sample in samples(events):
        state, decision = observe(state, sample, SHORT)
        found.append(decision.action)
    return [action for action in found if action]


def stopped(missing: str, level: str) -> List[str]:
    """What the watcher's end is told, over some samples once its server is known to be at `level`."""
    now, told = watch.begin({}, {}, missing), []
    for sample in samples([Event(stall=None)] * 4):
        if now.busy:
            answer = {"result": "done", "action": "nothing", "level": level, "message": "m"}
            now, _commands = watch.on_answer(now, answer, sample, SHORT)
        now, _decision, commands = watch.on_sample(now, sample, SHORT)
        told += [command.text for command in commands if isinstance(command, watch.Stop)]
        if told:
            break  # as `app.watcher` does
    return told


# --- A1, A2: no PSI ---

NO_PSI = ["absent", "no folder", "empty", "blank", "EOPNOTSUPP", "EOPNOTSUPP at open"]


@pytest.fixture(params=NO_PSI)
def without_psi(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A path whose pressure cannot be read, in each way that was seen."""
    path = tmp_path / ("proc/pressure/memory" if request.param == "no folder" else "memory")
    if request.param in ("empty", "blank"):
        path.write_text("" if request.param == "empty" else "\n \n")
    elif request.param.startswith("EOPNOTSUPP"):
        path.write_text(PRESSURE.format(0))

        def fail(*_: object) -> bytes:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

        monkeypatch.setattr(psi.os, "open" if request.param.endswith("open") else "read", fail)
    return str(path)


def test_a1_what_is_missing_is_told_once_with_both_causes(without_psi: str) -> None:
    why = psi.missing_pressure(without_psi)
    assert "CONFIG_PSI" in why and "psi=1" in why and without_psi in why and "\n" not in why
    assert stopped(why, "full") == [why]


@pytest.mark.parametrize("level", ["control-plane", "etcd-only"])
def test_a1_a_watcher_below_full_stays_and_says_that_it_does_not_step_up(
    without_psi: str, level: str
) -> None:
    why = psi.missing_pressure(without_psi)
    assert stopped(why, level) == []
    assert "no step up by itself" in watch.unhealthy(watch.begin({}, {"level": level}, why))


def test_a1_status_stops_with_the_same_words_and_a_step_by_hand_works() -> None:
    cluster = Cluster(PRESSURE_FILE="/nowhere/pressure/memory")
    with pytest.raises(SettingsWrong, match=r"CONFIG_PSI.*psi=1"):
        status(cluster.process("server1"))
    assert step_to(cluster.process("server1"), "etcd-only")["changed"]
    assert status(cluster.process("server1"))["level"] == "etcd-only"
    assert step_to(cluster.process("server1"), "full")["changed"]


def test_a2_what_cannot_be_read_is_never_a_pressure_of_zero(without_psi: str) -> None:
    meminfo = Path(without_psi).with_name("meminfo")
    try:
        meminfo.parent.mkdir(parents=True, exist_ok=True)
        meminfo.write_text(MEMINFO)
    except OSError:  # the fixture lets no file be opened
        pass
    assert psi.sample(without_psi, str(meminfo), "boot").stall is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("available", [3500, 100])
def test_a2_without_pressure_nothing_moves_in_either_direction(level: str, available: int) -> None:
    assert actions([Event(stall=None, available=available)] * 100, level) == []


# --- A3: memory runs out while PSI is silent ---

EARLYOOM = [(0, 235), (0, 165), (0, 101), (0, 49), (0, 17), (0, 1), (0, 0), (1.99, 0), (1.99, 7), (10.32, 39)]


def test_a3_the_floor_alone_is_over() -> None:
    told = [judge(Reading(stall / 100, size * MIB, 2000 * MIB), "full", SHORT) for stall, size in EARLYOOM]
    assert told == ["calm", "calm"] + ["over"] * 8


@pytest.mark.parametrize("stall", [0, 10, 90])
def test_a3_it_steps_down_by_memory_alone_whatever_the_stall(stall: int) -> None:
    assert actions([Event(stall=stall, available=300)] * 4, "full") == ["down"] * 2


@pytest.mark.parametrize(("stall", "available"), [(90, 1900), (0, 300), (90, 300)])
def test_a3_calm_asks_for_both(stall: int, available: int) -> None:
    assert "up" not in actions([Event(stall=stall, available=available)] * 40, "etcd-only")
    assert "up" in actions([Event(stall=0, available=1900)] * 40, "etcd-only")


# --- A5: Linux 6.12 leaks counts of `full` ---

LEAKED = (
    "some avg10=79.51 avg60=23.28 avg300=5.32 total=17948445",
    "full avg10=0.08 avg60=0.05 avg300=0.01 total=65046",
)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("extra", [(), ("idle avg10=1 total=7",), ("", "some_other total=1")])
def test_a5_some_decides_in_any_order_and_other_lines_do_not(
    tmp_path: Path, turned: bool, extra: tuple[str, ...]
) -> None:
    path, meminfo = tmp_path / "memory", tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    lines = [*extra, *(reversed(LEAKED) if turned else LEAKED)]
    path.write_text("\n".join(lines) + "\n")
    first = psi.sample(str(path), str(meminfo), "boot")
    path.write_text("\n".join(lines).replace("total=17948445", "total=22948445") + "\n")
    second = psi.sample(str(path), str(meminfo), "boot")
    assert (first.stall, second.stall) == (17948445, 22948445)
    ten_seconds = second._replace(monotonic=first.monotonic + 10)
    assert stall_share(first, ten_seconds) == pytest.approx(0.5)


# --- A7: meminfo without MemAvailable ---

MEMORIES: List[Optional[str]] = [
    "",
    "MemTotal: 1048576 kB\nMemFree: 834036 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    "MemAvailable: 3000000 kB\n",
    "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
    "MemTotal: 4000000 kB\nMemAvailable: 18446744073709551615 kB\n",
    None,  # EACCES
]


@pytest.mark.parametrize("text", MEMORIES)
def test_a7_memory_that_is_not_told_is_unknown_and_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Optional[str]
) -> None:
    path = tmp_path / "meminfo"
    if text is None:
        monkeypatch.setattr(psi, "read_text", raising(PermissionError(errno.EACCES, "Permission denied")))
    else:
        path.write_text(text)
    found = psi.sample("/nowhere", str(path), "boot")
    assert (found.available, found.total) == (None, None)
    why = psi.missing_memory(str(path))
    assert str(path) in why and "\n" not in why


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("before", [Event(available=100), Event()])
def test_a7_unknown_ends_both_streaks_with_one_line_in_the_log(level: str, before: Event) -> None:
    now = watch.begin({}, {}, "")._replace(state=State(level=level), settle_at=float("inf"))
    said: List[str] = []
    for sample in samples([before] * 3 + [before._replace(available=None)] * 50):
        now, decision, commands = watch.on_sample(now, sample, SHORT)
        if sample.available is None:
            said += [command.text for command in commands if isinstance(command, watch.Say)]
            assert (decision.verdict, decision.over_for, decision.calm_for) == ("unknown", 0, 0)
            assert decision.action == ""
    assert len(said) == 1 and "available unknown" in said[0]


# --- A9: a container thrashes at its own limit ---


@pytest.mark.parametrize("available", [2000, 2400, 3900])  # MiB of 4000: at the ceiling and above
@pytest.mark.parametrize("stall", [0, 25, 85])
def test_a9_the_hosts_stall_does_not_count_while_the_host_has_plenty(available: int, stall: int) -> None:
    assert judge(Reading(stall / 100, available * MIB, 4000 * MIB), "etcd-only", SHORT) == "calm"
    assert actions([Event(stall=stall, available=available)] * 40, "full") == []


# --- A10: zram, and a loop that is not scheduled ---


@pytest.mark.parametrize(("floor", "verdict"), [("8%", "calm"), ("15%", "over"), ("1800MiB", "over")])
def test_a10_the_floor_can_be_a_share_or_an_amount(floor: str, verdict: str) -> None:
    reading = Reading(0.0, 1750016 * 1024, 16384 * MIB)
    assert judge(reading, "full", settings(MEMAVAILABLE_FLOOR=floor)) == verdict


@pytest.mark.parametrize("hole", [16, 240, 3000])
def test_a10_a_hole_while_awake_goes_on_with_over_and_never_with_calm(hole: int) -> None:
    over, calm = Event(stall=90, available=1000), Event()
    assert actions([over] * 6 + [over._replace(awake=hole)], "full") == ["down"]
    assert actions([calm] * 8 + [calm._replace(awake=hole)], "etcd-only") == []


@pytest.mark.parametrize("slept", [60, 240, 36000])
def test_a10_sleep_ends_both(slept: int) -> None:
    over = Event(available=100)
    assert actions([over, over, over._replace(slept=slept)], "full") == []
    assert actions([over, over, over], "full") == ["down"]


def test_a10_the_whole_hole_is_one_reading_from_the_difference_of_total() -> None:
    state = State(level="full")
    for sample in samples([Event(available=1000)] * 6 + [Event(stall=23, available=1000, awake=240)]):
        state, decision = policy.observe(state, sample, SHORT)
    assert decision.reading.pressure == pytest.approx(0.23 * 240 / 260, abs=0.02)
    assert isinstance(state.samples[-1], Sample)
