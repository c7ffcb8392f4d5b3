# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of the fault matrix: what is done, and in what state it must end. How it is done is faults_done.py's."""

from __future__ import annotations

from dataclasses import dataclass

from held_step import POINTS


@dataclass(frozen=True)
class Row:
    """A step of one server, by hand, and what befalls it.

    ``level`` is where the server must be in the end: the label, cordon, taint, record and what k3s runs at, with no
    open step, no journal, a free Lease, and every member id and Node uid as before.
    """

    name: str
    what: str
    fault: str
    """The function of faults_done.py."""
    at: str
    """The named point at which the step is held for it."""
    start: str
    to: str
    level: str
    takes_lease: bool = False
    """Whether the fault itself takes the Lease from an open step."""


RACES = 200
PRESSED_SECONDS = 1800
FLIPS = 50
SOAK_SECONDS = 1200
WITHOUT_API_SECONDS = 960

NAMES = [name for name, *_ in POINTS]
WORDS = {name: words for name, words, *_ in POINTS}
FORWARD = NAMES.index("effects-begun")
"""From this point on a step whose process dies is gone on with; before it, it is undone."""


def _killed(at: str, start: str, to: str) -> Row:
    return Row(
        name=f"killed-{'down' if to == 'etcd-only' else 'up'}-{at}",
        what=f"{start} to {to}; the service is killed (-9) when {WORDS[at]}",
        fault="kill_service",
        at=at,
        start=start,
        to=to,
        level=to if NAMES.index(at) >= FORWARD else start,
    )


def _k3s_killed(start: str, to: str) -> Row:
    return Row(
        name=f"server-killed-{'down' if to == 'etcd-only' else 'up'}",
        what=f"{start} to {to}; k3s is killed (-9) right after its restart",
        fault="kill_k3s_after_restart",
        at="restart-noted",
        start=start,
        to=to,
        level=to,
    )


DOWN = ("control-plane", "etcd-only")
UP = ("etcd-only", "control-plane")
FIRST = ("full", "control-plane")


def _befallen(
    name: str,
    what: str,
    fault: str,
    at: str,
    undone: bool,
    takes_lease: bool = False,
    way: tuple[str, str] = DOWN,
) -> Row:
    """A step that lives, and is gone on with in spite of what befalls it, or undone for it."""
    start, to = way
    words = f"{start} to {to}; when {WORDS[at]}, {what}"
    return Row(name, words, fault, at, start, to, start if undone else to, takes_lease)


def _undone(name: str, what: str, fault: str, at: str, takes_lease: bool = False) -> Row:
    return _befallen(name, what, fault, at, True, takes_lease)


def _together(name: str, what: str, fault: str) -> Row:
    """No step of its own is held: several servers do what they do, and all are at full in the end."""
    return Row(name, what, fault, NAMES[0], *FIRST, FIRST[0])


def _done(name: str, what: str, fault: str, at: str) -> Row:
    return _befallen(name, what, fault, at, False)


# In an order in which most begin where the one before has ended.
ROWS: tuple[Row, ...] = (
    *(_killed(at, *DOWN) for at in NAMES[:FORWARD]),
    _killed("node-marked", *DOWN),  # on the way up the marks are the last write's
    *(_killed(at, *UP) for at in NAMES[:FORWARD]),
    *(_killed(at, *way) for at in NAMES[FORWARD:] if at != "node-marked" for way in (UP, DOWN)),
    _k3s_killed(*UP),
    _k3s_killed(*DOWN),
    _undone(
        "lease-rewritten-before-effects",
        "the Lease gets another holder by hand",
        "rewrite_lease",
        "intent-shown",
        True,
    ),
    _undone(
        "lease-rewritten-before-restart",
        "the Lease gets another holder by hand",
        "rewrite_lease",
        "node-marked",
        True,
    ),
    _undone(
        "asleep-past-lease",
        "the service is stopped (SIGSTOP) past its Lease's end, which another has when it goes on (SIGCONT)",
        "sleep_past_lease",
        "node-marked",
        True,
    ),
    _undone("peer-down-between-gates", "a peer's k3s is stopped", "stop_peer", "intent-shown"),
    _undone("peer-down-before-restart", "a peer's k3s is stopped", "stop_peer", "node-marked"),
    _undone("lease-deleted", "the Lease is deleted, and the role is run again", "delete_lease", "intent-shown", True),
    _undone("cut-from-one-peer", "the network to one peer is cut", "cut_from_one", "intent-shown"),
    _undone("cut-from-all-peers", "the network to both peers is cut", "cut_from_all", "intent-shown"),
    _done(
        "cut-from-all-peers-at-restart",
        "the network to both peers is cut for a minute",
        "cut_at_restart",
        "restart-noted",
    ),
    _done("cut-from-its-api", "the network to its own API is cut", "cut_from_own_api", "intent-shown"),
    _done("host-restarted", "its host goes down, and comes back", "restart_host", "restart-noted"),
    _done("peer-slow", "a peer answers nothing for two of every three seconds", "slow_peer", "intent-shown"),
    _undone(
        "member-without-node",
        "etcd has a fourth voter that never started and has no Node",
        "add_member",
        "intent-shown",
    ),
    _done(
        "clock-wrong", "its clock goes ahead by five hours (clock port)", "clock_ahead", "intent-shown"
    ),
    _done("clock-back", "its clock goes back by five hours (clock port)", "clock_back", "intent-shown"),
    _befallen("record-disk-full", "the disk of its record is full", "fill_disk", "effects-begun", True, way=FIRST),
    _befallen(
        "record-disk-read-only", "the disk of its record is read-only", "read_only_disk", "effects-begun", True,
        way=FIRST,
    ),
    _befallen(
        "cordoned-by-a-person",
        "a person cordons the Node; it goes up again, and theirs is left",
        "cordon",
        "gate-passed",
        True,
        way=FIRST,
    ),
    Row(
        "flips",
        f"control-plane to etcd-only and back, {FLIPS} times",
        "flip",
        NAMES[0],
        *DOWN,
        level="control-plane",
    ),
    Row(
        "soak",
        f"{SOAK_SECONDS // 60} minutes at etcd-only with both peers' APIs there, then up",
        "soak",
        NAMES[0],
        *UP,
        level="control-plane",
    ),
    Row(
        "soak-one-api",
        f"{SOAK_SECONDS // 60} minutes at etcd-only, from its start on with one peer's API that it can reach, then up",
        "soak_with_one_api",
        NAMES[0],
        *UP,
        level="control-plane",
    ),
    Row(
        "soak-without-api",
        f"{WITHOUT_API_SECONDS // 60} minutes at etcd-only, from its start on with no API that it can reach, then up",
        "soak_without_api",
        NAMES[0],
        *UP,
        level="control-plane",
    ),
    _together("races", f"two servers are told to step at the same instant, {RACES} times", "race"),
    _together(
        "all-pressed",
        f"all three are pressed at once, and let go, for {PRESSED_SECONDS // 60} minutes of cycles",
        "press_all",
    ),
    _together(
        "one-machine",
        "all three watchers read the machine's own pressure, while a container thrashes at its limit on it",
        "press_the_machine",
    ),
)

# On a second bed where all rows are done, since they wait for almost all of their time.
BESIDE = ("flips", "soak", "soak-one-api", "soak-without-api")

# One of each kind.
SHORT = (
    "killed-down-intent-shown",
    "lease-rewritten-before-restart",
    "killed-down-node-marked",
    "server-killed-up",
)
