"""The black-box judge detects every kind of error, and every public setting is drawn."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, JournalExport, Producer, Site
from reliamsg.cli import main
from reliamsg.cli.status import Status
from reliamsg.errors import GapError, GapHeld
from reliamsg.lab.chaos.black_box import judge, losses, read_log
from reliamsg.lab.chaos.black_box_app import Log, note
from reliamsg.lab.chaos.settings import NOT_DRAWN, ROLES, draw, tally
from reliamsg.message import Gap, Stream
from tests.options import Size

Lines = list[dict[str, Any]]


def published(count: int = 6) -> Lines:
    log: Lines = []
    for n in range(1, count + 1):
        log.append({"op": "call", "topic": "t", "n": n, "sum": f"sum{n}", "life": 1})
        log.append({"op": "returned", "topic": "t", "n": n, "id": ["p", 9, "t", 0, n], "life": 1})
    return log


def got(n: int, *, life: int = 1, redelivered: bool = False, seq: int | None = None) -> dict[str, Any]:
    return {
        "op": "got", "producer": "p", "topic": "t", "n": n, "sum": f"sum{n}", "id": ["p", 9, "t", 0, seq or n],
        "redelivered": redelivered, "replayed": False, "life": life,
    }  # fmt: skip


def handled(*numbers: int) -> Lines:
    return [got(n) for n in numbers]


def verdict(log: Lines, calls: Lines | None = None) -> dict[str, int]:
    return dict(judge({"p": published() if calls is None else calls}, {"g": log}))


def lost(log: Lines, latest: bool = False) -> list[int]:
    return sorted(n for _, _, n in losses({"p": published()}, log, latest)[0])


def test_a_correct_log_has_no_errors() -> None:
    log = [*handled(1, 2, 3), got(2, life=2, redelivered=True), got(3, life=2, redelivered=True), *handled()]
    log += [got(n, life=2) for n in (4, 5, 6)]
    assert verdict(log) == {}
    assert lost(log) == []


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("duplicate without the flag", lambda log: log.insert(3, got(2))),
        ("out of order", lambda log: log.insert(1, log.pop(3))),
        ("never published", lambda log: log.append(got(7))),
        ("changed", lambda log: log[2].update(sum="other")),
        ("identity reused", lambda log: log[4].update(id=["p", 9, "t", 0, 1])),
        ("out of order", lambda log: log.append(got(0, life=2, redelivered=False))),
    ],
)
def test_each_kind_of_error_is_detected(kind: str, spoil: Callable[[Lines], None]) -> None:
    log = handled(1, 2, 3, 4, 5, 6)
    spoil(log)
    assert kind in verdict(log)


def test_an_identity_that_publish_returned_twice_is_detected() -> None:
    calls = published()
    calls[-1]["id"] = calls[1]["id"]
    assert verdict(handled(1, 2, 3, 4, 5), calls) == {"identity reused": 1}


def test_only_what_was_passed_before_it_was_known_is_logged_by_the_callback(tmp_path: Path) -> None:
    gap = Gap(Stream("p", "t"), 9, 2, 3, "joined late")
    log = Log(str(tmp_path / "log"))
    note(GapHeld(gap), log)
    assert not read_log(tmp_path / "log"), "it will be skipped, or else be filled"
    note(GapError(gap), log)
    assert losses({"p": published()}, [*handled(1, 4, 5, 6), *read_log(tmp_path / "log")]) == (
        set(),
        {"before": 2},
    )


def test_redeliveries_out_of_order_within_a_process_are_detected() -> None:
    log = [got(1), got(3, redelivered=True), got(2, redelivered=True)]
    assert verdict(log)["out of order"] == 1


@pytest.mark.parametrize(("gone", "where"), [(1, "prefix"), (3, "middle"), (6, "tail")])
def test_a_loss_is_detected(gone: int, where: str) -> None:
    assert lost(handled(*(n for n in range(1, 7) if n != gone))) == [gone], where


def test_what_the_application_was_told_of_and_what_was_removed_is_not_lost() -> None:
    told = {"producer": "p", "topic": "t", "epoch": 9, "first": 2, "last": 3, "life": 1}
    log = [*handled(1, 4, 5, 6), {"op": "gap", **told}]
    for op in ("gap", "before", "dead"):
        log[-1]["op"] = op
        assert losses({"p": published()}, log) == (set(), {op: 2})
    log[-1]["epoch"] = 8
    assert lost(log) == [2, 3], "a gap of another epoch does not cover these"
    held = {"op": "held", "gaps": [{"op": "gap", **told}], "life": 1}
    assert losses({"p": published()}, [*handled(1, 4, 5, 6), held])[0] == {("p", "t", 2), ("p", "t", 3)}, (
        "that a gap holds its stream is for another judge"
    )
    removed = [*published(), {"op": "removed", "topic": "t", "n": 2, "life": 1}]
    assert {n for _, _, n in losses({"p": removed}, log)[0]} == {3}


def test_a_group_that_wants_the_latest_may_miss_a_prefix_only() -> None:
    assert lost(handled(3, 4, 5, 6), latest=True) == []
    assert lost(handled(3, 5, 6), latest=True) == [4]
    assert lost([], latest=True) == [1, 2, 3, 4, 5, 6], "nothing was delivered at all: that is not a prefix"


def test_an_incomplete_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"op": "call"}\n{"op": "ca\n{"op": "returned"}\n')
    assert [line["op"] for line in read_log(path)] == ["call", "returned"]
    assert read_log(tmp_path / "none") == []


PUBLIC: dict[str, Callable[..., Any]] = {
    "site": Site, "producer": Producer, "consumer": Consumer, "journal": JournalExport,
}  # fmt: skip


@pytest.mark.parametrize("role", PUBLIC)
def test_every_public_setting_is_drawn_or_has_a_reason_not_to_be(role: str) -> None:
    parameters = set(inspect.signature(PUBLIC[role]).parameters)
    drawn, not_drawn = set(ROLES[role]), set(NOT_DRAWN[role])
    assert drawn | not_drawn == parameters
    assert not drawn & not_drawn
    assert all(NOT_DRAWN[role].values())


def test_every_value_is_drawn_and_accepted(seed: int) -> None:
    rng = random.Random(seed)
    runs = [draw(rng, rng.choice([("amqp", "mqtt"), ("mqtt",)])) for _ in range(1_500)]
    found = tally(runs)
    for role, settings in ROLES.items():
        for name, values in settings.items():
            assert set(map(str, values)) <= set(found[f"{role}.{name}"]), (role, name)
    for drawn in runs[:50]:
        if drawn.journal is not None:
            JournalExport("journals", **drawn.journal)
        for site in drawn.sites:
            Site("dc1", "amqp://localhost" if "queue_type" in site else "mqtt://localhost", **site)


@pytest.mark.integrations
def test_a_black_box_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int, size: Size
) -> None:
    """Only shows that it works; a proof takes hundreds of runs."""
    arguments = [
        "--black-box",
        "--runs",
        str(size(2, 40)),
        "--jobs",
        "2",
        "--seed",
        str(seed),
        "--dir",
        str(tmp_path),
    ]
    assert main(["lab", "chaos", "campaign", *arguments]) in (Status.OK, Status.INCOMPLETE)
    assert "NOT OK" not in capsys.readouterr().out
