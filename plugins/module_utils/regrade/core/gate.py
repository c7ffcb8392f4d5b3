# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the exadev.k3s_regrade contributors
"""The gate: may this server step now? A pure function from observed facts to a list of named checks.

Every voter but this one must be whole, so that a quorum stands while this one restarts. The voters are
etcd's own member list, never the Nodes: a Node can be gone, or stay long after its member.

| check     | holds when                                                                                  |
|-----------|---------------------------------------------------------------------------------------------|
| members   | etcd lists its members; none is a learner or unstarted; each is exactly one Node, and back    |
| quorum    | the voters without this one still make a quorum: at least three                               |
| ready     | every other voter's Node is Ready                                                             |
| voter     | its EtcdIsVoter is True, where published                                                      |
| full      | it is at full: no level label, no mark of ours                                                |
| intent    | it shows no open step                                                                         |
| serviced  | no other tool works on it (kured; a cordon without our mark, as system-upgrade-controller's) |
| fresh     | its node lease was seen to change within 40 s on our clock                                    |
| api       | its own API answers `/readyz/etcd` and a read of the Lease                                    |

Known limit: while this server leads etcd, `api` cannot show that the others see each other.
A dead peer that a person leaves out (`despite`) is not asked about; only `quorum` still counts it, as a voter.
A check that was not asked (an earlier one refuses already, or `status` does not wait) has `ok` None.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Dict, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import urlsplit

from .levels import FULL
from .marks import MEMBER_ADDRESS, MEMBER_NAME, OURS, REMOVED_MEMBER, intent_of, level_of
from .model import Member, Node, PeerAnswer
from .settings import FRESH_SECONDS

CHECKS = ("members", "quorum", "ready", "voter", "full", "intent", "serviced", "fresh", "api")
KURED = ("weave.works/kured-reboot-in-progress", "kured.dev/reboot-in-progress")


class Check(NamedTuple):
    check: str
    ok: Optional[bool]
    detail: str


class Facts(NamedTuple):
    """What was observed. None is not asked; an empty tuple or dict is an answer."""

    own: str  # this server's Node name
    nodes: Tuple[Node, ...]  # every Node with the etcd role, from one LIST
    members: Optional[Tuple[Member, ...]]
    members_error: str = ""  # why the list could not be read
    ages: Optional[Dict[str, Optional[float]]] = None  # Node name -> seconds since its lease surely changed
    peers: Optional[Dict[str, PeerAnswer]] = None  # Node name -> what its own API said
    despite: Tuple[str, ...] = ()  # Nodes of peers that a person leaves out of the checks


class Watch(NamedTuple):
    """Node leases as seen over time, on CLOCK_BOOTTIME.

    `last`: name -> (renewTime, when this value was last asked for). `changed`: name -> a time after which
    it surely changed: the last time the *old* value was asked for. So a long pause between two looks never
    makes an old renewal look fresh.
    """

    last: Mapping[str, Tuple[str, float]] = MappingProxyType({})
    changed: Mapping[str, float] = MappingProxyType({})


def look(watch: Watch, renewals: Dict[str, str], boottime: float) -> Watch:
    """The watch after one more read of all node leases."""
    last, changed = dict(watch.last), dict(watch.changed)
    for name, renewed in renewals.items():
        before = last.get(name)
        if before and before[0] != renewed and renewed:
            changed[name] = before[1]
        last[name] = (renewed, boottime)
    return Watch(last, changed)


def ages(watch: Watch, boottime: float) -> Dict[str, Optional[float]]:
    """Name -> how long ago the lease changed at the most; None where it was not seen to change."""
    return {name: boottime - watch.changed[name] if name in watch.changed else None for name in watch.last}


def match(facts: Facts) -> Tuple[Dict[str, Member], str]:
    """(Node name -> its member, what does not fit)."""
    if facts.members is None:
        return {}, facts.members_error or "etcd's member list was not read"
    found: Dict[str, Member] = {}
    for member in facts.members:
        if not member.name:
            return {}, f"etcd member {member.id} ({_hosts(member)}) was added but never started"
        if member.learner:
            return {}, f"etcd member {member.name} is a learner, not yet a voter"
        fits = [
            node
            for node in facts.nodes
            if node.annotations.get(MEMBER_NAME) == member.name and _address(node) in _hosts(member)
        ]
        if len(fits) != 1:
            return {}, (
                f"etcd member {member.name} ({', '.join(_hosts(member))}) belongs to "
                f"{' and '.join(node.name for node in fits) or 'no Node'}, expected exactly one Node"
            )
        if fits[0].name in found:
            return (
                {},
                f"Node {fits[0].name} fits two etcd members, {found[fits[0].name].name} and {member.name}",
            )
        found[fits[0].name] = member
    for node in facts.nodes:
        if node.name not in found and node.name not in facts.despite:
            removed = next((key for key in REMOVED_MEMBER if key in node.annotations), "")
            return {}, (
                f"Node {node.name} has the etcd role but no etcd member"
                + (f" (annotation {removed}): a person must delete that Node" if removed else "")
            )
    if facts.own not in found:
        return {}, f"this server's Node {facts.own} is not among the Nodes with an etcd member"
    return found, ""


def own_member(facts: Facts) -> Optional[Member]:
    return match(facts)[0].get(facts.own)


def check(facts: Facts) -> Tuple[Check, ...]:
    """Every check with its answer, in the table's order."""
    members, misfit = match(facts)
    peers = peer_nodes(facts)
    voters = len(members)
    without = f"; left out by hand: {', '.join(facts.despite)}" if facts.despite else ""
    results = [Check("members", not misfit, misfit or f"{voters} voters, each with its Node{without}")]
    if misfit:
        return (
            *results,
            *(Check(name, None, "not asked") for name in CHECKS[1:]),
        )
    results.append(
        Check(
            "quorum",
            voters - 1 >= voters // 2 + 1,
            f"{voters - 1} of {voters} voters stay, a quorum is {voters // 2 + 1}{without}",
        )
    )
    for name, test in (
        ("ready", _unready),
        ("voter", _no_voter),
        ("full", _below_full),
        ("intent", _in_step),
        ("serviced", _serviced),
    ):
        wrong = [text for text in map(test, peers) if text]
        results.append(Check(name, not wrong, "; ".join(wrong)))
    if facts.ages is None:
        results.append(Check("fresh", None, "not asked"))
    else:
        stale = [node.name for node in peers if not _is_fresh(facts.ages.get(node.name))]
        results.append(
            Check(
                "fresh",
                not stale,
                ""
                if not stale
                else f"the node lease of {', '.join(stale)} did not change within {FRESH_SECONDS:.0f} s",
            )
        )
    if facts.peers is None:
        results.append(Check("api", None, "not asked"))
    else:
        wrong = [text for node in peers for text in _unanswered(node, facts.peers.get(node.name))]
        results.append(Check("api", not wrong, "; ".join(wrong)))
    return tuple(results)


def busy(nodes: Tuple[Node, ...], own: str, despite: Tuple[str, ...] = ()) -> str:
    """Why no step can be taken whatever the members say: another server is below full or in a step."""
    for node in nodes:
        for check_name, wrong in (("full", _below_full(node)), ("intent", _in_step(node))):
            if wrong and node.name != own and node.name not in despite:
                return f"{check_name}: {wrong}"
    return ""


def risk(facts: Facts) -> str:
    """In numbers, what a restart of this server risks while the peers of `despite` are taken for dead."""
    members, _misfit = match(facts)
    voters, dead = len(members), [name for name in facts.despite if name in members]
    stay, quorum = voters - 1 - len(dead), voters // 2 + 1
    text = (
        f"of {voters} voters {', '.join(dead) or 'none'} {'are' if len(dead) > 1 else 'is'} left out and this one "
        f"restarts, so {stay} {'stays' if stay == 1 else 'stay'} meanwhile; a quorum is {quorum}"
    )
    if stay >= quorum:
        return f"{text}: the cluster goes on, also if this restart does not come back, with {stay - quorum} to spare"
    return (
        f"{text}: unless one that is left out lives, nothing can be written until this one is back, and if this "
        "restart does not come back the cluster is down until another voter is"
    )


def refusal(checks: Tuple[Check, ...], strict: bool = True) -> str:
    """The first reason the gate refuses for, "" where it lets pass. Not strict: what was not asked may
    pass."""
    for item in checks:
        if item.ok is False or (strict and item.ok is None):
            return f"{item.check}: {item.detail}"
    return ""


def reason_of(refused: str) -> str:
    """The check that a text of `refusal` or `busy` begins with."""
    word = refused.partition(":")[0]
    return word if word in CHECKS else "other"


def peer_nodes(facts: Facts) -> Tuple[Node, ...]:
    """The other voters' Nodes that are asked about; empty where the members do not fit the Nodes."""
    members, _misfit = match(facts)
    skipped = (facts.own, *facts.despite)
    return tuple(node for node in facts.nodes if node.name in members and node.name not in skipped)


def _hosts(member: Member) -> Tuple[str, ...]:
    return tuple(urlsplit(url).hostname or url for url in member.peer_urls)


def _address(node: Node) -> str:
    return node.annotations.get(MEMBER_ADDRESS) or (node.addresses[0] if node.addresses else "")


def _is_fresh(age: Optional[float]) -> bool:
    return age is not None and age <= FRESH_SECONDS


def _unready(node: Node) -> str:
    return "" if node.ready else f"{node.name} is not Ready"


def _no_voter(node: Node) -> str:
    return f"{node.name} has EtcdIsVoter=False" if node.etcd_is_voter is False else ""


def _below_full(node: Node) -> str:
    if level_of(node) != FULL:
        return f"{node.name} is at {level_of(node)}"
    return f"{node.name} still carries our marks ({OURS})" if OURS in node.annotations else ""


def _in_step(node: Node) -> str:
    intent = intent_of(node)
    return f"{node.name} is in a step from {intent.start} to {intent.target}" if intent else ""


def _serviced(node: Node) -> str:
    for key in KURED:
        if key in node.annotations:
            return f"{node.name} is being rebooted by kured"
    if node.unschedulable and OURS not in node.annotations:
        return f"{node.name} is cordoned by someone else"
    return ""


def _unanswered(node: Node, answer: Optional[PeerAnswer]) -> Tuple[str, ...]:
    if answer is None:
        return (f"{node.name} was not asked",)
    return tuple(
        f"{node.name}: {what}: {text}"
        for what, text in (("/readyz/etcd", answer.readyz_etcd), ("read of the Lease", answer.lease_read))
        if text
    )
