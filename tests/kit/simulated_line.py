"""A channel between two brokers of a simulation: batches arrive late, in order, until it is cut."""

from collections.abc import Callable
from random import Random

from partibus.cluster.channel import HEAD_BYTES, Outbox
from partibus.cluster.in_doubt import InDoubt
from partibus.cluster.remote_store import RemoteBroker
from partibus.cluster.serving import Serving
from partibus.cluster.wire import read_answers, read_questions
from partibus.limits import PeerLimits
from tests.kit.simulated_host import SimulatedHost, Timeline

DELAY_MS_MAX = 3.0


class _Way:
    """One direction. Batches that left before the cut may arrive after it, up to any of them."""

    def __init__(self, timeline: Timeline, random: Random, arrive: Callable[[bytes], None]) -> None:
        self._timeline = timeline
        self._random = random
        self._arrive = arrive
        self._arrives_ms = 0.0
        self.open = True

    def write(self, batch: bytearray) -> None:
        """Send a batch: it arrives behind those before it."""
        delay_ms = self._random.choice((0.0, 0.1, DELAY_MS_MAX)) * self._random.random()
        self._arrives_ms = max(self._arrives_ms, self._timeline.time_ms + delay_ms)
        data = bytes(batch[HEAD_BYTES:])
        self._timeline.call_later(self._arrives_ms - self._timeline.time_ms, lambda: self._arrived(data))

    def _arrived(self, data: bytes) -> None:
        if self.open:
            self._arrive(data)


class SimulatedLine:
    """A guest's end (`remote`) and an owner's. ``host`` is the guest's, which may crash on its own."""

    def __init__(
        self,
        timeline: Timeline,
        random: Random,
        host: SimulatedHost,
        owner: SimulatedHost,
        serving: Serving,
        limits: PeerLimits | None = None,
        *,
        asker: str | None = None,
        run: str = "",
        in_doubt: InDoubt | None = None,
    ) -> None:
        """``asker`` and ``run``: the guest's and the owner's, where the store is to remember what it was asked."""
        self._timeline = timeline
        self._random = random
        self._questions = _Way(timeline, random, lambda batch: self.remote_broker.receive(read_questions(batch)))
        self._answers = _Way(timeline, random, lambda batch: self.remote.receive(read_answers(batch)))
        outbox = Outbox(self._questions.write, host.call_soon)
        self.remote = RemoteBroker("far", outbox, host.call_soon, limits or PeerLimits(), run, in_doubt)
        self.remote_broker = serving.remote_broker(Outbox(self._answers.write, owner.call_soon), asker)

    def cut(self) -> None:
        """The connection breaks. Each end notices some time later, and until then still gets what was on its way."""
        self._end_later(self._questions, self.remote_broker.lost)
        self._end_later(self._answers, lambda: self.remote.lost("the line was cut"))

    def _end_later(self, way: _Way, notice: Callable[[], None]) -> None:
        def end() -> None:
            way.open = False
            notice()

        self._timeline.call_later(2 * DELAY_MS_MAX * self._random.random(), end)
