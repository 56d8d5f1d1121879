"""Audits that keep what they have read: the same verdict as without, whatever arrives in which order."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliamsg.audit import job, kept
from reliamsg.audit.expect import Expect
from reliamsg.audit.kept import Kept
from reliamsg.audit.windows import Baseline
from reliamsg.errors import ConfigError
from reliamsg.export.target import DirectoryTarget
from tests.audit.generated import Journals, journals
from tests.audit.local_spark import local_spark

audit = partial(job.audit, baseline=Baseline())
"""With the same window, whether there is a state or not."""
RUNS = 8
MOST = 12


def written(directory: Path, seed: int, runs: int = RUNS) -> list[Journals]:
    """The journals of some runs, sound ones and others."""
    rng = random.Random(seed)
    made = [
        journals(
            rng.getrandbits(32), f"-{number}", clean=number % 2 == 0, changes=0 if number % 2 == 0 else 2
        )
        for number in range(runs)
    ]
    for run in made:
        run.write(directory, rng)
    return made


def moved(paths: list[Path], source: Path, target: Path) -> None:
    for path in paths:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def shown(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Without what differs between audits with and without a state."""
    found = {name: value for name, value in verdict.items() if name != "seconds"}
    unlike = {"state_signature_checked"}
    found["evidence"] = {
        name: value for name, value in verdict.get("evidence", {}).items() if name not in unlike
    }
    return found


def without_incidents(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Without what depends on the audits before."""
    return {name: value for name, value in verdict.items() if name not in ("incidents", "window")}


@pytest.fixture
def here() -> SparkSession:
    """In this process: Spark itself takes seconds for each audit."""
    return local_spark(1)


def in_pieces(paths: list[Path], rng: random.Random, pieces: int) -> Iterator[list[Path]]:
    ends = sorted(rng.sample(range(1, len(paths)), pieces - 1))
    for start, end in zip([0, *ends], [*ends, len(paths)], strict=True):
        yield paths[start:end]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ["by row", pytest.param("any", marks=pytest.mark.integrations)])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_every_increment_gives_the_verdict_of_an_audit_of_everything(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, order: str
) -> None:
    """Also after parts have been joined, and where files were copied, rows are missing, or anything is wrong."""
    monkeypatch.setattr(kept, "MAX_PARTS", 2)
    written(tmp_path / "all", seed)
    paths = sorted((tmp_path / "all").rglob("*.ndjson"))
    rng = random.Random(seed)
    if order == "any":
        rng.shuffle(paths)
    else:
        paths.sort(key=lambda path: int(path.name.split("-")[1]))
    target, state = tmp_path / "journals", tmp_path / "state"
    expect = Expect(drained=seed % 2 == 0, now_us=2**60)
    for piece in in_pieces(paths, rng, 6):
        moved(piece, tmp_path / "all", target)
        with_state = audit(spark, target, state=state, expect=expect)
        assert shown(with_state) == shown(audit(spark, target, expect=expect))
    again = audit(spark, target, state=state, expect=expect)
    assert shown(again) == shown(with_state)


def test_what_was_kept_is_not_read_again(here: SparkSession, tmp_path: Path) -> None:
    """So segments may be archived; heads are always read."""
    target, state = tmp_path / "journals", tmp_path / "state"
    journals(5, "-x").write(target, random.Random(5))
    expect = Expect(drained=True, now_us=2**60)
    before = audit(here, target, state=state, expect=expect)
    assert before["verdict"] == "complete"
    for path in target.rglob("*.ndjson"):
        path.unlink()
    assert shown(audit(here, target, state=state, expect=expect)) == shown(before)


def test_a_file_that_was_copied_before_what_was_kept_is_read_as_a_whole(
    here: SparkSession, tmp_path: Path
) -> None:
    """Its segments are compared as without a state; where they are gone, rows are missing."""
    target, state = tmp_path / "journals", tmp_path / "state"
    run = journals(5, "-x")
    run.write(target, random.Random(5))
    expect = Expect(drained=True, now_us=2**60)
    audit(here, target, state=state, expect=expect)
    producers = [path for path in sorted(target.rglob("*.ndjson")) if "role=producer" in path.as_posix()]
    other = journals(5, "-x")
    other.write(
        tmp_path / "other", random.Random(6)
    )  # other cuts: from some row on, other segments of the same rows
    moved(sorted((tmp_path / "other").rglob("*.ndjson")), tmp_path / "other", target)
    found = audit(here, target, state=state, expect=expect)
    assert shown(found) == shown(audit(here, target, expect=expect))
    for path in producers:
        path.unlink()
    lacking = audit(here, target, state=state, expect=expect)
    assert shown(lacking) == shown(audit(here, target, expect=expect))


def test_times_within_what_was_kept(here: SparkSession, tmp_path: Path) -> None:
    target, state = tmp_path / "journals", tmp_path / "state"
    run = journals(9, "-x")
    run.write(target, random.Random(9))
    audit(here, target, state=state)
    walls = sorted({row.wall_us for _, _, rows in run.clients for row in rows})
    for until_us in walls[:: max(1, len(walls) // 6)]:
        expect = Expect(until_us=until_us, now_us=2**60)
        assert shown(audit(here, target, state=state, expect=expect)) == shown(
            audit(here, target, expect=expect)
        )


class TestDirectory:
    @pytest.fixture
    def state(self, here: SparkSession, tmp_path: Path) -> Path:
        journals(5, "-x").write(tmp_path / "journals", random.Random(5))
        audit(here, tmp_path / "journals", state=tmp_path / "state")
        return tmp_path / "state"

    def test_one_audit_at_a_time(self, state: Path) -> None:
        first = Kept(state)
        with pytest.raises(ConfigError, match="another audit is using this state"):
            Kept(state)
        first.close()
        Kept(state).close()

    @pytest.mark.parametrize("name", ["facts", "parts"])
    @pytest.mark.parametrize("how", ["changed", "gone"])
    def test_damage_is_named(
        self, here: SparkSession, tmp_path: Path, state: Path, name: str, how: str
    ) -> None:
        (path,) = state.glob(f"{name}-*") if name == "parts" else list(state.glob(f"{name}-*"))[:1]
        if how == "gone":
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        with pytest.raises(
            Exception, match=rf"{path.name}: {'missing' if how == 'gone' else 'damaged'}; remove"
        ):
            audit(here, tmp_path / "journals", state=state)

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "{}", f'{{"version": {kept.VERSION}}}', f'{{"version": {kept.VERSION}, "format": "x"}}'],
    )
    def test_a_damaged_list_of_files_is_named(self, state: Path, text: str) -> None:
        (state / "kept.json").write_text(text)
        with pytest.raises(ConfigError, match=r"kept\.json: damaged"):
            Kept(state)

    def test_names_lead_nowhere_else(self, state: Path) -> None:
        manifest = json.loads((state / "kept.json").read_text())
        manifest["files"][0]["name"] = "../x"
        (state / "kept.json").write_text(json.dumps(manifest))
        with pytest.raises(ConfigError, match="not the state of audits"):
            Kept(state)

    def test_a_directory_with_other_files_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("x")
        with pytest.raises(ConfigError, match=r"holds other things than the state of audits \(mine\.txt\)"):
            Kept(tmp_path)
        with pytest.raises(ConfigError, match="there is a file"):
            Kept(tmp_path / "mine.txt")

    def test_what_another_version_kept_is_folded_again(
        self, here: SparkSession, tmp_path: Path, state: Path
    ) -> None:
        before = {path.name for path in state.iterdir()}
        manifest = json.loads((state / "kept.json").read_text())
        (state / "kept.json").write_text(json.dumps(manifest | {"version": 99}))
        known = Kept(state)
        assert known.placed == []
        known.close()
        audit(here, tmp_path / "journals", state=state)
        after = {path.name for path in state.iterdir()}
        assert {"kept.json", "kept.lock"} <= after
        assert not (before & after) - {"kept.json", "kept.lock"}

    def test_a_crash_before_the_end_changes_nothing(
        self, here: SparkSession, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journals(6, "-y").write(tmp_path / "journals", random.Random(6))
        expect = Expect(drained=True, now_us=2**60)

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr("os.replace", killed)
            with pytest.raises(KeyboardInterrupt):
                audit(here, tmp_path / "journals", state=state, expect=expect)
        found = audit(here, tmp_path / "journals", state=state, expect=expect)
        assert shown(found) == shown(audit(here, tmp_path / "journals", expect=expect))
        manifest = json.loads((state / "kept.json").read_text())
        listed = {each["name"] for each in (*manifest["files"], manifest["audited"])}
        assert {path.name for path in state.iterdir()} == listed | {"kept.json", "kept.lock"}

    def test_only_its_owner_can_read_it(self, state: Path) -> None:
        assert state.stat().st_mode & 0o777 == 0o700


def test_copies_of_segments_are_counted(here: SparkSession, tmp_path: Path) -> None:
    target, state = tmp_path / "journals", tmp_path / "state"
    journals(5, "-x").write(target, random.Random(5))
    audit(here, target, state=state)
    paths = list(DirectoryTarget(target).paths())
    for path in paths[:2]:
        place = target / "copy" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target / path, place)
    with_state = audit(here, target, state=state, expect=Expect(now_us=2**60))
    assert with_state["evidence"]["duplicated"] == 2
    assert shown(with_state) == shown(audit(here, target, expect=Expect(now_us=2**60)))
