# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of deliberate faults: what each changes in `core`, which invariant must catch it, and why.

A fault belongs here where it breaks a promise by itself. What a second safeguard makes harmless (the gate's check of
intents beside the Lease, say) is dropped together with that safeguard, or left out: another step's intent taken for
ours, as `write_intent` never writes one step over another. How they are run is `mutants`.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple


class Edit(NamedTuple):
    """`found` stands exactly once in the file of `core` and is replaced by `put`."""

    file: str
    found: str
    put: str


class Mutant(NamedTuple):
    name: str
    edits: Tuple[Edit, ...]
    caught_by: Tuple[str, ...]  # names of `checks.INVARIANTS`: whichever of them breaks first
    why: str


def _one(name: str, file: str, found: str, put: str, caught_by: Tuple[str, ...], why: str) -> Mutant:
    return Mutant(name, (Edit(file, found, put),), caught_by, why)


_SINCE = """

def _since(then: str, now: str) -> float:
    def seconds(text: str) -> float:
        hours, minutes, rest = text[11:-1].split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest)

    return seconds(now) - seconds(then) if then else 0.0


def node_of("""

MUTANTS: Tuple[Mutant, ...] = (
    # -- one at a time
    _one(
        "no host lock",
        "step.py",
        "            yield TakeLock(purpose)\n",
        "            yield Now()\n",
        ("one acts", "intent first", "by one", "lease held", "cooldown", "takeover"),
        "Two processes of one host step at the same time, over each other's journal.",
    ),
    _one(
        "no second look",
        "step.py",
        "        yield from _still_ours(opened)\n        yield from ask_gate(opened)\n"
        "        yield from _not_lost(opened)\n",
        "        yield from _not_lost(opened)\n",
        ("one acts", "one below full", "lease held"),
        "Neither the gate nor the Lease is looked at after the intent is written, so of two rivals neither sees the "
        "other.",
    ),
    _one(
        "peers below full step all the same",
        "gate.py",
        '        ("full", _below_full),\n        ("intent", _in_step),\n',
        '        ("intent", _in_step),\n',
        ("one below full",),
        "The gate does not ask whether another server is below full, once the Lease is had.",
    ),
    _one(
        "takeover too early",
        "lease.py",
        "EXPIRED if age >= duration else HELD",
        "EXPIRED if age >= duration / 2 else HELD",
        ("takeover",),
        "The Lease is taken from another Node after half the holder's duration.",
    ),
    _one(
        "takeover after our own duration",
        "lease.py",
        "float(given) if given is not None and given > 0 else own_duration",
        "own_duration",
        ("takeover",),
        "A holder that gives a longer duration than ours loses the Lease before its own is over.",
    ),
    Mutant(
        "wall clock for expiry",
        (
            Edit("lease.py", "\n\ndef node_of(", _SINCE),
            Edit(
                "step.py",
                "leases.judge(found, plan.holder, seen, now.boottime, plan.settings.lease_seconds)",
                "leases.judge(found, plan.holder, seen._replace(boottime=now.boottime - leases._since("
                "found.renew_time, now.text)), now.boottime, plan.settings.lease_seconds)",
            ),
        ),
        ("takeover", "cycle", "converges"),
        "How old the Lease is, is told from its renewTime and this host's wall clock, which may be wrong by hours.",
    ),
    _one(
        "a new record seen as the old",
        "lease.py",
        "        and before.resource_version == lease.resource_version\n",
        "",
        ("takeover",),
        "A Lease that is renewed all the time counts as unchanged since it was first seen.",
    ),
    _one(
        "takeover of an open step",
        "step.py",
        "    if any(node.name == holder and marks.intent_of(node) for node in nodes):\n",
        "    if holder is None:\n",
        ("lease held",),
        "The Lease of a silent server is taken though its Node shows a step, which goes on when it is back.",
    ),
    _one(
        "frees another's Lease",
        "reconcile.py",
        "if found.holder and leases.node_of(found.holder) == plan.node:",
        "if found.holder:",
        ("takeover", "lease held"),
        "A settling lets go of a Lease that another server holds.",
    ),
    _one(
        "own Lease not re-entered",
        "lease.py",
        "        kind = OWN_NODE\n",
        "        kind = HELD\n",
        ("converges", "cycle"),
        "A server whose process died with the Lease waits for itself.",
    ),
    # -- conditional writes
    _one(
        "Node written over",
        "step.py",
        "yield ChangeNode(name, build(node), node.resource_version)",
        'yield ChangeNode(name, build(node), "")',
        ("intent first", "cordon", "one acts", "by one", "converges", "labelled"),
        "Writes of the Node are not conditional on what they were worked out from: late ones come through.",
    ),
    _one(
        "Lease written over",
        "lease.py",
        "        lease.resource_version,\n    )\n",
        '        "",\n    )\n',
        ("takeover", "lease held"),
        "Who takes the Lease does not see that another took it meanwhile.",
    ),
    _one(
        "clear without the step's id",
        "step.py",
        "        found = _our_intent(opened, node)\n        change =",
        "        found = marks.intent_of(node)\n        change =",
        ("intent first", "by one"),
        "The marks are written whatever step the Node shows: that of another process, or none.",
    ),
    _one(
        "an abandoned step goes on",
        "step.py",
        "    if opened.phase:\n        _our_intent(opened, _own(facts))\n",
        "",
        ("intent first",),
        "A step whose intent a person took off restarts k3s all the same.",
    ),
    # -- the order of a step
    Mutant(
        "intent before the journal",
        (
            Edit(
                "step.py",
                "        yield from _journal(opened, INTENT)\n    except",
                "        opened.phase = INTENT\n    except",
            ),
            Edit(
                "step.py",
                "        yield from write_intent(opened)\n        yield from _still_ours(opened)\n",
                "        yield from write_intent(opened)\n        yield from _journal(opened, INTENT)\n"
                "        yield from _still_ours(opened)\n",
            ),
        ),
        ("intent first",),
        "A process that is killed between the two leaves an intent that its host knows nothing of.",
    ),
    _one(
        "gate not asked before the restart",
        "step.py",
        '        yield from ask_gate(opened, restart=True)\n        opened.facts["restart"] = "asked"\n',
        '        opened.asked = (yield Now()).boottime\n        opened.facts["restart"] = "asked"\n',
        ("quorum", "intent first", "lease held"),
        "Between the second gate and the restart lies a drain, in which a peer may go.",
    ),
    _one(
        "an old gate counts",
        "settings.py",
        "GATE_AGE_SECONDS = 5.0",
        "GATE_AGE_SECONDS = 120.0",
        ("quorum",),
        "What the gate found a minute ago is taken for what is.",
    ),
    _one(
        "peers' own answers ignored",
        "gate.py",
        "    if answer is None:\n        return (",
        "    if answer is None or answer:\n        return () if answer else (",
        ("quorum",),
        "A peer that is gone stays Ready for 40 s: only its own API tells at once.",
    ),
    _one(
        "voters counted from Nodes",
        "gate.py",
        "    found: Dict[str, Member] = {}\n",
        "    names = [node.annotations.get(MEMBER_NAME) for node in facts.nodes]\n"
        "    facts = facts._replace(members=tuple(member for member in facts.members if member.name in names))\n"
        "    found: Dict[str, Member] = {}\n",
        ("quorum",),
        "A member that was added and never started has no Node, but counts for the quorum.",
    ),
    Mutant(
        "steps by two levels",
        (
            Edit(
                "levels.py",
                '    at = LEVELS.index(level) + 1\n    return LEVELS[at] if at < len(LEVELS) else ""\n',
                '    at = min(LEVELS.index(level) + 2, 2)\n    return LEVELS[at] if level != ETCD_ONLY else ""\n',
            ),
            Edit(
                "step.py",
                "    (FULL, CONTROL_PLANE): (_mark, _drain, _apply, _verify, _finish),\n",
                "    (FULL, ETCD_ONLY): (_mark, _drain, _apply, _verify, _finish),\n"
                "    (FULL, CONTROL_PLANE): (_mark, _drain, _apply, _verify, _finish),\n",
            ),
        ),
        ("by one",),
        "Down from full it goes to etcd-only at once.",
    ),
    _one(
        "label away before the verify",
        "step.py",
        "    (CONTROL_PLANE, FULL): (_apply, _verify, _finish),\n",
        "    (CONTROL_PLANE, FULL): (_mark, _apply, _finish),\n",
        ("labelled",),
        "On the way up the marks say full while the server is not there yet.",
    ),
    _one(
        "label after the restart",
        "step.py",
        "    (CONTROL_PLANE, ETCD_ONLY): (_drain_again, _mark, _apply, _verify, _finish),\n",
        "    (CONTROL_PLANE, ETCD_ONLY): (_drain_again, _apply, _mark, _verify, _finish),\n",
        ("labelled",),
        "On the way down k3s is restarted before its Node says for which level.",
    ),
    _one(
        "Lease released before the verify",
        "step.py",
        "    begun = yield Now()\n    while True:\n        try:\n            level = yield CurrentLevel()\n",
        "    begun = yield Now()\n    yield from _release(opened.plan)\n    while True:\n        try:\n"
        "            level = yield CurrentLevel()\n",
        ("lease held",),
        "Another server may begin while this one is not known to be well.",
    ),
    _one(
        "journal not removed",
        "step.py",
        "(BRING_BACK, IDENTITY, JOURNAL) if level == FULL else (JOURNAL,):",
        "(BRING_BACK, IDENTITY) if level == FULL else ():",
        ("converges", "cycle"),
        "A step that has ended stays open on the disk.",
    ),
    _one(
        "a person's cordon undone",
        "marks.py",
        'uncordon = node.unschedulable and "cordon" in ours and FIELD_MANAGER in node.cordoned_by',
        "uncordon = node.unschedulable",
        ("cordon",),
        "Back at full every cordon is taken off.",
    ),
    _one(
        "a cordon set meanwhile undone",
        "marks.py",
        ' and "cordon" in ours and FIELD_MANAGER in node.cordoned_by',
        ' and "cordon" in ours',
        ("cordon",),
        "A person who uncordons below full and cordons again is not told apart from us.",
    ),
    # -- pods
    _one(
        "pods without an owner evicted",
        "step.py",
        '    return bool(pod.owner_kind) or settings.drain_pods_without_owner == "end"\n',
        "    return True\n",
        ("pods",),
        "They are lost for good, though the settings say to refuse.",
    ),
    _one(
        "DaemonSet pods evicted",
        "step.py",
        'pod.mirror or pod.finished or pod.owner_kind == "DaemonSet"',
        "pod.mirror or pod.finished",
        ("pods", "cycle", "converges"),
        "They come back at once: no drain ends.",
    ),
    _one(
        "remaining pods ended",
        "step.py",
        'if final and left and settings.drain_remaining == "refuse":',
        "if final and left and not settings:",
        ("pods",),
        "DRAIN_REMAINING=refuse is not kept: the restart ends what a budget protects.",
    ),
    # -- ending what is open
    _one(
        "never resumes",
        "reconcile.py",
        '        RESUME,\n        {"journal": ("begun",), "intent": ("same",)',
        '        NOTHING,\n        {"journal": ("begun",), "intent": ("same",)',
        ("converges", "rule zero"),
        "A step that a killed process left stays open for ever.",
    ),
    _one(
        "recovery waits for the API",
        "reconcile.py",
        "    level, unknown = yield from _level(opened)\n    late",
        "    yield ReadNode(plan.node)\n    level, unknown = yield from _level(opened)\n    late",
        ("rule zero",),
        "With its own server down and a peer gone no API answers until this k3s is started again.",
    ),
    _one(
        "starts what a person stopped",
        "reconcile.py",
        "        if opened:\n            try:\n                if (yield StartStopped()):\n",
        "        if attempt >= 0:\n            try:\n                if (yield StartStopped()):\n",
        ("started",),
        "A k3s that is stopped with no step of ours open is none of our business.",
    ),
    _one(
        "unknown taken for full",
        "reconcile.py",
        '            yield Sleep(POLL_SECONDS)\n    return "", why\n',
        "            yield Sleep(POLL_SECONDS)\n    return FULL, why\n",
        ("labelled", "started"),
        "A k3s that does not tell its level is taken for one at full, and its marks are taken off.",
    ),
    _one(
        "repair without the Lease",
        "reconcile.py",
        "    yield from under_lease(opened, work())\n    if level == FULL:\n",
        "    yield from work()\n    if level == FULL:\n",
        ("lease held", "one acts"),
        "Marks are changed while another server may be in its step.",
    ),
    _one(
        "marks never repaired",
        "reconcile.py",
        '    Row(REPAIR, {"marks": ("differ",)}, "the Node\'s marks are made those of the level k3s runs at"),\n',
        "",
        ("converges", "cycle"),
        "Marks that another hand made wrong stay so, also at full.",
    ),
    _one(
        "Lease left behind",
        "reconcile.py",
        "    if row.action in (NOTHING, UNDO, CLOSE, LEFT, UNCURED):\n",
        "    if not row:\n",
        ("converges",),
        "Nobody lets go of the Lease of a killed process.",
    ),
    _one(
        "no note of the Lease",
        "step.py",
        "        why = yield from _note_now(HELD)\n",
        '        why = ""\n',
        ("converges",),
        "At full nothing tells the next watcher that a process died with the Lease.",
    ),
    _one(
        "trap never looked for",
        "reconcile.py",
        "    if opened or level != ETCD_ONLY:\n        return False\n",
        "    if opened or level:\n        return False\n",
        ("trap",),
        "A k3s locked behind its own address ends itself after 15 minutes, and the vote with it.",
    ),
    _one(
        "not brought back",
        "reconcile.py",
        '        yield WriteState(BRING_BACK, {"level": recorded})\n',
        "        yield Now()\n",
        ("brought back",),
        "A container made anew that lost the link to its record stays above the level it had.",
    ),
    # -- the watcher
    _one(
        "settling not tried again",
        "watch.py",
        "        settle_wait=later,\n        settle_at=now + wait,\n        was_below=level != FULL if level",
        "        settle_wait=later,\n        settle_at=NEVER,\n        was_below=level != FULL if level",
        ("converges", "cycle", "rule zero"),
        "What could not be ended at the first try is never ended.",
    ),
    Mutant(
        "no second look after an undone step",
        (
            Edit(
                "watch.py",
                '    if answer.get("undone") == "true" or (not answer and verb in (DOWN, UP)):',
                '    if answer.get("undone") == "never":',
            ),
            Edit("step.py", "    if opened.unsure and not began:\n", "    if not opened:\n"),
        ),
        ("converges",),
        "Neither the watcher nor the note on the disk has it looked for, so that a write of the intent that comes late "
        "stays on the Node, and blocks every other server.",
    ),
    _one(
        "a failed step starts no cooldown",
        "step.py",
        '    yield from close(opened, opened.start, "undone" if began else "")\n',
        '    yield from close(opened, opened.start, "")\n',
        ("cooldown",),
        "A step that is undone again and again drains the server each time.",
    ),
    _one(
        "a step by hand starts no cooldown",
        "watch.py",
        "    if last is None or level not in LEVELS or last == watch.state.last_step:\n",
        '    if last is None or level not in LEVELS or noted.get("by") == "hand":\n',
        ("cooldown",),
        "The watcher steps right after a person did.",
    ),
    _one(
        "a refusal starts the cooldown",
        "watch.py",
        "        state=policy.after_refusal(watch.state, now, message, reason, cure, verb),\n",
        "        state=policy.after_refusal(watch.state, now, message, reason, cure, verb)._replace(\n"
        "            last_step=LastStep(watch.state.samples[-1].boottime, watch.state.samples[-1].boot_id, verb)\n"
        "        ),\n",
        ("held up",),
        "A server that was refused once waits longer than it must, however short its memory is.",
    ),
    # -- what people ask for
    _one(
        "abandons without looking for life",
        "people.py",
        "    alive = yield from _signs_of_life(plan, name, patience)\n",
        '    alive = ""\n',
        ("people", "takeover", "one acts"),
        "The step of a server that merely does not answer is closed under it.",
    ),
    _one(
        "abandons the step of a living server",
        "people.py",
        "    if answers:\n",
        "    if answers and not name:\n",
        ("people",),
        "At etcd-only no kubelet renews anything: only its own answer tells that it lives.",
    ),
    _one(
        "forgets without looking for life",
        "people.py",
        "        alive = yield from _signs_of_life(plan, node.name, 0.0)\n",
        '        alive = ""\n',
        ("people",),
        "The marks of a server that merely does not answer are taken off, and its vote is unprotected.",
    ),
    _one(
        "forgets a server at etcd-only",
        "people.py",
        "    if DISABLED in answers:\n",
        "    if DISABLED in answers and not name:\n",
        ("people",),
        "Its label is what keeps others from deleting its Node.",
    ),
    _one(
        "recovers though an API answers",
        "people.py",
        '            said = "answers"\n',
        '            return "none is asked"\n',
        ("people",),
        "k3s is restarted with no Lease and no check, where both could have been had.",
    ),
    # -- deciding
    _one(
        "cooldown skipped",
        "policy.py",
        "    if last is None:\n        return 0.0\n    length",
        "    if last is None or settings:\n        return 0.0\n    length",
        ("cooldown",),
        "Steps follow each other as fast as readings allow.",
    ),
    _one(
        "cooldown restarted downwards",
        "policy.py",
        "return 0.0 if direction == DOWN else max(0.0, length - boottime)",
        "return max(0.0, length - boottime)",
        ("held up",),
        "A board that runs out of memory and reboots is held at full by it.",
    ),
    _one(
        "cooldown upwards not begun anew",
        "policy.py",
        "return 0.0 if direction == DOWN else max(0.0, length - boottime)",
        "return 0.0",
        ("cooldown",),
        "A board that has just booted goes up at once.",
    ),
    _one(
        "unknown taken for calm",
        "policy.py",
        "    if available is None or total is None:\n        return NOT_KNOWN\n",
        "    if available is None or total is None:\n        return CALM\n",
        ("calm",),
        "A file that cannot be read counts as no pressure.",
    ),
    _one(
        "no full window taken for calm",
        "policy.py",
        "    if reading.pressure is None:\n        return NOT_KNOWN\n",
        "    if reading.pressure is None:\n        return CALM\n",
        ("calm",),
        "Right after its start the watcher does not know the pressure yet.",
    ),
    Mutant(
        "a hole continues calm",
        (
            Edit(
                "policy.py", "None if broken or hole or verdict != CALM", "None if broken or verdict != CALM"
            ),
            Edit(
                "policy.py",
                "    if verdict == CALM and start and _is_long(start, sample, settings):\n        verdict = BETWEEN\n",
                "",
            ),
        ),
        ("calm",),
        "Nobody looked meanwhile.",
    ),
    _one(
        "a hole ends an over streak",
        "policy.py",
        "over_since = None if broken or verdict != OVER",
        "over_since = None if broken or hole or verdict != OVER",
        ("cycle",),
        "A host so short of memory that its watcher is starved never steps down.",
    ),
    _one(
        "sleep continues calm",
        "policy.py",
        " or awake <= 0 or slept > max(1.0, 0.01 * awake):",
        " or awake <= 0:",
        ("calm",),
        "The calm before a suspend counts for the time after it.",
    ),
    _one(
        "headroom not asked",
        "policy.py",
        "return CALM if available >= floor + (headroom.of(total) if headroom else 0) else BETWEEN",
        "return CALM if headroom or available else BETWEEN",
        ("calm",),
        "It goes up with too little memory for the level above.",
    ),
    _one(
        "calm not sustained",
        "policy.py",
        "        if calm_for < asked:\n",
        "        if calm_for < 0:\n",
        ("calm",),
        "One calm reading suffices to go up.",
    ),
    _one(
        "pressure not sustained",
        "policy.py",
        "        if over_for < settings.sustain_down_seconds:\n",
        "        if over_for < 0:\n",
        ("sustained",),
        "One reading suffices to go down.",
    ),
    _one(
        "stall counts above the ceiling",
        "policy.py",
        "reading.pressure if available < settings.pressure_ceiling * total else 0.0",
        "reading.pressure",
        ("sustained",),
        "A container that thrashes at its own limit steps the server down, with plenty of memory left.",
    ),
    _one(
        "a relapse asks no more calm",
        "policy.py",
        "            relapses = min(relapses + 1, MOST_RELAPSES)\n",
        "            relapses = min(relapses, MOST_RELAPSES)\n",
        ("calm",),
        "A server too small for what it runs goes up and down for ever.",
    ),
    _one(
        "manual goes up",
        "policy.py",
        '        elif settings.step_up != "automatic":\n',
        "        elif not settings:\n",
        ("switches",),
        "STEP_UP=manual leaves that to a person.",
    ),
    _one(
        "switches ignored by a step",
        "step.py",
        "    if plan.automatic and opened.start != opened.target:  # curing",
        "    if not plan:  # curing",
        ("switches",),
        "Held, paused or in dry-run it steps all the same.",
    ),
    _one(
        "switches ignored by settling",
        "reconcile.py",
        'still=(marks.stilled(node) if automatic else "") or "no"',
        'still="no"',
        ("switches",),
        "Held, paused or in dry-run the marks are repaired all the same.",
    ),
    _one(
        "never steps",
        "policy.py",
        'action, reason = DOWN, f"over for',
        'action, reason = "", f"over for',
        ("cycle",),
        "Nothing is ever done, and so nothing wrong.",
    ),
    _one(
        "never steps up",
        "policy.py",
        'action, reason = UP, f"calm for',
        'action, reason = "", f"calm for',
        ("cycle", "converges"),
        "A server that once stepped down stays there.",
    ),
)
