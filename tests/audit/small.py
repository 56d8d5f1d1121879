"""The journals of one producer and one group, written as segments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reliamsg.checker.journals import Chain
from reliamsg.store.journal import JournalRow
from tests.audit.fleet import Writer, sum_of
from tests.audit.generated import segments

__all__ = ["PLACE", "clients", "written"]

PLACE: dict[str, Any] = {"epoch": 1, "stream": ("p", "t"), "incarnation": 7}


def clients(
    acknowledged: Sequence[tuple[int, int, dict[int, int] | None]] = ((1, 100, None),),
) -> tuple[Writer, Writer]:
    """A producer and a group, neither of which is closed yet, after a hundred messages."""
    producer, group = Writer("producer", "p"), Writer("group", "g")
    producer.boot(groups={"t": ["g"]}, sites=["dc1"], confirm="all")
    producer.rows[-1] = replace(producer.rows[-1], epoch=PLACE["epoch"], incarnation=PLACE["incarnation"])
    producer.add("epoch", prev=None, **PLACE)
    producer.add("enqueued", 1, 100, digest=sum_of("it", 1, 100), **PLACE)
    producer.add("confirmed", 1, 100, site="dc1", **PLACE).add("published", 1, 100, **PLACE)
    group.boot(topics=["t"], sites=["dc1"])
    group.add("joined", 1, **PLACE).add("received", 1, 100, site="dc1", **PLACE)
    group.add("delivered", 1, 100, digest=sum_of("it", 1, 100), **PLACE)
    for first, last, latency in acknowledged:
        group.add("acknowledged", first, last, latency=latency, **PLACE)
    return producer, group


class _Shortest(random.Random):
    """Every row is a segment."""

    def random(self) -> float:
        return 0.0


def written(place: Path, chains: Sequence[Chain]) -> list[Path]:
    """Write each row as a segment of its own; returns the paths by client and in order of rows."""
    found = []
    for chain in chains:
        names = {boot.name: f"{number:016x}" for number, boot in enumerate(chain.boots, 1)}
        rows: list[JournalRow] = [replace(row, boot=names[row.boot]) for row in chain.rows]
        for segment in segments(chain.role, chain.client, rows, _Shortest()):
            path = place / segment.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(segment.data)
            found.append(path)
    return found
