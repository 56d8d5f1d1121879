"""Topics that a broker does not answer: what is published to others gets through all the same (P18)."""

from __future__ import annotations

import random

import pytest

from reliamsg.protocol.sender import window
from reliamsg.simulation.broker import Answered, Broker, BrokerEvent, BrokerTraits, Session, Unanswered
from reliamsg.simulation.clock import Scheduler
from reliamsg.simulation.faults import Faults
from reliamsg.simulation.network import Network
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.trace import Trace
from reliamsg.simulation.traffic import Traffic
from reliamsg.transport.base import Binding, Outgoing

pytestmark = pytest.mark.integrations


class Nothing:
    """A witness of traffic that is not interested in it."""

    def seen(self, *_: object, **__: object) -> None:
        """See :class:`Witness`."""

    def confirmed_at(self, *_: object) -> None:
        """See :class:`Witness`."""

    def released_at(self, *_: object) -> None:
        """See :class:`Witness`."""


class Bench:
    """A broker with two topics, and what it confirms."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(0.0)
        trace = Trace(self.scheduler, keep=False)
        self.broker = Broker(
            BrokerTraits("dc1", "amqp"), self.scheduler, Faults(1, ()).at("dc1"), trace,
            Traffic(Nothing(), trace), random.Random(1),
        )  # fmt: skip
        self.broker.model.declare([Binding("dead", 0, "g"), Binding("fine", 0, "g")])
        self.network = Network(self.scheduler, 1)
        self.confirmed: list[int] = []

    def connect(self) -> Session:
        session = Session(self.network.path("p", "dc1").connect(10.0), "p", self._notify, sends=True)
        self.broker.open(session)
        return session

    def _notify(self, event: BrokerEvent) -> None:
        if isinstance(event, Answered) and event.refusal is None:
            self.confirmed.append(event.token)

    def publish(self, session: Session, *topics: str) -> None:
        for topic in topics:
            self.broker.publish(session, Outgoing(len(topic), topic, 0, b"x", None, None, "m", 0))
        self.scheduler.run(self.scheduler.now + 1.0)

    def take(self) -> int:
        """How many were confirmed since the last time."""
        found, self.confirmed = len(self.confirmed), []
        return found


@pytest.mark.parametrize("blocks", [False, True])
def test_what_a_broker_does_not_answer_may_hold_up_what_follows_on_the_same_connection(blocks: bool) -> None:
    bench = Bench()
    session = bench.connect()
    bench.broker.answer_all(but=Unanswered("dead", blocks))
    bench.publish(session, "fine", "dead", "fine")
    assert bench.take() == (1 if blocks else 2)
    bench.publish(bench.connect(), "fine")
    assert bench.take() == 1, "another connection"
    bench.broker.answer_all()
    bench.publish(session, "fine")
    assert bench.take() == (3 if blocks else 2), "what was held is processed at last"


@pytest.mark.parametrize("seed", [13, 34, 66, 104])
def test_other_topics_get_through_meanwhile(seed: int) -> None:
    outcome = run(draw(seed, 150, ["topic_unanswered"]))
    assert outcome.struck
    assert not outcome.violations


@pytest.mark.parametrize("seed", [34, 66])
def test_without_pauses_they_do_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "PARK_MAX_S", 0.0)
    monkeypatch.setattr(window, "MAX_CALM", 0)
    outcome = run(draw(seed, 150, ["topic_unanswered"]))
    assert {violation.kind for violation in outcome.violations} == {"stalled"}
    assert "which does not answer for" in str(outcome.violations[0])
