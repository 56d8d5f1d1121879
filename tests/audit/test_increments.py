"""Audits with a state agree with audits of everything, on random journals in random increments, without Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from reliamsg.audit import kept
from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.audit.windows import Baseline
from tests.audit.generated import Journals, journals, segments
from tests.audit.local_spark import local_spark
from tests.audit.test_kept import in_pieces, moved, shown
from tests.chance import examples


def made(seed: int, rng: random.Random) -> list[Journals]:
    """A few runs, some sound, with restores, takeovers, renumbering and changes of groups."""
    return [
        journals(
            rng.getrandbits(32), f"-{number}", clean=rng.random() < 0.5, changes=rng.choice((0, 0, 1, 2, 4))
        )
        for number in range(rng.randint(1, 3))
    ]


def with_forks(run: Journals, target: Path, rng: random.Random) -> None:
    """Some files were copied: their segments are cut otherwise from some row on, and may end earlier."""
    for role, name, rows in run.clients:
        if not rows or rng.random() < 0.8:
            continue
        end = rng.randint(1, len(rows))
        for segment in segments(role, name, rows[:end], rng):
            path = target / segment.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(segment.data)


def expectation(runs: list[Journals], rng: random.Random) -> Expect:
    walls = sorted(row.wall_us for run in runs for _, _, rows in run.clients for row in rows)
    mode = rng.choice(("", "drained", "until"))
    until_us = rng.choice(walls) if mode == "until" and walls else None
    return Expect(drained=mode == "drained", until_us=until_us, now_us=2**60)


@settings(
    max_examples=examples(25),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_increment_agrees_with_an_audit_of_everything(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    place = tmp_path_factory.mktemp("increments")
    runs = made(seed, rng)
    for run in runs:
        run.write(place / "all", rng)
        if rng.random() < 0.3:
            with_forks(run, place / "all", rng)
    paths = sorted((place / "all").rglob("*.ndjson"))
    if rng.random() < 0.5:
        paths.sort(key=lambda path: int(path.name.split("-")[1]))
    else:
        rng.shuffle(paths)
    most, kept.MAX_PARTS = kept.MAX_PARTS, rng.choice((1, 2, 16))
    try:
        for number, piece in enumerate(in_pieces(paths, rng, min(len(paths), rng.randint(2, 6)))):
            moved(piece, place / "all", place / "journals")
            expect = expectation(runs, rng)
            found = audited(place, seed + number, expect, place / "state")
            whole = audited(place, seed - number, expect)
            differ = {name: (value, found[name]) for name, value in whole.items() if found[name] != value}
            assert not differ, f"seed {seed}, increment {number}, {expect}"
    finally:
        kept.MAX_PARTS = most


def audited(place: Path, seed: int, expect: Expect, state: Path | None = None) -> dict[str, Any]:
    return shown(
        audit(local_spark(seed), place / "journals", state=state, expect=expect, baseline=Baseline())
    )
