"""Sends and settlements that are done together or not at all (D16, row T1).

Everything is checked before anything is done, and all that is done is one step: its rows are in one commit.
"""

from collections.abc import Iterator

from partibus.partition.core.enqueue import elsewhere, over_quota, reply_last, store
from partibus.partition.core.loads import body_load
from partibus.partition.core.settlement import apply_settlement, bodies_missing, lost_tokens
from partibus.partition.core.state import PartitionState
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import Enqueue, Settle, Transact
from partibus.partition.protocol.replies import Refused, Settled, Transacted, TransactionRefused


def transact(
    state: PartitionState, command: Transact, now_ms: int, step: Step, ids: Iterator[bytes | None] | None = None
) -> None:
    """Carry out all commands or none, now or when the bodies that they need are loaded.

    ``ids``: the ids of the messages, on an entity with duplicate detection.
    """
    sessions = state.sessions
    if sessions is not None and sessions.resuming and sessions.must_wait(command):
        return
    for part in command.commands:
        missing = bodies_missing(state, part, now_ms) if isinstance(part, Settle) else []
        if missing:
            assert isinstance(part, Settle)
            step.loads.append(body_load(part.kind, missing, then=command))
            return
    if state.slots is not None:
        for part in command.commands:
            if isinstance(part, Enqueue) and (reply := elsewhere(state, part, now_ms)) is not None:
                reply.request = command.request
                step.replies.append(reply)
                return
    refused = _refusal(state, command, now_ms)
    if refused is not None:
        step.replies.append(refused)
        return
    answers = step.replies
    step.replies = []  # the client gets one answer, not one per part
    for part in command.commands:
        if isinstance(part, Enqueue):
            store(state, part, now_ms, step, ids)
        else:
            apply_settlement(state, part, now_ms, step)
    step.replies = answers
    reply_last(step, Transacted(command.request))


def _refusal(state: PartitionState, command: Transact, now_ms: int) -> TransactionRefused | None:
    """Why nothing can be done; the first reason."""
    settled: set[tuple[int, int, int]] = set()
    for index, part in enumerate(command.commands):
        because: Refused | Settled | None = None
        if isinstance(part, Enqueue):
            because = over_quota(state, part)
        else:
            lost = lost_tokens(state, part, now_ms)
            lost += [i for i, token in enumerate(part.tokens) if (part.kind, *token) in settled]
            if lost:
                because = Settled(part.request, sorted(set(lost)))
            else:
                settled.update((part.kind, *token) for token in part.tokens)
        if because is not None:
            return TransactionRefused(command.request, index, because)
    return None
