# SPDX-License-Identifier: GPL-3.0-or-later
"""What the bench reads of the kernel and of strace, and what it holds against a limit. No figure is measured here."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest
from ansible_collections.exadev.k3s_regrade.tests.bench import limits, process, rivals, trace

STATUS = """\
Name:\tpython3.11
VmLck:\t    8870 kB
VmRSS:\t   10712 kB
RssAnon:\t    4304 kB
voluntary_ctxt_switches:\t20
nonvoluntary_ctxt_switches:\t3
"""
ROLLUP = """\
55d0-7ffd ---p 00000000 00:00 0                          [rollup]
Rss:               10712 kB
Pss:                8872 kB
Pss_Anon:           4304 kB
Anonymous:          4304 kB
"""


def test_the_kernels_texts_are_read() -> None:
    assert process.kib(STATUS, "VmLck") == 8870
    assert (process.kib(ROLLUP, "Rss"), process.kib(ROLLUP, "Pss"), process.kib(ROLLUP, "Anonymous")) == (
        10712,
        8872,
        4304,
    )
    assert process.kib(STATUS, "VmSwap") == 0
    assert process.switches(STATUS) == 23
    assert process.on_cpu("4659693 1200 7\n") == pytest.approx(0.004659693)


def test_children_that_ended_count_and_a_name_may_hold_anything() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = f"7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 {2 * ticks} {ticks} 20 0 1 0 99"
    assert process.reaped(stat) == pytest.approx(3.0)


def test_a_process_is_looked_at_with_its_children() -> None:
    mine = process.look(os.getpid())
    assert mine.rss >= mine.pss >= mine.anonymous > 0
    assert mine.descriptors >= 3
    with pytest.raises(ProcessLookupError):
        process.look(2**22 + 1)  # beyond any process id


def test_load_is_what_happened_in_between() -> None:
    before = process.Weight(1, 1, 1, 0, 2.0, 100, 4)
    load = process.load(before, before._replace(cpu=2.03, switches=112), 60.0)
    assert load.cpu_share == pytest.approx(0.0005)
    assert load.switches_a_minute == pytest.approx(12.0)


TRACE = """\
77    rt_sigtimedwait([INT TERM CHLD], <unfinished ...>
77    <... rt_sigtimedwait resumed>0x7f, {tv_sec=5}, 8) = -1 EAGAIN (Resource temporarily unavailable)
77    openat(AT_FDCWD, "/proc/pressure/memory", O_RDONLY|O_CLOEXEC) = 3
77    read(3, "some avg10=0.00", 65536) = 90
--- SIGCHLD {si_signo=SIGCHLD} ---
77    close(3) = 0
77    openat(AT_FDCWD, "/proc/meminfo", O_RDONLY|O_CLOEXEC) = 3
77    openat(AT_FDCWD, "/proc/pressure/memory", O_RDONLY|O_CLOEXEC) = 3
77    read(3, "some avg10=0.00", 65536) = 90
78    read(3, "\\"/proc/pressure/memory\\"", 10) = 9
77    openat(AT_FDCWD, "/proc/pressure/memory", O_RDONLY|O_CLOEXEC) = 3
77    close(3) = 0
"""


def test_calls_are_counted_over_whole_samples() -> None:
    found = trace.a_sample(TRACE, "/proc/pressure/memory")
    assert found is not None
    assert (found.samples, found.a_sample) == (2, 3.5)
    assert found.kinds == {"openat": 1.5, "read": 1.5, "close": 0.5}


def test_what_was_not_traced_long_enough_is_not_told() -> None:
    assert trace.a_sample("", "/proc/pressure/memory") is None
    assert trace.a_sample(TRACE, "/proc/meminfo") is None


def test_a_rival_that_ended_is_told_in_its_own_words() -> None:
    assert rivals.last_words("starting\n\x1b[0;1;31mRequires the unified hierarchy\x1b[0m\n\n") == (
        "Requires the unified hierarchy"
    )
    assert rivals.last_words("\n") == "it said nothing"


LOOK = {"samples": 720, "descriptors": 5, "anonymous_kib": 4300, "blocks": 20000}
WELL: dict[str, Any] = {
    "idle": {
        "processes": {"watcher": {"rss_kib": 12 << 10, "cpu_share": 0.0005}},
        "api_calls": 0,
        "docker_calls": 0,
        "verdict": "calm",
    },
    "hour": {
        "looks": [LOOK, {**LOOK, "samples": 4320, "blocks": 20003}],
        "api_calls": 0,
        "docker_calls": 0,
        "verdict": "calm",
    },
    "peak": {"verb": "status", "bytes": 50 << 20, "setting": 56 << 20},
}


def test_figures_within_the_limits_are_no_problem() -> None:
    assert limits.broken(WELL) == []


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (
            ("idle", "processes", "watcher", "rss_kib"),
            12289,
            "takes 12289 KiB of RSS, expected 12288 at most",
        ),
        (
            ("idle", "processes", "watcher", "cpu_share"),
            0.00051,
            "takes 0.0510% of one core, expected 0.05% at most",
        ),
        (("idle", "api_calls"), 1, "idle: 1 api calls at full, expected none"),
        (("hour", "docker_calls"), 2, "hour: 2 docker calls at full, expected none"),
        (("idle", "verdict"), "over", "the verdict was over, expected calm"),
        (("hour", "looks", 1, "descriptors"), 6, "open file descriptors grew from 5 to 6 in 3600 samples"),
        (("hour", "looks", 1, "anonymous_kib"), 4304, "memory of its own (KiB) grew from 4300 to 4304"),
        (("hour", "looks", 1, "blocks"), 20065, "blocks held by Python grew from 20000 to 20065"),
        (("peak", "bytes"), (56 << 20) + 1, "raise it in core/settings.py"),
    ],
)
def test_each_limit_can_be_broken(where: tuple[Any, ...], value: float, said: str) -> None:
    figures: Any = copy.deepcopy(WELL)
    inner = figures
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    (problem,) = limits.broken(figures)
    assert said in problem


def test_ratios_are_ours_to_theirs_where_theirs_is_anything() -> None:
    ours, theirs = (
        {"pss_kib": 8000, "locked_kib": 8000, "cpu_share": 0.0001},
        {"pss_kib": 500, "locked_kib": 0},
    )
    assert limits.ratios(ours, theirs) == {"pss_kib": 16.0}
