"""Random histories, corrupted at random places, are never called complete."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from reliamsg.checker.report import Verdict
from reliamsg.store.journal import Entry
from tests.chance import examples
from tests.checker.histories import History, digest_of, make

GROUP = "primary"


def _pick(rng: random.Random, history: History, client: str, kind: str) -> tuple[list[Entry], int]:
    return rng.choice(history.entries(client, kind))


def drop_delivery(rng: random.Random, history: History) -> None:
    """A range is removed from the messages that the group was delivered and acknowledged, as if its client had skipped
    it."""
    boot, i = _pick(rng, history, GROUP, "delivered")
    hole = boot[i]
    for rows in history.boots(GROUP):
        rows[:] = [piece for row in rows for piece in _without(row, hole)]


def _without(row: Entry, hole: Entry) -> list[Entry]:
    taken = ("delivered", "redelivered", "acknowledged")
    if row.kind not in taken or (row.stream, row.epoch) != (hole.stream, hole.epoch) or row.stream is None:
        return [row]
    parts = ((row.first, min(row.last, hole.first - 1)), (max(row.first, hole.last + 1), row.last))
    return [
        replace(
            row,
            first=a,
            last=b,
            digest=None if row.digest is None else digest_of(row.stream, row.epoch, a, b),
        )
        for a, b in parts
        if a <= b
    ]


def repeat_delivery(rng: random.Random, history: History) -> None:
    boot, i = _pick(rng, history, GROUP, "delivered")
    boot.insert(rng.randint(i + 1, len(boot) - (boot[-1].kind == "closed")), replace(boot[i]))


def alter_content(rng: random.Random, history: History) -> None:
    boot, i = _pick(rng, history, GROUP, "delivered")
    boot[i] = replace(boot[i], digest=(boot[i].digest or 0) ^ (1 << rng.randrange(64)))


def swap_deliveries(rng: random.Random, history: History) -> None:
    """Two consecutive deliveries of one stream are swapped."""
    places = [(boot, i) for boot, i in history.entries(GROUP, "delivered")]
    pairs = [
        (boot, i, j)
        for boot, i in places
        for other, j in places
        if other is boot and j > i and boot[j].stream == boot[i].stream
    ]
    if not pairs:
        repeat_delivery(rng, history)
        return
    boot, i, j = rng.choice(pairs)
    boot[i], boot[j] = boot[j], boot[i]


def forget_acknowledgement(rng: random.Random, history: History) -> None:
    boot, i = _pick(rng, history, GROUP, "acknowledged")
    del boot[i]


def acknowledge_twice(rng: random.Random, history: History) -> None:
    boot, i = _pick(rng, history, GROUP, "acknowledged")
    boot.insert(i + 1, replace(boot[i]))


def forget_publication(rng: random.Random, history: History) -> None:
    boot, i = _pick(rng, history, "A", "published")
    del boot[i]


def forget_enqueueing(rng: random.Random, history: History) -> None:
    boot, i = _pick(rng, history, "A", "enqueued")
    del boot[i]


def enqueue_twice(rng: random.Random, history: History) -> None:
    boot, i = _pick(rng, history, "A", "enqueued")
    boot.insert(i + 1, replace(boot[i]))


MUTANTS: dict[str, set[Verdict]] = {
    "drop_delivery": {"violated", "lost"},
    "repeat_delivery": {"violated"},
    "alter_content": {"violated"},
    "swap_deliveries": {"violated"},
    "forget_acknowledgement": {"unknown", "violated"},
    "acknowledge_twice": {"violated"},
    "forget_publication": {"unknown"},
    "forget_enqueueing": {"violated"},
    "enqueue_twice": {"violated"},
}


@settings(max_examples=examples(100, full=2_000))
@given(seed=st.integers(0, 2**32), name=st.sampled_from(sorted(MUTANTS)))
def test_spoilt_history_is_convicted(seed: int, name: str) -> None:
    history = make(seed, logs=False)
    globals()[name](random.Random(seed), history)
    report = history.check()
    assert report.verdict in MUTANTS[name], report.text()
