"""Liveness of a run: how long what is owed may take once all faults are over, and what may keep it for good.

The bound follows from the settings of the clients that took part, rule by rule. What has not come by then is a stall,
and a stall is a violation, unless a consumer's ``status()`` names the stream and the gap that holds it, and the run's
own fault log says that what is in the gap can be gone: every site that had to confirm it forgot what it held, and the
producer need not keep it. Nothing else that a client may say excuses a stall, since all other faults are over.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reliamsg.config import Site
from reliamsg.receiving.consumer import Consumer
from reliamsg.sending.producer import Producer

__all__ = ["Work", "bound", "held_back", "may_be_gone"]

Settings = Mapping[str, Any]
Line = dict[str, Any]
Owed = tuple[str, str, int]
"""Producer, topic and number of a message."""

SLOWEST_PER_S = 50.0
"""Messages a second that the worst settings still let through: each in a batch of its own, confirmed and acknowledged
on disk before the next."""
LONGEST_PAUSE_S = 10.0
"""Between requests for what is missing (A1)."""
LONGEST_SILENCE_S = 60.0
"""Between a producer's announcements, however long it has been silent (P13)."""
_PASSING = ("skip", "raise", "call:skip")
"""Policies that go on behind a gap when its time is over."""


@dataclass(frozen=True)
class Work:
    """What was left to do when the faults were over."""

    messages: int
    """Deliveries that were owed, over all groups."""
    size: int = 100
    """Bytes of each."""
    faults_s: float = 0.0
    """For how long there had been faults."""


def _complete(kind: type, given: Settings) -> dict[str, Any]:
    """All settings of a client or site: those `given`, and the defaults of the others."""
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not parameter.empty
    }
    return {**found, **given}


def bound(
    sites: Iterable[Settings], producers: Iterable[Settings], consumers: Iterable[Settings], work: Work
) -> float:
    """Within how many seconds of the end of all faults everything must have come. `sites`: as each client is told of
    each."""
    all_sites = [_complete(Site, site) for site in sites]
    all_producers = [_complete(Producer, producer) for producer in producers]
    all_consumers = [_complete(Consumer, consumer) for consumer in consumers]
    # A dead connection is noticed after two heartbeats, a confirm that never comes after its time; then it is renewed.
    connected = max(
        max(2 * site["heartbeat"], site["confirm_timeout"]) + site["connect_timeout"] + site["backoff_max"]
        for site in all_sites
    )
    # A lease of a consumer that is gone ends, and the next one proves that it is the one that reads.
    leased = max(consumer["takeover_timeout"] for consumer in all_consumers)
    # What was lost at the end of a stream is noticed by the next announcement, the later the longer the silence was.
    announced = max(
        producer["hello_timeout"] + min(LONGEST_SILENCE_S, max(producer["status_interval"], work.faults_s))
        for producer in all_producers
    )
    # A request waits for nak_delay, a gap that opens during that for another one; one that was lost is repeated.
    asked = max(2 * consumer["nak_delay"] for consumer in all_consumers) + LONGEST_PAUSE_S
    # A stream that is met in its middle waits for what comes before (G4); one whose gap is passed waits once more.
    gaps = max(
        consumer["gap_timeout"] * (2 if consumer["on_gap"] in _PASSING else 1) for consumer in all_consumers
    )
    repairs = min(
        producer["max_repair_bytes_per_second"] or SLOWEST_PER_S * max(1, work.size)
        for producer in all_producers
    )
    moved = work.messages / SLOWEST_PER_S + work.messages * work.size / repairs
    return float(connected + leased + announced + asked + gaps + moved)


def may_be_gone(producer: Settings, sites: int, forgot: set[str]) -> bool:
    """Whether messages of a producer with these settings can be gone though it published them: `forgot` are those of
    its `sites` sites that forgot what they held."""
    if producer["release"] == "consumed":
        return False
    confirm = producer["confirm"]
    needed = sites if confirm == "all" else confirm["quorum"] if isinstance(confirm, dict) else 1
    return len(forgot) >= needed


def held_back(
    lacking: Iterable[Owed], published: Mapping[str, list[Line]], handled: list[Line], gone: set[str]
) -> set[Owed]:
    """Those of the messages that a group lacks that a gap holds back that its consumer names, and that the fault log
    confirms.

    `published`: log lines by producer; `handled`: the group's. `gone`: producers whose messages can be gone. A stream
    is held by the gap that holds the first message that it lacks.
    """
    latest = {at["life"]: at["gaps"] for at in handled if at["op"] == "held"}
    gaps = [gap for gaps in latest.values() for gap in gaps]
    ids = {
        (name, at["topic"], at["n"]): at["id"]
        for name, log in published.items()
        for at in log
        if at["op"] == "returned"
    }
    streams: dict[tuple[str, str], list[Owed]] = {}
    for owed in lacking:
        streams.setdefault(owed[:2], []).append(owed)
    found: set[Owed] = set()
    for (name, topic), messages in streams.items():
        _, epoch, _, _, seq = min((ids[message] for message in messages), key=lambda id: (id[1], id[4]))
        if name in gone and any(
            (gap["producer"], gap["topic"], gap["epoch"]) == (name, topic, epoch)
            and gap["first"] <= seq <= (seq if gap["last"] is None else gap["last"])
            for gap in gaps
        ):
            found.update(messages)
    return found
