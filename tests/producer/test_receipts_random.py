"""What receipts say, compared at every step with a naive model of single messages: publishing, removing any ranges,
confirms site by site, broken connections, renumbering and restarts, at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from reliamsg import MessageId, Quorum
from reliamsg.errors import ClosedError, ConfirmTimeout, MessageRemoved, ReliamsgError
from reliamsg.producer.commit import Content
from reliamsg.producer.engine import ProducerEngine
from reliamsg.producer.flushing import flush
from reliamsg.producer.receipt import Receipt
from reliamsg.transport.base import Outgoing
from reliamsg.wire.data import open_frame
from tests.patience import wait_for
from tests.producer.control_tools import Bench, settled

SITES = ("dc1", "dc2", "dc3")
UNTIL: tuple[Literal["durable", "confirmed", "consumed"], ...] = ("durable", "confirmed", "consumed")


class Model:
    """Every message by itself, known by its body, which no other has."""

    def __init__(self, policy: Any) -> None:
        self.needed = {"all": 3, "any": 1}.get(policy, 2)
        self.confirmed: dict[str, set[bytes]] = {name: set() for name in SITES}
        self.removed: set[bytes] = set()
        self.unconfirmed: set[bytes] = set()
        """Removed before the policy was met."""
        self.unsent: dict[str, set[bytes]] = {name: set() for name in SITES}
        """Removed before the site had confirmed it."""
        self.unconsumed: set[bytes] = set()
        """Removed before the group had settled it."""
        self.consumed = 0
        """Numbers of this epoch up to here were settled."""
        self.numbers: dict[int, bytes] = {}
        """The messages of this epoch."""
        self.receipts: list[tuple[Receipt, list[int]]] = []
        self.called: dict[tuple[Receipt, str], list[type[ReliamsgError] | None]] = {}
        """By receipt and what is waited for: what waiting would have come to when the callback was called."""
        self.in_flight: dict[str, dict[int, list[bytes]]] = {name: {} for name in SITES}

    def published(self, body: bytes) -> bool:
        return sum(body in confirmed for confirmed in self.confirmed.values()) >= self.needed

    def remove(self, first: int, last: int) -> None:
        gone = {self.numbers[number] for number in range(first, last + 1)} - self.removed
        for number in range(first, last + 1):
            body = self.numbers[number]
            if body not in gone:
                continue
            if not self.published(body):
                self.unconfirmed.add(body)
            if number > self.consumed:
                self.unconsumed.add(body)
            for site in SITES:
                if body not in self.confirmed[site]:
                    self.unsent[site].add(body)
        self.removed |= gone
        for flights in self.in_flight.values():
            for token, bodies in flights.items():
                holes = [at for at, body in enumerate(bodies) if body in gone]
                if (
                    holes and holes[0] > 0
                ):  # what is behind the hole has a row of its own now, and is sent again
                    flights[token] = bodies[: holes[0]]

    def check(self, receipt: Receipt, numbers: Sequence[int]) -> None:
        bodies = [self.numbers[number] for number in numbers]
        waited_for = [body for body in bodies if body not in self.unconfirmed]
        done = bool(waited_for) and all(map(self.published, waited_for))
        assert receipt.done == done, f"{receipt!r}: {receipt.sites}"
        assert outcome(receipt, "confirmed") is (
            ConfirmTimeout if waited_for and not done else MessageRemoved if waited_for != bodies else None
        )
        past = [number for number in numbers if self.numbers[number] not in self.unconsumed]
        assert outcome(receipt, "consumed") is (
            ConfirmTimeout if past and past[-1] > self.consumed
            else MessageRemoved if len(past) < len(numbers) else None
        )  # fmt: skip
        for site, state in receipt.sites.items():
            unsent, confirmed = self.unsent[site], self.confirmed[site]
            lacking = [body for body in bodies if body not in confirmed and body not in unsent]
            if lacking:
                assert state not in ("confirmed", "removed")
            else:
                assert state == ("removed" if unsent.intersection(bodies) else "confirmed")
        if done and receipt.counted:
            assert len(receipt.counted) >= self.needed
            last = waited_for[-1]
            assert all(last in self.confirmed[site] for site in receipt.counted)

    def call_back(self, receipt: Receipt) -> None:
        """Have this called when the messages are anywhere, or will never be."""
        for until in UNTIL:
            called = self.called.setdefault((receipt, until), [])

            def note(
                receipt: Receipt, until: Any = until, called: list[type[ReliamsgError] | None] = called
            ) -> None:
                called.append(outcome(receipt, until))

            receipt.add_done_callback(note, until=until)

    def check_calls(self) -> None:
        """Those that nothing is left to wait for were called, once, and no others."""
        wait_for(
            lambda: all(
                called or outcome(receipt, until) is ConfirmTimeout
                for (receipt, until), called in self.called.items()
            ),
            "every callback that is due",
        )
        for (receipt, until), called in self.called.items():
            assert len(called) <= 1
            assert ConfirmTimeout not in called, f"{receipt!r} until {until}"

    def watch(self, engine: ProducerEngine) -> None:
        """See what each site is given, and what it confirms."""
        for name, link in engine.sites.items():
            flights, confirmed = self.in_flight[name], self.confirmed[name]
            flights.clear()
            link.pull = self._pull(link.pull, flights)  # type: ignore[method-assign]
            link.confirmed = self._confirm(link.confirmed, flights, confirmed)  # type: ignore[assignment,method-assign]

    @staticmethod
    def _pull(
        pull: Callable[[], Sequence[Outgoing]], flights: dict[int, list[bytes]]
    ) -> Callable[[], Sequence[Outgoing]]:
        def pulling() -> Sequence[Outgoing]:
            found = pull()
            for message in found:
                flights[message.token] = list(open_frame(message.body).records().bodies)
            return found

        return pulling

    @staticmethod
    def _confirm(
        confirm: Callable[[Sequence[int]], None], flights: dict[int, list[bytes]], confirmed: set[bytes]
    ) -> Callable[[Sequence[int]], None]:
        def confirming(tokens: Sequence[int]) -> None:
            for token in tokens:
                confirmed.update(flights.pop(token, ()))
            confirm(tokens)

        return confirming


def outcome(receipt: Receipt, until: Any) -> type[ReliamsgError] | None:
    try:
        receipt.wait(0.0, until=until)
    except (ConfirmTimeout, MessageRemoved, ClosedError) as error:
        return type(error)
    return None


class Life:
    """One opening of the outbox."""

    def __init__(self, bench: Bench, model: Model, rng: random.Random, options: dict[str, Any]) -> None:
        self.bench, self.model, self.rng = bench, model, rng
        self.engine = bench.open({"t": ("g",)}, release="consumed", retain_seconds=1e6, **options)
        model.watch(self.engine)
        model.numbers, model.receipts, model.called, model.consumed = {}, [], {}, 0
        self.offered = False

    def publish(self) -> None:
        """Several calls that share a commit."""
        given = []
        for _ in range(self.rng.randrange(1, 7)):
            start = len(self.model.numbers) + 1
            count = self.rng.choice([1, 1, 1, 2, 7])
            bodies = [self.rng.randbytes(12) for _ in range(count)]
            self.model.numbers.update(enumerate(bodies, start))
            if count == 1 and self.rng.random() < 0.7:
                receipt = self.engine.accumulator.accept_one("t", bodies[0])
            else:
                receipt = self.engine.accumulator.accept(Content("t", bodies, None, None, 12 * count))
            given.append((receipt, list(range(start, start + count))))
        for receipt, _ in given:
            self.model.call_back(receipt)
        self.bench.run()
        self.model.receipts += given

    def remove(self) -> None:
        if not self.model.numbers:
            return
        first = self.rng.randrange(1, len(self.model.numbers) + 1)
        last = min(len(self.model.numbers), first + self.rng.choice([0, 0, 1, 3, 12]))
        if self.rng.random() < 0.3:  # after what the application knows: a receipt's own messages
            chosen = self.rng.choice(self.model.receipts)[1]
            first, last = chosen[0], chosen[-1]
        epoch = self.engine._outbox.epoch
        ends = [MessageId("p", epoch, "t", 0, number) for number in (first, last)]
        before = len(self.model.removed)
        self.model.remove(first, last)
        assert self.engine.remove(*ends) == len(self.model.removed) - before

    def trouble(self) -> None:
        broker = self.bench.network[self.rng.choice(SITES)]
        self.rng.choice(
            [broker.cut, broker.down, broker.up, broker.up, broker.hold_confirms, broker.release_confirms]
        )()

    def renumber(self) -> None:
        outbox = self.engine._outbox
        if outbox.offered < outbox.epoch:
            self.engine.renumber(outbox.epoch + self.rng.randrange(1, 1000))

    def acknowledge(self) -> None:
        if self.engine.shared.gate is None and self.voice_connected and self.model.numbers:
            number = self.rng.randrange(1, len(self.model.numbers) + 1)
            # It settles what a site has, and what it was told is removed.
            if all(
                any(self.model.numbers[n] in self.model.confirmed[site] for site in SITES)
                or self.model.numbers[n] in self.model.removed
                for n in range(1, number + 1)
            ):
                self.bench.voice.tell(settled(self.engine, "t", number))  # type: ignore[attr-defined]
                self.bench.run()
                self.model.consumed = max(self.model.consumed, number)

    @property
    def voice_connected(self) -> bool:
        broker = self.bench.network["dc1"]
        return bool(self.bench.voice._transport.connected and broker.connections > 2)  # type: ignore[attr-defined]

    def check(self) -> None:
        for receipt, numbers in self.model.receipts:
            self.model.check(receipt, numbers)
        self.model.check_calls()


@pytest.mark.parametrize("attempt", range(5))
def test_receipts_say_what_is_so(tmp_path: Path, attempt: int, seeded: random.Random) -> None:
    rng = seeded
    policy = rng.choice(["all", "any", Quorum(2)])
    bench = Bench(tmp_path / "outbox.db", *SITES)
    bench.voice = bench.group("g")  # type: ignore[attr-defined]
    model = Model(policy)
    for _ in range(2):
        options = {
            "confirm": policy, "max_batch_messages": rng.choice([2, 5, 100]), "hello_timeout": rng.choice([0.0, 3.0]),
        }  # fmt: skip
        life = Life(bench, model, rng, options)
        for _ in range(rng.randrange(5, 30)):
            deeds: list[Callable[[], object]] = [
                life.publish, life.publish, life.remove, life.remove, life.trouble, life.renumber,
                life.acknowledge, lambda: bench.run(rng.choice([0.0, 0.2, 4.0])),
            ]  # fmt: skip
            rng.choice(deeds)()
            life.check()
        if rng.random() < 0.5:
            for name in SITES:
                bench.network[name].release_confirms()
                bench.network[name].up()
            bench.run(120.0)
            life.check()
            assert all(life.model.published(b) for b in model.numbers.values() if b not in model.removed)
            assert life.engine.pending() == 0
        crash = rng.random() < 0.5
        bench.close(life.engine, crash=crash)
        if not crash:
            wait_for(lambda: all(model.called.values()), "every callback, once the producer is closed")
            model.check_calls()
        bench.run(1.0)


def test_a_flush_waits_for_what_is_moved_behind_it_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.open(hello_timeout=0)
    broker = bench.network["dc1"]
    broker.hold_confirms()
    bench.publish(engine, "t", b"1", b"2", b"3")
    before = engine.shared.top
    seen: list[bool] = []

    def wait(come: Callable[[], bool], timeout: float | None) -> None:
        """While the flush waits, a hole gives what is behind it a row of its own, and the first one is confirmed."""
        hole = MessageId("p", engine._outbox.epoch, "t", 0, 2)
        assert engine.remove(hole, hole) == 1
        engine.sites["dc1"].confirmed([before])
        assert engine.shared.core.confirms.cursor > before
        seen.append(come())
        broker.release_confirms()
        bench.run(1.0)
        seen.append(come())

    monkeypatch.setattr(engine.shared, "changed", SimpleNamespace(wait=wait, notify_all=lambda: None))
    flush(engine, 1.0)
    assert seen == [False, True]
