# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""What a step may ask of the world: one small value a request, and who answers it.

`step` and `reconcile` are generators: they yield these and are sent the answers, or have the errors of
`errors` thrown in. So the same code runs on the real ports (`app.driver`) and on simulated ones.
Shapes only; each request says in its comment what is sent back.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Generator, NamedTuple, Tuple, TypeVar, Union

from .model import Lease, Node, NodeChange, Pod

T = TypeVar("T")


class Instant(NamedTuple):
    """The answer to Now."""

    boottime: float  # CLOCK_BOOTTIME, seconds
    boot_id: str
    text: str  # UTC for the API, six fractional digits; for show, never compared


# This host
class TakeLock(NamedTuple):  # -> None, StepRefused where another process of this host has it
    purpose: str


class FreeLock(NamedTuple):  # -> None
    pass


class Now(NamedTuple):  # -> Instant
    pass


class NewId(NamedTuple):  # -> str, random
    pass


class Sleep(NamedTuple):  # -> None
    seconds: float


class Log(NamedTuple):  # -> None; one line for the log
    text: str


class Say(NamedTuple):  # -> None; one line for the person who waits, at once
    text: str


class Confirm(NamedTuple):  # -> None; a RegradeError where the person does not agree, or nobody can be asked
    text: str


class ReadState(NamedTuple):  # -> Optional[Dict[str, object]]; StateLost
    name: str


class WriteState(NamedTuple):  # -> None, flushed; StateLost
    name: str
    document: Dict[str, object]


class RemoveState(NamedTuple):  # -> None; StateLost
    name: str


class ReadNote(NamedTuple):  # -> Dict[str, str]; the note of the last step, {} where there is none
    pass


class NoteStep(NamedTuple):  # -> None; StateLost; the last step, where the watcher looks for it
    pairs: Dict[str, str]


# This server
class CurrentLevel(NamedTuple):  # -> str; LevelUnknown
    pass


class Apply(NamedTuple):  # -> None; ApplyFailed, StepRefused
    level: str
    before_restart: Callable[
        [], Generator[Any, Any, None]
    ]  # run where the actuator asks; StepRefused forbids
    note: Callable[[Dict[str, str]], Generator[Any, Any, None]]
    facts: Dict[str, str]  # noted so far, by whichever process had the step; `restart: asked` once it was
    may_start: bool = True  # a step is open, so a k3s that is stopped is started; else somebody stopped it


class Preflight(NamedTuple):  # -> None; RegradeError where the platform would deny the step
    pass


class RecordedLevel(NamedTuple):  # -> str, "" where the platform keeps none; RegradeError
    pass


class Trapped(NamedTuple):  # -> bool; LevelUnknown
    pass


class StartStopped(NamedTuple):  # -> bool: whether our k3s had to be started
    pass


class Started(NamedTuple):  # -> str: which start of k3s runs, another text for each; "" where not told; RegradeError
    pass


class ReadMembers(NamedTuple):  # -> Tuple[Member, ...]; LevelUnknown
    pass


class Recover(NamedTuple):  # -> None; ApplyFailed. The record is removed and k3s restarted, asking no cluster
    pass


class StartCommand(NamedTuple):  # -> None; RegradeError where it cannot be started
    words: Tuple[str, ...]


class CommandEnded(NamedTuple):  # -> Optional[int], its exit code; None while it runs, after this long
    seconds: float


class BeginMeter(NamedTuple):  # -> None; measures from now on, beside the step
    start: str
    target: str


class EndMeter(
    NamedTuple
):  # -> Tuple[Optional[float], Optional[float]]: seconds without etcd, without the API
    pass


# The cluster; every one of these may be answered with a ClusterError
class ReadLease(NamedTuple):  # -> Lease
    pass


class WriteLease(NamedTuple):  # -> Lease; Conflict
    lease: Lease


class BeginRenewal(NamedTuple):  # -> None; renews from now on, beside the step
    holder: str


class RenewalLost(NamedTuple):  # -> str: why a renewal was lost, "" while none was
    pass


class EndRenewal(NamedTuple):  # -> None; no renewal is under way once answered
    pass


class ReadNodes(NamedTuple):  # -> Tuple[Node, ...], all with the etcd role, one LIST
    pass


class ReadNode(NamedTuple):  # -> Node; Missing
    name: str


class ChangeNode(NamedTuple):  # -> Node; Conflict
    name: str
    change: NodeChange
    resource_version: str


class ReadRenewals(NamedTuple):  # -> Dict[str, str]: Node name -> renewTime of its node lease
    pass


class AskPeer(NamedTuple):  # -> PeerAnswer, never an error
    address: str


class ListPods(NamedTuple):  # -> Tuple[Pod, ...]
    node: str


class Evict(NamedTuple):  # -> Eviction
    pod: Pod


class RecordEvent(NamedTuple):  # -> None
    node: Node
    kind: str
    reason: str
    message: str


Request = Union[
    TakeLock,
    FreeLock,
    Now,
    NewId,
    Sleep,
    Log,
    Say,
    Confirm,
    ReadState,
    WriteState,
    RemoveState,
    ReadNote,
    NoteStep,
    CurrentLevel,
    Apply,
    Preflight,
    RecordedLevel,
    Trapped,
    StartStopped,
    Started,
    ReadMembers,
    Recover,
    StartCommand,
    CommandEnded,
    BeginMeter,
    EndMeter,
    ReadLease,
    WriteLease,
    BeginRenewal,
    RenewalLost,
    EndRenewal,
    ReadNodes,
    ReadNode,
    ChangeNode,
    ReadRenewals,
    AskPeer,
    ListPods,
    Evict,
    RecordEvent,
]
Steps = Generator[Request, Any, T]
