"""Random histories: loss, duplicates and reordering at two sites, crashes, failing handlers, several epochs.

Each history is judged as a run is: strictly in order except what is flagged, acknowledged at most once, nothing
missing but what was declared, nothing declared but what never arrived. A failing seed is printed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.deliveries import GapItem
from reliamsg.message import Prev
from reliamsg.store.database import open_readonly
from reliamsg.store.journal import read_journal
from tests.chance import examples
from tests.consumer.tools import Bench, body_of, frame

Place = tuple[int, int]


class History:
    """One producer's stream, and what a group made of it."""

    def __init__(self, seed: int, path: Path, *, lossy: bool) -> None:
        self.random = random.Random(seed)
        self.lossy = lossy
        self.bench = Bench(path, gap_timeout=3.0 if lossy else 1e6, max_deliveries=50)
        self.epoch, self.seq = 10, 0
        self.prev: Prev | None = None
        self.published: list[Place] = []
        self.offered: set[Place] = set()
        """What at least one site was given."""
        self.backlog: dict[str, list[tuple[int, int, int, Prev | None]]] = {"dc1": [], "dc2": []}
        self.delivered: list[tuple[Place, bool]] = []
        self.acknowledged: list[Place] = []
        self.durable: set[Place] = set()
        self.declared: set[Place] = set()

    def publish(self) -> None:
        count = self.random.choice([1, 1, 3, 10, 40])
        batch = (self.epoch, self.seq + 1, self.seq + count, self.prev)
        places = [(self.epoch, n) for n in range(batch[1], batch[2] + 1)]
        self.seq += count
        self.published += places
        sites = ["dc1", "dc2"]
        if self.lossy and self.random.random() < 0.15:
            sites = []
        elif self.random.random() < 0.3:
            sites.remove(self.random.choice(sites))
        for site in sites:
            self.offered.update(places)
            self.backlog[site] += [batch] * self.random.choice([1, 1, 1, 2])

    def next_epoch(self) -> None:
        if self.seq:
            self.prev = Prev(self.epoch, self.epoch * 7, self.seq)
            self.epoch += self.random.choice([1, 5])
            self.seq = 0

    def transmit(self, everything: bool = False) -> None:
        for site, backlog in self.backlog.items():
            for _ in range(len(backlog) if everything else self.random.randrange(len(backlog) + 1)):
                at = min(self.random.choice([0, 0, 0, 1, 4]), len(backlog) - 1)
                epoch, first, last, prev = backlog.pop(at)
                cut = self.random.randrange(first, last + 1) if self.random.random() < 0.2 else last
                for low, high in ((first, cut), (cut + 1, last)):
                    if low <= high:
                        data = frame(low, high, epoch=epoch, incarnation=epoch * 7, prev=prev)
                        self.bench.network[site].inject(
                            "orders", data, content_type="application/vnd.reliamsg.batch"
                        )

    def consume(self, most: int, failures: float) -> None:
        bench = self.bench
        for _ in range(6):
            item = bench.engine.deliveries.take(1, 64)
            if item is None:
                bench.settle(0.004)
                continue
            if isinstance(item, GapItem):
                self.decide(item)
                continue
            assert isinstance(item, DeliverySlice)
            while most > 0 and (message := item.next()) is not None:
                most -= 1
                place = (message.epoch, message.seq)
                assert message.body == body_of(*place)
                self.delivered.append((place, message.redelivered))
                if self.random.random() < failures:
                    item.buffer.failed(message, RuntimeError("made up"))
                else:
                    message.ack()
                    self.acknowledged.append(place)
            bench.engine.deliveries.release(item)
        bench.settle(self.random.choice([0.001, 0.02, 0.2]))

    def decide(self, item: GapItem) -> None:
        gap = item.gap
        assert self.lossy, f"a gap where nothing was lost: {gap}"
        if self.random.random() < 0.7:
            assert gap.last is not None or gap.reason == "extent unknown"
            self.bench.engine.deliveries.accept(gap)

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.35:
            self.publish()
        elif choice < 0.6:
            self.transmit()
        elif choice < 0.9:
            self.consume(self.random.choice([1, 5, 100]), 0.03)
        elif choice < 0.93:
            self.next_epoch()
        elif choice < 0.96:
            self.bench.reopen(clean=self.random.random() < 0.4)
        elif choice < 0.98:
            broker = self.bench.network[self.random.choice(["dc1", "dc2"])]
            broker.down()
            self.bench.settle(0.5)
            broker.up()
            self.bench.settle(0.01)
        else:
            self.bench.settle(1.0)

    def finish(self) -> None:
        for _ in range(400):
            self.transmit(everything=True)
            self.bench.settle(0.5)
            before = len(self.delivered)
            self.consume(10_000, 0.0)
            state = next(iter(self.bench.engine.shared.core.streams.values()), None)
            quiet = state is None or (
                state.gaps.clock.target is None and all(k.held.empty for k in state.epochs.live.values())
            )
            if quiet and len(self.delivered) == before and sum(self.bench.queued().values()) == 0:
                break
        else:
            raise AssertionError("it never drained")
        self.bench.close()

    def judge(self) -> None:
        latest: Place = (0, 0)
        for place, redelivered in self.delivered:
            assert redelivered or place > latest, f"{place} after {latest}"
            latest = max(latest, place)
        connection = open_readonly(self.bench.path)
        rows = list(read_journal(connection))
        connection.close()
        for kind in ("declared", "before_join"):
            for row in (row for row in rows if row.kind == kind):
                top = row.last or self.top(row.epoch)
                self.declared.update((row.epoch, n) for n in range(row.first, top + 1))
        acknowledged = [
            (row.epoch, n)
            for row in rows
            if row.kind == "acknowledged"
            for n in range(row.first, row.last + 1)
        ]
        assert len(acknowledged) == len(set(acknowledged)), "acknowledged twice"
        handed = {place for place, _ in self.delivered}
        missing = set(self.published) - handed - self.declared
        late = {(r.epoch, n) for r in rows if r.kind == "late" for n in range(r.first, r.last + 1)}
        # A tail of an epoch that no later one was seen after can't be known to exist yet.
        unseen = {p for p in missing if p not in self.offered and p > max(self.offered, default=(0, 0))}
        assert missing - unseen - late == set()
        assert handed <= set(self.published)
        assert not (self.declared & set(acknowledged)), "declared and delivered"
        if not self.lossy:
            assert self.declared == set()
            assert set(acknowledged) == set(self.published)

    def top(self, epoch: int) -> int:
        return max((n for e, n in self.published if e == epoch), default=0)


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("seed", range(examples(15, full=30)))
def test_random_history(tmp_path: Path, seed: int, lossy: bool) -> None:
    print(f"seed {seed}, lossy {lossy}")
    history = History(seed, tmp_path / "inbox.db", lossy=lossy)
    for _ in range(120):
        history.step()
    history.finish()
    history.judge()
