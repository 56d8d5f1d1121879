"""The section ``operation`` of a verdict: how often clients and sites were away."""

from __future__ import annotations

from typing import Any

import pytest

from reliamsg.audit.operation import operation
from tests.audit.reported import CRASH, MINUTES, OUTAGE, SITES, Diary, night, reported

MINUTE = 60.0
HOUR = 60


def counted(*diaries: Diary) -> dict[str, Any]:
    """The section for these journals."""
    found: dict[str, Any] = reported([diary.chain() for diary in diaries])[0]["operation"]
    return found


def watched(diary: Diary, *minutes: float, closed: bool = True) -> None:
    """Openings that begin and end at these minutes; each is closed, or ends with another row."""
    for begin, end in zip(minutes[::2], minutes[1::2], strict=True):
        diary.add(begin, "opened", sites=list(SITES))
        diary.add(end, "closed" if closed else "connected", site="" if closed else "dc1")


def test_a_night() -> None:
    found = reported(night())[0]["operation"]
    away = CRASH[1] - CRASH[0]
    assert found["groups"]["clients"] == 3
    assert found["groups"]["crashes"]["number"] == found["groups"]["breaks"]["number"] == 1
    assert found["groups"]["breaks"]["away_seconds"] == pytest.approx(away * MINUTE, rel=0.2)
    assert found["producers"]["clients"] == 9
    assert found["producers"]["breaks"]["number"] == 0
    assert found["producers"]["breaks"]["seconds"] == pytest.approx(9 * MINUTES * MINUTE, rel=0.1)
    assert found["producers"]["files_lost"] == found["groups"]["files_lost"] == 0
    assert found["sites"].keys() == set(SITES)
    dc1, dc2 = (found["sites"][site] for site in SITES)
    assert (dc1["number"], dc2["number"]) == (1, 0)
    assert dc1["away_seconds"] == pytest.approx((OUTAGE[1] - OUTAGE[0]) * MINUTE, rel=0.01)
    assert dc2["away_seconds"] == 0
    assert dc1["seconds"] == pytest.approx(MINUTES * MINUTE, rel=0.1)
    assert 0 < dc1["confirm_seconds"] < dc2["confirm_seconds"]


def test_clean_restarts_are_breaks_and_no_crashes() -> None:
    diary = Diary("producer", "p")
    watched(diary, 0, 10, 12, 20)
    found = counted(diary)["producers"]
    assert found["breaks"] == {"seconds": 20 * MINUTE, "number": 1, "away_seconds": 2 * MINUTE}
    assert found["crashes"] == {"seconds": 20 * MINUTE, "number": 0, "away_seconds": 0}


def test_the_end_of_what_may_still_run_is_no_crash() -> None:
    diary = Diary("producer", "p")
    watched(diary, 0, 10, 12, 20, closed=False)
    assert counted(diary)["producers"]["crashes"]["number"] == 1


def test_a_site_is_away_only_if_nobody_reaches_it() -> None:
    one, other = Diary("producer", "p"), Diary("producer", "q")
    for diary in (one, other):
        diary.add(0, "opened", sites=list(SITES))
        diary.add(1, "connected", site="dc1")
    one.add(10, "disconnected", site="dc1")
    one.add(20, "connected", site="dc1")
    other.add(18, "disconnected", site="dc1")
    other.add(24, "connected", site="dc1")
    for diary in (one, other):
        diary.add(30, "disconnected", site="dc1")
        diary.add(35, "connected", site="dc1")
        diary.add(HOUR, "closed")
    found = counted(one, other)["sites"]["dc1"]
    # The second minutes overlap from 18 to 20, and both are away from 30 to 35.
    assert (found["number"], found["away_seconds"]) == (2, 7 * MINUTE)
    assert found["seconds"] == 59 * MINUTE


def test_a_client_that_starts_does_not_count_before_it_is_connected() -> None:
    diary = Diary("group", "g")
    for begin in (0, 30):
        diary.add(begin, "opened", sites=list(SITES))
        diary.add(begin + 5, "connected", site="dc1")
        diary.add(begin + 20, "closed")
    found = counted(diary)["sites"]
    assert found == {"dc1": {"seconds": 30 * MINUTE, "number": 0, "away_seconds": 0, "confirm_seconds": None}}


def test_no_journals() -> None:
    found = operation([])
    nothing = {"seconds": 0, "number": 0, "away_seconds": 0}
    assert found["producers"] == {"clients": 0, "crashes": nothing, "breaks": nothing, "files_lost": 0}
    assert found["sites"] == {}


@pytest.mark.parametrize(("begin", "lost"), [(15, 0), (21, 1)])
def test_a_file_that_begins_while_another_is_in_use_belongs_to_a_standby(begin: int, lost: int) -> None:
    first, second = Diary("group", "g"), Diary("group", "g", boots=100)
    watched(first, 0, 20)
    watched(second, begin, 40)
    assert counted(first, second)["groups"]["files_lost"] == lost
