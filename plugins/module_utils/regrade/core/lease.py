# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The cluster's one Lease: who may take it, and the records to write.

What holds: at most one holder at a time by the API's compare-and-swap on resourceVersion. Another's
record is taken over only after *we* saw it unchanged for the *holder's* own duration on CLOCK_BOOTTIME,
and only while its Node shows no open step. Its times are never compared with a clock of ours.
What does not hold: fencing. A holder that sleeps for longer than its Lease does not know it lost it;
exclusion comes from the intent on the Node and the second look at the Lease (`step`).

Pure: no I/O, no clock. A record is *the same* while its resourceVersion is.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional

from .model import Lease

FREE = "free"
OURS = "ours"  # this very process
OWN_NODE = "own-node"  # an earlier process of this server; we hold the host lock, so it is gone
EXPIRED = "expired"
HELD = "held"


class Seen(NamedTuple):
    """Since when a record was seen unchanged, on this host's CLOCK_BOOTTIME."""

    resource_version: str
    holder: str
    boottime: float
    boot_id: str


class Verdict(NamedTuple):
    kind: str  # FREE, OURS, OWN_NODE, EXPIRED or HELD
    holder: str
    age: float  # seconds the record was seen unchanged
    duration: float  # seconds it must be before it may be taken over


def node_of(holder: str) -> str:
    """The Node of a holder `<node>/<random>`; a holder without a slash is taken for a Node's name."""
    return holder.split("/", 1)[0]


def see(lease: Lease, before: Optional[Seen], boottime: float, boot_id: str) -> Seen:
    """What is known of the record after one more look."""
    now = Seen(lease.resource_version, lease.holder, boottime, boot_id)
    if (
        before
        and before.boot_id == boot_id
        and before.resource_version == lease.resource_version
        and before.holder == lease.holder
        and before.boottime <= boottime
    ):
        return before
    return now


def judge(lease: Lease, me: str, seen: Seen, boottime: float, own_duration: float) -> Verdict:
    """Who has the Lease. A holder that gives no duration gets ours."""
    given = lease.duration_seconds
    duration = float(given) if given is not None and given > 0 else own_duration
    age = boottime - seen.boottime
    if not lease.holder:
        kind = FREE
    elif lease.holder == me:
        kind = OURS
    elif node_of(lease.holder) == node_of(me):
        kind = OWN_NODE
    else:
        kind = EXPIRED if age >= duration else HELD
    return Verdict(kind, lease.holder, age, duration)


def taken(lease: Lease, me: str, now_text: str, duration: float) -> Lease:
    """The record that makes us the holder, to be written over `lease`."""
    return Lease(
        me,
        int(duration),
        now_text,
        now_text,
        lease.transitions + (lease.holder != me),
        lease.resource_version,
    )


def renewed(lease: Lease, now_text: str) -> Lease:
    return lease._replace(renew_time=now_text)


def released(lease: Lease, now_text: str) -> Lease:
    """Free, never deleted: the role makes the Lease, and nobody else may."""
    return lease._replace(holder="", renew_time=now_text)


def seen_document(seen: Seen) -> Dict[str, object]:
    return dict(seen._asdict())


def seen_from(document: Optional[Dict[str, object]]) -> Optional[Seen]:
    """What `seen_document` made; None where it is absent or not of that form.

    A time that no clock shows would make the record look old, and the Lease be taken from its holder.
    """
    try:
        if not document:
            return None
        boottime = float(str(document["boottime"]))
        if not 0 <= boottime < float("inf"):
            return None
        return Seen(
            str(document["resource_version"]), str(document["holder"]), boottime, str(document["boot_id"])
        )
    except (KeyError, ValueError):
        return None
