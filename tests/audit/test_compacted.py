"""Compacted journals are judged like the segments that they were, by both programs, on random journals."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from reliamsg.audit.compaction import Compacted, compact
from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.audit.windows import Baseline
from reliamsg.checker import Expect as PlainExpect
from reliamsg.checker import check_directory
from tests.audit.equality import shared
from tests.audit.local_spark import local_spark
from tests.audit.test_increments import expectation, made, with_forks
from tests.audit.test_kept import in_pieces, moved, shown
from tests.chance import examples

COUNTED = ("checkpoints", "checkpoint_signatures_checked")


def audited(place: Path, expect: Expect, seed: int, state: Path | None = None) -> dict[str, Any]:
    found = shown(audit(local_spark(seed), place, state=state, expect=expect, baseline=Baseline()))
    for name in COUNTED:
        del found["evidence"][name]
    return found


def checked(place: Path, expect: Expect) -> dict[str, Any]:
    plain = PlainExpect(drained=expect.drained, until_us=expect.until_us, now_us=expect.now_us)
    return check_directory(place, plain).as_dict()


def without_place(found: Any, place: Path) -> Any:
    """With the same names wherever the journals are."""
    match found:
        case dict():
            return {without_place(k, place): without_place(v, place) for k, v in found.items()}
        case list() | tuple():
            return type(found)(without_place(each, place) for each in found)
        case str():
            return found.replace(str(place), "PLACE")
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: (value, other[name]) for name, value in one.items() if other[name] != value}


def alike(segments: Path, compacted: Path, expect: Expect, seed: int, state: Path) -> None:
    """Both programs, on both forms, with a state and without."""
    whole = without_place(audited(segments, expect, seed), segments)
    by_checker = without_place(shared(checked(segments, expect)), segments)
    assert not differing(without_place(shared(whole), segments), by_checker), "segments"
    again = without_place(shared(checked(compacted, expect)), compacted)
    assert not differing(by_checker, again), "the checker, on checkpoints"
    assert not differing(whole, without_place(audited(compacted, expect, seed), compacted)), "the audit"
    kept = without_place(audited(compacted, expect, seed, state), compacted)
    assert not differing(whole, kept), "the audit with a state"


def compacted_at_random(place: Path, rng: random.Random, archive: Path) -> list[Compacted]:
    """Some clients, with or without an archive."""
    names = sorted({path.name.removeprefix("client=") for path in place.glob("role=*/client=*")})
    chosen = rng.sample(names, rng.randint(1, len(names))) if names else []
    kept = archive if rng.random() < 0.6 else None
    return list(compact(place, clients=chosen, archive=kept)) if chosen else []


@settings(
    max_examples=examples(8),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32 - 1))
def test_compacted_journals_are_judged_alike(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Segments arrive in order, and are compacted and archived now and then."""
    rng = random.Random(seed)
    place = tmp_path_factory.mktemp("compacted")
    runs = made(seed, rng)
    for run in runs:
        run.write(place / "all", rng)
        if rng.random() < 0.2:
            with_forks(run, place / "all", rng)
    paths = sorted((place / "all").rglob("*.ndjson"), key=lambda path: (path.name.split("-")[1], path))
    for piece in in_pieces(paths, rng, min(len(paths), rng.randint(2, 5))):
        moved(piece, place / "all", place / "segments")
        moved(piece, place / "all", place / "compacted")
        compacted_at_random(place / "compacted", rng, place / "archive")
        strays = forks_of_archived(place)
        if strays:
            return  # tested below
        alike(place / "segments", place / "compacted", expectation(runs, rng), seed, place / "state")


def forks_of_archived(place: Path) -> list[Path]:
    """Segments that arrived after others of the same rows had been archived."""
    archived = {
        (path.parent.parent, path.name.split("-")[1]): path.name
        for path in (place / "archive").rglob("*.ndjson")
    }
    found = []
    for path in (place / "compacted").rglob("*.ndjson"):
        home = place / "archive" / path.relative_to(place / "compacted").parent.parent
        ends = [int(first) for at, first in archived if at == home]
        if ends and int(path.name.split("-")[1]) <= max(ends):
            found.append(path)
    return found


def test_a_copy_of_everything_is_whole(tmp_path: Path) -> None:
    """What was archived, put beside the checkpoints, changes nothing."""
    rng = random.Random(5)
    for run in made(5, rng):
        run.write(tmp_path / "journals", rng)
    expect = Expect(now_us=2**60)
    before = audited(tmp_path / "journals", expect, 1)
    done = list(compact(tmp_path / "journals", archive=tmp_path / "archive"))
    assert any(each.archived for each in done)
    shutil.copytree(tmp_path / "archive", tmp_path / "journals", dirs_exist_ok=True)
    assert audited(tmp_path / "journals", expect, 2) == before
