# SPDX-License-Identifier: GPL-3.0-or-later
"""What PSI and meminfo say; and that what they do not say is unknown, never zero."""

from __future__ import annotations

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.reading import (
    Sample,
    parse_meminfo,
    parse_pressure,
    stall_share,
)
from hypothesis import given
from hypothesis import strategies as st

# field case A5: Linux 6.12 leaks counts of `full`
KERNEL_6_12 = """\
some avg10=79.51 avg60=23.28 avg300=5.32 total=17948445
full avg10=0.08 avg60=0.05 avg300=0.01 total=65046
"""


def test_some_is_read_in_any_order_and_full_is_not_used() -> None:
    assert parse_pressure(KERNEL_6_12) == 17948445
    assert parse_pressure("\n".join(reversed(KERNEL_6_12.splitlines()))) == 17948445
    assert parse_pressure("cpu some nonsense\n" + KERNEL_6_12 + "more total=1\n") == 17948445


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00\n",
        "some avg10=0.00 total=\n",
        "some avg10=0.00 total=-3\n",
        "some avg10=0.00 total=12.5\n",
        "some avg10=0.00 total=١٢\n",
        "something total=3",
    ],
)
def test_what_is_malformed_is_unknown_never_zero(text: str) -> None:
    assert parse_pressure(text) is None


def test_memory() -> None:
    text = "MemTotal:        4028440 kB\nMemFree: 1 kB\nMemAvailable:    3000000 kB\nSwapTotal: 0 kB\n"
    assert parse_meminfo(text) == (3000000 * 1024, 4028440 * 1024)


@pytest.mark.parametrize(
    "text",
    [
        "",
        # field case A7: OpenVZ, and kernels before 3.14
        "MemTotal: 1048576 kB\nMemFree: 834036 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
        "MemAvailable: 5 kB\n",
        "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
        "MemTotal: 10 kB\nMemAvailable: 11 kB\n",
        "MemTotal: 10 kB\nMemAvailable: x kB\n",
        "MemTotal: 10 kB\nMemAvailable: -1 kB\n",
        "MemTotal: 10 MB\nMemAvailable: 1 MB\n",
    ],
)
def test_memory_that_is_not_told_is_unknown(text: str) -> None:
    assert parse_meminfo(text) == (None, None)


@given(st.text())
def test_no_text_makes_the_parsers_fail(text: str) -> None:
    stall = parse_pressure(text)
    assert stall is None or stall >= 0
    available, total = parse_meminfo(text)
    assert (available is None) == (total is None)


def sample(at: float, stall: int | None, boot: str = "b") -> Sample:
    return Sample(at, at, boot, stall, 1, 2)


def test_share_of_the_time_between() -> None:
    assert stall_share(sample(0, 0), sample(10, 2_500_000)) == 0.25
    assert stall_share(sample(0, 0), sample(10, 99_000_000)) == 1.0
    assert stall_share(sample(0, 5), sample(10, 4)) is None
    assert stall_share(sample(0, None), sample(10, 4)) is None
    assert stall_share(sample(0, 0), sample(0, 4)) is None
    assert stall_share(sample(0, 0), sample(10, 4, "other")) is None
