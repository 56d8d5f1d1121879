"""The cost of the control plane, and the rate at which messages that brokers lost are resent.

Two Mosquitto sites, ``release="consumed"``, 100-byte messages. Four figures, each with its target, in one line of JSON:

- control frames of both sides, in per cent of data bytes, at 10,000 messages per second;
- 10,000 idle streams: processor time of producer and consumer together, in per cent of one core, and messages that the
  brokers hold;
- with live traffic of 10,000 messages per second in another stream, the repair of 100,000 messages that both sites
  confirmed and discarded, compared with the unloaded peak publish rate at the same sites;
- peak memory of either process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import Child
from benchmarks.options import Options
from benchmarks.sites import mosquittos, work_directory
from reliamsg import Site
from reliamsg.lab import Mosquitto
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group

__all__ = ["repair"]

RATE = 10_000
WATCHED_S = 20.0
"""Seconds for which traffic and rest are observed."""
STREAMS = 10_000
LOST, PEAK = 100_000, 200_000
SIZE = 100
MOST_CONTROL_PERCENT = 1.0
MOST_IDLE_PERCENT = 5.0
LEAST_REPAIR_RATIO = 0.5
MOST_MEMORY_MB = 200.0
REST_S = 300.0
"""Maximum seconds until streams without traffic are at rest."""
SILENT_S = 30.0
"""A producer that has been silent for this many seconds is at rest."""


class Bench:
    """Two empty sites and a directory."""

    def __init__(self, directory: Path, brokers: Sequence[Mosquitto]) -> None:
        self.brokers = brokers
        self._directory = directory
        self._sites = [[f"dc{number}", broker.url] for number, broker in enumerate(brokers, 1)]
        self.memory_mb: dict[str, float] = {"producer": 0.0, "consumer": 0.0}

    def publisher(self, groups: dict[str, list[str]]) -> Child:
        config = {"sites": self._sites, "outbox": str(self._directory / "outbox.db"), "groups": groups}
        child = Child("repair_publish", config)
        child.answer()
        return child

    def consumer(self, topics: Sequence[str]) -> Child:
        config = {"sites": self._sites, "inbox": str(self._directory / "inbox.db"), "topics": list(topics)}
        child = Child("repair_consume", config)
        child.answer()
        return child

    def create(self, topics: Sequence[str]) -> None:
        """Have both brokers keep messages for the group."""
        for name, url in self._sites:
            create_group(Site(name, url), [Binding(topic, 0, "bench") for topic in topics], 60.0)

    def lose(self, topics: Sequence[str]) -> None:
        """Make both brokers lose everything that they hold; later messages are kept."""
        for broker in self.brokers:
            if not broker.stored():
                raise SystemExit("a broker holds no messages, so none can be lost")
            broker.kill()
            broker.wipe()
            broker.start()
        self.create(topics)

    def remember(self, producer: dict[str, Any], consumer: dict[str, Any]) -> None:
        for name, answer in (("producer", producer), ("consumer", consumer)):
            self.memory_mb[name] = max(self.memory_mb[name], answer["rss_mb"])


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    with work_directory() as directory, mosquittos() as brokers:
        yield Bench(directory, brokers)


def measure_control(seconds: float) -> tuple[dict[str, Any], dict[str, float]]:
    """Bytes of control frames relative to bytes of data, both sides and both sites together."""
    with bench() as place:
        consumer, producer = place.consumer(["live"]), place.publisher({"live": ["bench"]})
        count = round(RATE * seconds)
        sent = producer.ask(do="publish", topics=["live"], count=count, size=SIZE, rate=RATE)
        got = consumer.ask(topic="live", count=count, timeout=60)
        place.remember(sent, got)
        producer.end()
        consumer.end()
    if not got["done"]:
        raise SystemExit(f"of {count} messages {got['total']} arrived")
    percent = 100 * (sent["control"] + got["control"]) / sent["data"]
    found = {
        "percent": round(percent, 3),
        "target": MOST_CONTROL_PERCENT,
        "met": percent < MOST_CONTROL_PERCENT,
        "rate": round(count / sent["seconds"]),
        "data_bytes": sent["data"],
        "control_bytes": sent["control"] + got["control"],
        "repaired_bytes": sent["repairs"],
    }
    return found, place.memory_mb


def rest(producer: Child, consumer: Child, streams: int) -> None:
    """Wait until everything has arrived and is acknowledged, and the producer has been silent for longer than it waits
    before it repeats an announcement that a group has not acknowledged."""
    end = time.monotonic() + REST_S
    said, since = -1, time.monotonic()
    while time.monotonic() < min(end, since + SILENT_S):
        told = producer.ask(do="sleep", seconds=5)["frames"]
        if told != said or consumer.ask(topic="", count=0, timeout=0)["total"] != streams:
            said, since = told, time.monotonic()


def measure_idle(streams: int, seconds: float) -> tuple[dict[str, Any], dict[str, float]]:
    """The cost of streams without traffic, once everything is acknowledged."""
    topics = [f"idle-{number}" for number in range(streams)]
    with bench() as place:
        start = time.monotonic()
        consumer = place.consumer(topics)
        producer = place.publisher({topic: ["bench"] for topic in topics})
        opened = time.monotonic()
        producer.ask(do="publish", topics=topics, count=streams, size=SIZE, rate=0)
        rest(producer, consumer, streams)
        before, begun = producer.ask(do="sleep", seconds=0), consumer.ask(topic="", count=0, timeout=0)
        rested, opening = time.monotonic() - opened, opened - start
        start = time.monotonic()
        after = producer.ask(do="sleep", seconds=seconds)
        ended = consumer.ask(topic="", count=0, timeout=0)
        wall = time.monotonic() - start
        stored = sum(broker.stored() for broker in place.brokers)
        place.remember(after, ended)
        producer.end()
        consumer.end()
    if ended["total"] != streams:
        raise SystemExit(f"of {streams} streams {ended['total']} arrived")
    cpu = (after["cpu"] - before["cpu"]) + (ended["cpu"] - begun["cpu"])
    percent = 100 * cpu / wall
    found = {
        "streams": streams,
        "percent": round(percent, 2),
        "target": MOST_IDLE_PERCENT,
        "met": percent < MOST_IDLE_PERCENT and not stored,
        "frames": after["frames"] - before["frames"] + ended["frames"] - begun["frames"],
        "seconds": round(wall, 1),
        "seconds_to_open": round(opening, 1),
        "seconds_to_rest": round(rested, 1),
        "held_by_brokers": stored,
    }
    return found, place.memory_mb


def measure_repair(lost: int, peak: int) -> tuple[dict[str, Any], dict[str, float]]:
    """The delivery rate of lost messages, during live traffic, compared with that of publishing."""
    with bench() as place:
        producer = place.publisher({"lost": ["bench"], "live": ["bench"]})
        producer.ask(do="publish", topics=["peak"], count=peak // 4, size=SIZE, rate=0)  # warm-up
        publishing = (
            peak / producer.ask(do="publish", topics=["peak"], count=peak, size=SIZE, rate=0)["seconds"]
        )
        place.create(["lost", "live"])  # otherwise a confirm does not count
        producer.ask(do="publish", topics=["lost"], count=lost, size=SIZE, rate=0)
        place.lose(["lost", "live"])
        live = 20 * RATE
        began = time.time()
        consumer = place.consumer(["lost", "live"])
        producer.tell(do="publish", topics=["live"], count=live, size=SIZE, rate=RATE)
        got = consumer.ask(topic="lost", count=lost, timeout=120)
        sent = producer.answer()
        flowing = consumer.ask(topic="live", count=live, timeout=60)
        place.remember(sent, flowing)
        producer.end()
        consumer.end()
    if not (got["done"] and flowing["done"]):
        raise SystemExit(f"of {lost} lost and {live} live messages {flowing['delivered']} arrived")
    first_at, first = got["first"]
    rate = (lost - first) / max(got["at"] - first_at, 0.001)
    found = {
        "ours": round(rate),
        "peer": round(publishing),
        "ratio": round(rate / publishing, 2),
        "spread": [round(rate / publishing, 2)] * 2,
        "pairs": 1,
        "target": LEAST_REPAIR_RATIO,
        "direction": "least",
        "met": rate / publishing >= LEAST_REPAIR_RATIO,
        "lost": lost,
        "repaired_bytes": sent["repairs"],
        "seconds_from_start": round(got["at"] - began, 2),
        "live_rate": round(live / sent["seconds"]),
    }
    return found, place.memory_mb


def repair(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """One line with all figures; the figures of the line itself are those of the repair."""
    seconds = max(2.0, WATCHED_S * min(1.0, options.scale))
    found: dict[str, Any] = {}
    memory = {"producer": 0.0, "consumer": 0.0}
    measures: dict[str, Callable[[], tuple[dict[str, Any], dict[str, float]]]] = {
        "control": lambda: measure_control(seconds),
        "repair": lambda: measure_repair(options.scaled(LOST), options.scaled(PEAK)),
        "idle": lambda: measure_idle(options.scaled(STREAMS), seconds),
    }
    for name, measure in measures.items():
        found[name], used = measure()
        memory = {role: max(memory[role], used[role]) for role in memory}
        options.note(f"{name}: {found[name]}")
    found["memory"] = {
        **{f"{role}_mb": round(used, 1) for role, used in memory.items()},
        "target": MOST_MEMORY_MB,
        "met": max(memory.values()) < MOST_MEMORY_MB,
    }
    met = all(part["met"] for part in found.values())
    yield {"name": "repair", "unit": "messages/s", **found.pop("repair"), **found, "met": met}
