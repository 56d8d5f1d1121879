"""A client's empty directory tells that there was a journal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from reliamsg.audit.expect import Expect
from reliamsg.audit.job import audit
from reliamsg.audit.windows import Baseline
from reliamsg.checker import Expect as PlainExpect
from reliamsg.checker import check_directory
from tests.audit.equality import shared
from tests.audit.generated import journals
from tests.audit.local_spark import local_spark
from tests.cli.commands import json_of, reliamsg_here

NOW_US = 2**60


def judged(place: Path) -> tuple[str, list[str]]:
    """The verdict and the missing evidence, on which both programs agree."""
    found = audit(local_spark(1), place, expect=Expect(drained=True, now_us=NOW_US), baseline=Baseline())
    plain = check_directory(place, PlainExpect(drained=True, now_us=NOW_US)).as_dict()
    assert shared(found) == shared(plain)
    return found["verdict"], found["evidence"]["missing"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    journals(5, "-0", clean=True, closed=True).write(tmp_path / "journals", random.Random(5))
    return tmp_path / "journals"


@pytest.mark.parametrize("role", ["producer", "group"])
@pytest.mark.parametrize("inside", ["", "date=2026-09-21"])
def test_of_a_client_that_nobody_names(role: str, inside: str, place: Path) -> None:
    assert judged(place) == ("complete", [])
    (place / f"role={role}" / "client=gone%2Faway" / inside).mkdir(parents=True)
    assert judged(place) == ("unknown", [f"no journal of {role} gone/away"])
    verified = reliamsg_here("journal", "verify", place, "--json")
    assert verified.returncode == 2
    assert f"no journal of {role} gone/away" in json_of(verified.stdout)["problems"]


def test_of_a_client_with_other_directories(place: Path) -> None:
    (next(place.glob("role=*/client=*")) / "date=2020-01-01").mkdir()
    assert judged(place) == ("complete", [])


def test_of_nobody(place: Path) -> None:
    (place / "role=other" / "client=x").mkdir(parents=True)
    (place / ".role=group" / "role=group" / "client=hidden").mkdir(parents=True)
    (place / "role=group" / "something").mkdir(parents=True)
    assert judged(place) == ("complete", [])
