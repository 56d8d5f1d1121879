"""Runs of a producer and a group, on simulated time and real files, in processes that kill themselves.

Each run passes the commits of the control plane, and logs what its applications see: ``try N`` before a message is
published, ``accepted N`` when that is durable (``elsewhere N``: in a copy of the outbox), ``removed N`` before it is
removed, ``got N`` or ``again N`` (flagged) when it is delivered. The in-memory broker dies with the process, and loses
everything.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from reliamsg.consumer.buffer import DeliverySlice
from reliamsg.consumer.deliveries import GapItem
from reliamsg.producer.commit import Content
from reliamsg.producer.engine import ProducerEngine
from reliamsg.store.outbox import EPOCH_STEP
from tests.consumer import tools as receiving
from tests.producer import control_tools as sending

__all__ = ["LIVES", "Life", "in_a_process", "log_of", "points_of"]

TOPIC, GROUP = receiving.TOPIC, receiving.GROUP
BEHIND_S = 77
"""Seconds by which a producer's wall clock is behind when its outbox was restored."""
LATER_S = 2 * EPOCH_STEP // 1000
"""Seconds between an outbox's copy and its next opening: after this time, its epoch is above that of the copy, which is
a random step above the one before."""
TAKEOVER_S = 2.0


def log_of(directory: Path) -> list[list[str]]:
    """The applications' observations."""
    path = directory / "seen"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def points_of(directory: Path) -> list[str]:
    """The points that the latest process passed."""
    return (directory / "points").read_text().split()


class Life:
    """One process's share of the run."""

    def __init__(self, directory: Path, die_at: int | None = None) -> None:
        self.directory = directory
        self._die_at = die_at
        self._passed = 0
        self._seen = os.open(directory / "seen", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._points = os.open(directory / "points", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        self.bench = sending.Bench(directory / "p.outbox.db")
        self.engine: ProducerEngine
        self.readers: list[receiving.Bench] = []

    def say(self, *words: object) -> None:
        os.write(self._seen, " ".join(map(str, words)).encode() + b"\n")

    def probe(self, point: str) -> None:
        os.write(self._points, point.encode() + b"\n")
        if self._passed == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._passed += 1

    # -- clients ------------------------------------------------------------------------------------------

    def produce(self, path: Path | None = None, **options: Any) -> ProducerEngine:
        options = {"release": "consumed", "retain_seconds": 1.0, **options}
        return self.bench.open({TOPIC: [GROUP]}, path, probe=self.probe, **options)

    def read(self, name: str, **settings: Any) -> receiving.Bench:
        made = receiving.Bench.__new__(receiving.Bench)
        made.path, made.network = self.directory / f"{name}.inbox.db", self.bench.network
        made.now, made.points = self.bench.now, []
        made.rules = {"gap_timeout": 20.0, "repair_delay": 0.1, "skip_gaps": True}
        made.settings = {"takeover_timeout": TAKEOVER_S, **settings}
        made.points = _Points(self.probe)
        made.open()
        self.readers.append(made)
        return made

    def publish(self, count: int, engine: ProducerEngine | None = None) -> None:
        engine = engine or self.engine
        for _ in range(count):
            number = 1 + max((int(n) for what, n in log_of(self.directory) if what == "try"), default=0)
            self.say("try", number)
            receipt = engine.accumulator.accept(Content(TOPIC, [b"%d" % number], None, None, 10))
            while not receipt.durable:
                engine.step()
            self.say("accepted" if engine is self.engine else "elsewhere", number)
            self.last_id = receipt.id

    def run(self, seconds: float) -> None:
        """Step all clients; the application takes what is delivered."""
        for _ in range(round(seconds / 0.05)):
            self.bench.run(0.05)
            for reader in self.readers:
                reader.settle(max(0.0, self.bench.now - reader.now))
                self._take(reader)

    def _take(self, reader: receiving.Bench) -> None:
        while (item := reader.engine.deliveries.take(1, 4)) is not None:
            assert isinstance(item, (DeliverySlice, GapItem)), item
            if isinstance(item, GapItem):
                continue
            while (message := item.next()) is not None:
                self.say("again" if message.redelivered else "got", int(message.body))
                message.ack()
            reader.engine.deliveries.release(item)

    def end(self) -> None:
        for reader in self.readers:
            for site in reader.engine.sites.values():
                for link in site.connections.all:
                    link.close(0.0)
            reader.engine.flush(reader.now, closing=True)
            reader.inbox.close()
        for engine in list(self.bench.engines):
            self.bench.close(engine)

    # -- the end of each run, in another process -------------------------------------------------------------

    def finish(self) -> None:
        """Restart killed clients, and continue until everything is settled."""
        self.engine = self.produce()
        for path in sorted(self.directory.glob("*.inbox.db")):
            name = path.name.removesuffix(".inbox.db")
            self.read(name, standby=len(self.readers) > 0)
        if not self.readers:
            self.read("a")
        self.publish(2)
        for _ in range(60):
            self.run(1.0)
            status = [group for group in self.engine.status().groups if group.group == GROUP]
            if all(group.behind == 0 for group in status) and not self.engine.status().gated:
                break
        self.end()


class _Points(list[str]):
    """Records a probe's points."""

    def __init__(self, probe: Callable[[str], None]) -> None:
        super().__init__()
        self._probe = probe

    def append(self, point: str) -> None:
        self._probe(point)


def membership(life: Life) -> None:
    """Groups come and go, messages are lost and repaired, and some are removed."""
    life.engine = life.produce()
    life.read("a")
    life.run(1.0)
    life.publish(4)
    life.run(0.5)
    life.bench.network["dc1"].lose(2)
    life.publish(3)
    life.run(2.0)
    life.engine.add_group(TOPIC, "late")
    life.publish(2)
    life.run(0.5)
    life.engine.remove_group(TOPIC, "late")
    life.bench.network["dc1"].lose(2)
    life.publish(2)
    life.say("removed", int(log_of(life.directory)[-1][1]))
    assert life.last_id is not None
    life.engine.remove(life.last_id, life.last_id)
    life.publish(1)
    life.run(3.0)
    life.end()


def restored(life: Life, hello_timeout: float = 1.0) -> None:
    """The outbox is restored to an earlier state, together with the clock: messages published then are renumbered."""
    life.engine = life.produce()
    life.read("a")
    life.publish(3)
    life.run(1.0)
    life.bench.close(life.engine)
    shutil.copy(life.bench.path, life.directory / "backup")
    life.bench.wall_offset_us += LATER_S * 1_000_000
    life.engine = life.produce()
    life.publish(3)
    life.run(2.0)
    life.bench.close(life.engine)
    shutil.copy(life.directory / "backup", life.bench.path)
    life.bench.wall_offset_us -= (LATER_S + BEHIND_S) * 1_000_000
    life.engine = life.produce(hello_timeout=hello_timeout)
    if hello_timeout < 1.0:  # it learns too late that there is a higher epoch
        life.run(1.0)
    life.publish(3)
    life.run(3.0)
    life.end()


def put_back(life: Life) -> None:
    """The outbox is restored to a state in which messages were stored and none of them was offered."""
    for _ in range(2):
        life.engine = life.produce()
        life.publish(2)
        life.bench.close(life.engine)
    shutil.copy(life.bench.path, life.directory / "backup")
    life.bench.wall_offset_us += LATER_S * 1_000_000
    life.engine = life.produce()
    life.read("a")
    life.publish(1)
    life.run(2.0)
    life.bench.close(life.engine)
    shutil.copy(life.directory / "backup", life.bench.path)
    life.bench.wall_offset_us -= (LATER_S + BEHIND_S) * 1_000_000
    life.engine = life.produce()
    life.publish(3)
    life.run(3.0)
    life.end()


def copied(life: Life) -> None:
    """Two copies of an outbox are alive: the lower one stops."""
    life.engine = life.produce()
    life.read("a")
    life.publish(3)
    life.run(1.0)
    life.bench.close(life.engine)
    shutil.copy(life.bench.path, life.directory / "copy.db")
    life.engine = life.produce()
    life.publish(2)
    life.run(1.0)
    life.bench.wall_offset_us += BEHIND_S * 1_000_000
    twin = life.produce(life.directory / "copy.db")
    life.publish(2, twin)
    life.run(3.0)
    assert life.engine.fatal is not None
    life.end()


def taken_over(life: Life) -> None:
    """The reading inbox dies, and a standby with a separate inbox takes over."""
    life.engine = life.produce()
    first = life.read("a")
    life.run(1.0)
    life.read("b", standby=True)
    life.publish(4)
    life.run(1.0)
    life.readers.remove(first)
    for site in first.engine.sites.values():
        for link in site.connections.all:
            link.kill()  # type: ignore[union-attr]
    life.bench.network["dc1"].lose(1)
    life.publish(4)
    life.run(3 * TAKEOVER_S)
    life.publish(2)
    life.run(2.0)
    life.end()


LIVES: dict[str, tuple[Callable[[Life], None], set[str]]] = {
    "membership": (
        membership,
        {
            "committed", "sent", "confirmed", "cursor", "released", "named", "removed", "offered",
            "position", "acknowledged", "noted",
        },
    ),
    "restored": (restored, {"renumbered", "offered", "position"}),
    "restored unasked": (partial(restored, hello_timeout=0.01), {"next_epoch", "renumbered", "offered"}),
    "put back": (put_back, {"offered", "renumbered"}),
    "copied": (copied, {"fenced", "position"}),
    "taken over": (taken_over, {"position", "noted", "acknowledged"}),
}  # fmt: skip
"""Each run, and the points that it must pass."""


def in_a_process(directory: Path, what: Callable[[Life], None], die_at: int | None = None) -> int:
    """Run `what` in a separate process; returns its exit code."""

    def run() -> None:
        what(Life(directory, die_at))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(300)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode
