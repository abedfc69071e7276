"""The commands of a move of slots, at its source and at its target (ADR 0026); the rules are in `slot_moves`."""

from partibus.partition.core.events import NumbersTaken, SessionStateSet
from partibus.partition.core.session_locks import accept_session, end_idle_session
from partibus.partition.core.slot_moves import Given, SlotRules, Taken, record_rules
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import (
    AskGroups,
    AwaitHeld,
    FinishSlots,
    GiveSlots,
    OpenGroups,
    ScanSlots,
    SetStates,
    TakeSlots,
)
from partibus.partition.protocol.keys import NUMBERS_FULL
from partibus.partition.protocol.load_requests import GroupsLoad, SlotScan
from partibus.partition.protocol.replies import Done, GroupsGone, GroupsHeld, SessionElsewhere, SlotsGiven, SlotsScanned
from partibus.partition.protocol.slots import slots_in


def take_slots(state: PartitionState, command: TakeSlots, now_ms: int, step: Step) -> None:
    """Store messages of slots from now on, numbered above all that the source has given out."""
    rules = _rules(state)
    if state.next_sequence < command.first_sequence < NUMBERS_FULL:
        # Also when the command is repeated: the source may have used up the numbers below the first one since.
        state.next_sequence = command.first_sequence
        step.events.append(NumbersTaken())
    if not rules.has_version(command.version, taken=True):
        is_held = state.sessions is not None
        rules.take(command.runs, Taken(command.source, command.version, command.until_ms, is_held))
        record_rules(rules, state.inbound_marks, step)
        _reconsider(state, rules)
    elif rules.screen_until(command.version, command.until_ms):
        record_rules(rules, state.inbound_marks, step)
    step.replies.append(Done(command.request))


def give_slots(state: PartitionState, command: GiveSlots, now_ms: int, step: Step) -> None:
    """Refuse messages of slots from now on."""
    rules = _rules(state)
    given = rules.has_version(command.version, taken=False)
    if not given and state.next_sequence <= command.sequence_max:
        rules.give(command.runs, Given(command.target, command.version))
        record_rules(rules, state.inbound_marks, step)
        given = True
    step.replies.append(SlotsGiven(command.request, given, state.next_sequence))


def finish_slots(state: PartitionState, command: FinishSlots, now_ms: int, step: Step) -> None:
    """Offer all groups of a move."""
    rules = _rules(state)
    rules.finish(command.version, now_ms)
    record_rules(rules, state.inbound_marks, step)
    _reconsider(state, rules)
    gate = rules.gate
    for name in [name for name in gate.accepts if not rules.holds(name)]:
        for asked in gate.answered(name):
            accept_session(state, asked, now_ms, step)
    step.replies.append(Done(command.request))


def await_held(state: PartitionState, command: AwaitHeld, now_ms: int, step: Step) -> None:
    """Take a request of the mover; the machine answers it (`slot_moves.tell_held`)."""
    before = _rules(state).gate.begin(command)
    if before is not None:
        step.replies.append(GroupsHeld(before.request, []))


def ask_groups(state: PartitionState, command: AskGroups, now_ms: int, step: Step) -> None:
    """Tell which groups have no messages here; sessions of them without messages end."""
    sessions = state.sessions
    assert sessions is not None, "groups are sessions"
    unwritten: set[str | None] = (
        set() if state.express is None else {entry.session for entry in state.express.unwritten.values()}
    )
    names = []
    for name in command.names:
        session = sessions.held.get(name)
        if name not in unwritten and (session is None or end_idle_session(state, session, now_ms, step)):
            names.append(name)
    if names:
        step.loads.append(GroupsLoad(command, names))
    else:
        step.replies.append(GroupsGone(command.request, []))


def groups_found(
    state: PartitionState, load: GroupsLoad, found: list[tuple[str, bytes | None]], now_ms: int, step: Step
) -> None:
    """Answer the mover. A session that was accepted while the store was asked has messages."""
    assert state.sessions is not None, "groups are sessions"
    held = state.sessions.held
    step.replies.append(GroupsGone(load.command.request, [(name, value) for name, value in found if name not in held]))


def open_groups(state: PartitionState, command: OpenGroups, now_ms: int, step: Step) -> None:
    """Offer groups that the source has nothing of, and send receivers of others there."""
    sessions = state.sessions
    assert sessions is not None, "groups are sessions"
    rules = _rules(state)
    gate = rules.gate
    for name in command.gone:
        has_messages = name in gate.held
        gate.open(name)
        for asked in gate.answered(name):
            accept_session(state, asked, now_ms, step)
        if has_messages and name not in sessions.held:
            sessions.add_candidate(name)
    for name in command.there:
        rule = rules.taken.get(rules.slot_of(name))
        for asked in gate.answered(name):
            if rule is None:
                accept_session(state, asked, now_ms, step)
            else:
                step.replies.append(SessionElsewhere(asked.request, rule.source, resident=True))
    if gate.has_room_again():
        sessions.scan_anew()
    step.replies.append(Done(command.request))


def set_states(state: PartitionState, command: SetStates, now_ms: int, step: Step) -> None:
    """Store the states of sessions that move."""
    for name, value in command.states:
        step.events.append(SessionStateSet(name, value, now_ms))
        if value is not None:
            # When another mover repeats the command, the bytes are counted twice: the count is a bound, not a sum.
            state.session_state_bytes += len(value)
    state.session_state_bytes = max(0, state.session_state_bytes - command.removed_bytes)
    step.replies.append(Done(command.request))


def scan_slots(state: PartitionState, command: ScanSlots, now_ms: int, step: Step) -> None:
    """Look for groups in memory first: sessions of the slots end if they have no messages."""
    sessions = state.sessions
    if sessions is None:
        step.replies.append(SlotsScanned(command.request, [], None))
        return
    wanted = set(slots_in(command.runs))
    rules = _rules(state)
    busy = [
        session.name
        for session in list(sessions.held.values())
        if rules.slot_of(session.name) in wanted and not end_idle_session(state, session, now_ms, step)
    ]
    if state.express is not None:
        busy += [
            e.session for e in state.express.unwritten.values() if e.session and rules.slot_of(e.session) in wanted
        ]
    if busy:
        step.replies.append(SlotsScanned(command.request, busy, command.after or ""))
    else:
        step.loads.append(SlotScan(command, state.options.limits.scan_sessions))


def _rules(state: PartitionState) -> SlotRules:
    if state.slots is None:
        state.slots = SlotRules({})
        if state.sessions is not None:
            state.sessions.rules = state.slots
    return state.slots


def _reconsider(state: PartitionState, rules: SlotRules) -> None:
    """Sort the groups that wait for receivers by the changed rules."""
    sessions = state.sessions
    if sessions is None:
        return
    for name in list(rules.open_slots()):
        if name not in sessions.held:
            sessions.add_candidate(name)
    for name in [name for name in sessions.candidates if not rules.lets_pass(name)]:
        del sessions.candidates[name]
    if rules.gate.has_room_again():
        sessions.scan_anew()
