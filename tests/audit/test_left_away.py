"""Whatever part of a run's journals is removed, the verdict on the others is not ``complete``.

Every opening of every client was closed, and no file shows by itself that another should follow it. Information that
only the removed files had can't be missed: expectations exist for that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.tasks import MAX_FINDINGS
from reliamsg.checker import Expect, check_directory
from reliamsg.checker.journals import Role
from reliamsg.store.journal import JournalRow
from reliamsg.store.segment import Segment
from tests.audit.equality import shared
from tests.audit.generated import Journals, journals, segments
from tests.chance import examples
from tests.options import Size


def _cut(made: Journals, seed: int) -> list[tuple[Role, str, list[Segment]]]:
    """The segments of a run, cut at the same places for every tag."""
    rng = random.Random(seed)
    return [(role, name, segments(role, name, rows, rng)) for role, name, rows in made.clients]


def _tell(rows: list[JournalRow]) -> bool:
    """Whether rows are about messages."""
    return any(row.topic and row.last for row in rows)


def _is_told_of(made: Journals, client: int, gone: list[JournalRow]) -> bool:
    """Whether other journals refer to the messages in these rows of a client."""
    role, name, _ = made.clients[client]
    others = [row for i, (_, _, rows) in enumerate(made.clients) if i != client for row in rows]
    if role == "group":  # a message without a row in any group's journal was not delivered to it
        return any(row.group == name or repr(name) in str(row.detail) for row in others)
    openings = {row.incarnation for row in gone if row.kind in ("opened", "enqueued")}
    return any(row.incarnation in openings for row in others) or any(
        f"{opening:016x}" in str(row.detail) for row in others for opening in openings
    )


def _ways(seed: int) -> Iterator[tuple[int, frozenset[int]]]:
    """The files that may be removed, by the client's number: each file with messages, and everything from one of the
    client's openings on."""
    made = journals(seed, "", closed=True)
    for client, (_, _, files) in enumerate(_cut(made, seed)):
        rows = {row.lsn: row for row in made.clients[client][2]}
        own = [[rows[lsn] for lsn in range(f.header.first_lsn, f.header.last_lsn + 1)] for f in files]
        parts = [[i] for i in range(len(own))]
        boots = [[i for i, _ in run] for _, run in groupby(enumerate(own), key=lambda each: each[1][0].boot)]
        parts += [[i for boot in boots[number:] for i in boot] for number in range(len(boots))]
        for part in parts:
            gone = [row for i in part for row in own[i]]
            # A file with a successor is missed by it.
            if _tell(gone) and (part[-1] < len(own) - 1 or _is_told_of(made, client, gone)):
                yield client, frozenset(part)


def _write(place: Path, seed: int, tag: str, client: int, left: frozenset[int]) -> Journals:
    made = journals(seed, tag, closed=True)
    for number, (_, _, files) in enumerate(_cut(made, seed)):
        for i, segment in enumerate(files):
            if number != client or i not in left:
                path = place / segment.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(segment.data)
    return made


@settings(max_examples=examples(4, full=100), deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_by_the_plain_checker(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    place = tmp_path_factory.mktemp("journals")
    whole = journals(seed, "", closed=True)
    for number, (client, left) in enumerate(_ways(seed)):
        _write(place / str(number), seed, "", client, left)
        verdict = check_directory(place / str(number), Expect(drained=True)).verdict
        assert verdict != "complete", f"seed {seed}, of client {client} without {sorted(left)}:\n{whole}"


@pytest.mark.integrations
@pytest.mark.timeout(900)
def test_by_spark(spark: SparkSession, tmp_path: Path, size: Size) -> None:
    """All in one audit: the names attribute findings to their runs."""
    for first in range(0, size(1, 10)):
        place, ways = (
            tmp_path / str(first),
            [(seed, way) for seed in range(first * 3, first * 3 + 3) for way in _ways(seed)],
        )
        for number, (seed, (client, left)) in enumerate(ways):
            _write(place, seed, f"-{number}", client, left)
        verdict = audit(spark, place, expect=AuditExpect(drained=True))
        assert verdict["findings_total"] < MAX_FINDINGS, "not all findings are here to be compared"
        assert shared(verdict) == shared(check_directory(place, Expect(drained=True)).as_dict())
        told = {int(tag) for each in verdict["findings"] for tag in re.findall(r"-(\d+)\b", str(each))}
        assert [ways[number] for number in range(len(ways)) if number not in told] == []
