"""One site's window against a model that keeps a word for every row: waiting, flying or confirmed."""

from __future__ import annotations

from math import inf

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reliamsg.protocol.sender.window import PARK_MAX_S, QueueState, SiteLimits, SiteWindow
from tests.protocol.sending_tools import FakeRow, FakeSite

LIMITS = SiteLimits(batches=4, bytes=60, confirm_timeout=30.0)
STREAMS = (1, 2, 3)
pick = st.integers(0, 2**16)


class WindowModel(RuleBasedStateMachine):
    """Whatever a site does, each stream is sent in order, nothing is counted as confirmed that is not, and in the end
    everything is."""

    def __init__(self) -> None:
        super().__init__()
        self.site = FakeSite(SiteWindow("dc1", LIMITS, 1))
        self.window = self.site.window
        self.state: dict[int, str] = {}
        self.now = 0.0
        self.most = LIMITS.batches

    def flying(self) -> list[int]:
        return [number for number, state in self.state.items() if state == "flying"]

    @rule(stream=st.sampled_from(STREAMS), size=st.sampled_from([1, 10, 25, 500]))
    def publish(self, stream: int, size: int) -> None:
        number = len(self.site.rows) + 1
        self.site.rows.append(FakeRow(number, stream, size))
        self.state[number] = "waiting"

    @rule(seconds=st.sampled_from([0.0, 0.3, 5.0, PARK_MAX_S]))
    def send(self, seconds: float) -> None:
        self.now += seconds
        for number in self.site.pull(self.now):
            assert self.window.connected
            assert self.window.blocked is None
            assert self.state[number] == "waiting"
            stream = self.site.rows[number - 1].stream_id
            earlier = [row.id for row in self.site.rows[: number - 1] if row.stream_id == stream]
            assert all(self.state[row] != "waiting" for row in earlier)
            self.state[number] = "flying"

    @precondition(lambda self: self.flying())
    @rule(which=pick)
    def confirm(self, which: int) -> None:
        number = self.flying()[which % len(self.flying())]
        assert len(self.window.confirm([number], self.now)) == 1
        self.state[number] = "confirmed"

    @rule(number=st.integers(1, 30))
    def confirm_what_is_not_in_flight(self, number: int) -> None:
        if self.state.get(number) != "flying":
            assert self.window.confirm([number], self.now) == {}

    @precondition(lambda self: self.flying())
    @rule(which=pick)
    def refuse(self, which: int) -> None:
        number = self.flying()[which % len(self.flying())]
        assert self.window.refuse(number, "nacked", self.now) is not None
        self.state[number] = "waiting"
        assert self.site.rows[number - 1].stream_id in self.window.queues

    @precondition(lambda self: self.state)
    @rule(which=pick)
    def remove(self, which: int) -> None:
        number = which % len(self.state) + 1
        self.window.discard(number, self.now)
        self.state[number] = "confirmed"

    @rule(asked=st.booleans())
    def disconnect(self, asked: bool) -> None:
        self.window.disconnect(self.now, asked)
        self.state |= dict.fromkeys(self.flying(), "waiting")

    @precondition(lambda self: not self.window.connected)
    @rule(most=st.sampled_from([None, 1, 2]))
    def connect(self, most: int | None) -> None:
        self.window.connect(most)
        self.most = most or LIMITS.batches

    @rule(blocked=st.booleans())
    def block(self, blocked: bool) -> None:
        if self.window.connected:
            self.window.block("low on memory" if blocked else None, self.now)

    @rule()
    def wait_for_a_confirm(self) -> None:
        due = self.window.next_deadline()
        if self.now < due < inf:
            self.now = due
        if self.window.is_overdue(self.now):
            parked = self.window.give_up(self.now)
            assert all(queue.state is QueueState.PARKED for queue in parked)
            assert not self.window.up
            self.disconnect(True)

    @invariant()
    def what_is_in_flight_is_known(self) -> None:
        flying = self.flying()
        assert sorted(self.window.in_flight) == flying
        assert self.window.bytes == sum(
            self.site.rows[number - 1].size
            for number, flight in self.window.in_flight.items()
            if not flight.trial
        )
        assert len(flying) <= self.most + len(STREAMS)
        held = [
            number for queue in (self.window.main, *self.window.queues.values()) for number in queue.in_flight
        ]
        assert sorted(held) == flying

    @invariant()
    def the_next_retry_is_known(self) -> None:
        parked = [queue for queue in self.window.queues.values() if queue.state is QueueState.PARKED]
        assert self.window.due_at <= self.window.next_deadline()
        if parked and not self.flying():
            assert self.window.next_deadline() == min(queue.retry_at for queue in parked)
        elif not parked and not self.flying():
            assert self.window.next_deadline() == inf

    @invariant()
    def cursors_pass_nothing_that_is_not_confirmed(self) -> None:
        confirmed = {number for number, state in self.state.items() if state == "confirmed"}
        assert {n for first, last in self.window.confirmed for n in range(first, last + 1)} == confirmed
        for row in self.site.rows:
            queue = self.window.queues.get(row.stream_id, self.window.main)
            if row.id < queue.cursor:
                assert row.id in confirmed

    def teardown(self) -> None:
        if not self.window.connected:
            self.window.connect(None)
        self.window.block(None, self.now)
        for _ in range(len(self.state) + 2):
            self.send(PARK_MAX_S)
            for number in self.flying():
                self.window.confirm([number], self.now)
                self.state[number] = "confirmed"
        self.send(PARK_MAX_S)
        assert set(self.state.values()) <= {"confirmed"}
        assert self.window.bytes == 0
        assert all(queue.state is QueueState.FLOWING for queue in self.window.queues.values())


TestWindowModel = WindowModel.TestCase
