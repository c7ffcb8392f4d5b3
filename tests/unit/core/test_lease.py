# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may take the Lease: field cases C21 to C25, with the shapes L1 to L5 as the API gives them."""

from __future__ import annotations

from typing import Dict, List, Optional

import pytest
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core import lease as leases
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.lease import Seen, judge, see
from ansible_collections.exadev.k3s_regrade.plugins.module_utils.regrade.core.model import Lease

ME = "pi1/9f00"
OURS = 60.0
L1 = Lease("pi2", 900, "2026-09-20T11:39:00.000000Z", "2026-09-20T11:40:00.000000Z", 3, "91")  # an hour ahead
L2 = Lease("pi2", 900, "", "2026-09-20T10:35:00.000000Z", 0, "91")
L3 = Lease("gone-node", None, "", "", 0, "91")
L4 = Lease("pi1", 900, "", "2026-09-20T10:39:00.000000Z", 0, "91")
L5 = Lease("", 1, "", "2026-09-20T10:39:00.000000Z", 0, "91")


def kind(lease: Lease, seen_for: float) -> str:
    seen = see(lease, None, 1000.0, "boot")
    return judge(lease, ME, see(lease, seen, 1000.0 + seen_for, "boot"), 1000.0 + seen_for, OURS).kind


@pytest.mark.parametrize(
    ("lease", "seen_for", "expected"),
    [
        (L1, 0, leases.HELD),
        (L1, 899, leases.HELD),
        (L1, 900, leases.EXPIRED),
        (L2, 61, leases.HELD),  # our own 60 s do not count for a longer holder
        (L2, 900, leases.EXPIRED),
        (L3, 59, leases.HELD),
        (L3, 60, leases.EXPIRED),  # no duration: ours
        (L3._replace(duration_seconds=0), 59, leases.HELD),
        (L4, 0, leases.OWN_NODE),
        (L4._replace(holder="pi1/0b"), 0, leases.OWN_NODE),
        (L4._replace(holder="pi10/0b"), 0, leases.HELD),
        (L4._replace(holder=ME), 0, leases.OURS),
        (L5, 0, leases.FREE),
    ],
)
def test_who_has_the_lease(lease: Lease, seen_for: float, expected: str) -> None:
    assert kind(lease, seen_for) == expected


def test_any_change_of_the_record_begins_the_age_anew() -> None:
    seen = see(L2, None, 0.0, "boot")
    renewed = L2._replace(resource_version="92")
    again = see(renewed, seen, 890.0, "boot")
    assert judge(renewed, ME, again, 900.0, OURS).kind == leases.HELD


def test_what_was_seen_before_a_boot_counts_for_nothing() -> None:
    seen = see(L2, None, 0.0, "boot")
    assert see(L2, seen, 1000.0, "next boot").boottime == 1000.0


def test_an_observation_from_the_future_counts_for_nothing() -> None:
    assert see(L2, Seen("91", "pi2", 5000.0, "boot"), 10.0, "boot").boottime == 10.0


def test_an_observation_survives_the_disk_and_nonsense_does_not() -> None:
    seen = see(L2, None, 12.5, "boot")
    assert leases.seen_from(leases.seen_document(seen)) == seen
    broken: List[Optional[Dict[str, object]]] = [None, {}, {"holder": "x"}]
    for document in [*broken, {**leases.seen_document(seen), "boottime": "soon"}]:
        assert leases.seen_from(document) is None


def test_records_keep_the_resource_version_they_were_worked_out_from() -> None:
    taken = leases.taken(L5, ME, "2026-01-01T00:00:00.000000Z", 60)
    assert taken == Lease(ME, 60, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z", 1, "91")
    assert leases.renewed(taken, "2026-01-01T00:00:15.000000Z").acquire_time == taken.acquire_time
    assert leases.released(taken, "2026-01-01T00:00:20.000000Z").holder == ""
    assert leases.taken(taken, ME, "2026-01-01T00:00:30.000000Z", 60).transitions == 1
