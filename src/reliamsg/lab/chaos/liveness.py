"""Liveness of a run: how long outstanding messages may take once all faults are over, and what excuses a stall.

The bound follows from the clients' settings, rule by rule. A message that arrives later is a stall, and a stall is a
violation, with one exception: a consumer's ``status()`` names the stream and the gap that holds it, and the run's fault
log confirms that the messages in the gap may be gone. They may be gone if every site that had to confirm them lost its
state and the producer need not keep them. Nothing else excuses a stall, since all other faults are over.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reliamsg.config import Site
from reliamsg.consumer.api import Consumer
from reliamsg.producer.api import Producer

__all__ = ["Work", "bound", "held_back", "may_be_gone"]

Settings = Mapping[str, Any]
Line = dict[str, Any]
Owed = tuple[str, str, int]
"""Producer, topic and number of a message."""

SLOWEST_PER_S = 50.0
"""Messages per second with the slowest settings: each message in its own batch, confirmed and acknowledged on disk
before the next one."""
LONGEST_PAUSE_S = 10.0
"""Between repair requests (A1)."""
LONGEST_SILENCE_S = 60.0
"""Between announcements of a silent producer (P13)."""
_PASSING = ("skip", "raise", "call:skip")
"""Policies that skip a gap after its timeout."""


@dataclass(frozen=True)
class Work:
    """The work that was outstanding when the faults were over."""

    messages: int
    """Deliveries, over all groups."""
    size: int = 100
    """Bytes of each."""
    faults_s: float = 0.0
    """The duration of the faults."""


def _complete(kind: type, given: Settings) -> dict[str, Any]:
    """All settings of a client or site: those in `given`, and the defaults of all others."""
    found = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not parameter.empty
    }
    return {**found, **given}


def bound(
    sites: Iterable[Settings], producers: Iterable[Settings], consumers: Iterable[Settings], work: Work
) -> float:
    """How many seconds after the end of all faults everything must have arrived. `sites`: the settings of every site of
    every client."""
    all_sites = [_complete(Site, site) for site in sites]
    all_producers = [_complete(Producer, producer) for producer in producers]
    all_consumers = [_complete(Consumer, consumer) for consumer in consumers]
    # A dead connection is detected after two heartbeats, a missing confirm after its timeout; then it is replaced.
    connected = max(
        max(2 * site["heartbeat"], site["confirm_timeout"]) + site["connect_timeout"] + site["backoff_max"]
        for site in all_sites
    )
    # The lease of a consumer that is gone expires, and its successor claims it.
    leased = max(consumer["takeover_timeout"] for consumer in all_consumers)
    # A loss at the end of a stream is detected by the next announcement; the longer the silence, the later it comes.
    announced = max(
        producer["hello_timeout"] + min(LONGEST_SILENCE_S, max(producer["status_interval"], work.faults_s))
        for producer in all_producers
    )
    # A repair request waits for repair_delay, and again for a gap that opens meanwhile; a lost request is repeated.
    asked = max(2 * consumer["repair_delay"] for consumer in all_consumers) + LONGEST_PAUSE_S
    # A stream that is joined in its middle waits for earlier messages (G4), and again after each gap that is skipped.
    gaps = max(
        consumer["gap_timeout"] * (2 if consumer["on_gap"] in _PASSING else 1) for consumer in all_consumers
    )
    repairs = min(
        producer["max_repair_bytes_per_second"] or SLOWEST_PER_S * max(1, work.size)
        for producer in all_producers
    )
    moved = work.messages / SLOWEST_PER_S + work.messages * work.size / repairs
    return float(connected + leased + announced + asked + gaps + moved)


def may_be_gone(producer: Settings, sites: int, lost_state: set[str]) -> bool:
    """Whether messages that a producer with these settings published may be gone: of its `sites` sites, those in
    `lost_state` lost their state."""
    if producer["release"] == "consumed":
        return False
    confirm = producer["confirm"]
    needed = sites if confirm == "all" else confirm["quorum"] if isinstance(confirm, dict) else 1
    return len(lost_state) >= needed


def held_back(
    outstanding: Iterable[Owed],
    published: Mapping[str, list[Line]],
    handled: list[Line],
    can_be_lost: set[str],
) -> set[Owed]:
    """The messages of a group that are held back by a gap that its consumer names and that the fault log confirms.

    `outstanding`: the messages that the group has not received. `published`: log lines by producer; `handled`: the
    group's. `can_be_lost`: producers whose messages may be gone. A stream is held by the gap that contains its first
    outstanding message.
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
    for owed in outstanding:
        streams.setdefault(owed[:2], []).append(owed)
    found: set[Owed] = set()
    for (name, topic), messages in streams.items():
        _, epoch, _, _, seq = min((ids[message] for message in messages), key=lambda id: (id[1], id[4]))
        if name in can_be_lost and any(
            (gap["producer"], gap["topic"], gap["epoch"]) == (name, topic, epoch)
            and gap["first"] <= seq <= (seq if gap["last"] is None else gap["last"])
            for gap in gaps
        ):
            found.update(messages)
    return found
