"""Liveness of runs: planted stalls are violations, unless the client names a cause that the fault log confirms."""

from __future__ import annotations

from typing import Any

import pytest

from reliamsg.checker import Counts, Report
from reliamsg.checker.report import Finding
from reliamsg.lab.chaos.black_box_app import EXIT_HALTED
from reliamsg.lab.chaos.campaign_apps import Applications, enlarge_quarantine, expected_exits
from reliamsg.lab.chaos.campaign_run import compare
from reliamsg.lab.chaos.liveness import Work, bound, held_back, may_be_gone
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.result import Judgement, Observations, Result
from reliamsg.lab.chaos.scenario import Scenario

SITE = {"heartbeat": 1.0, "confirm_timeout": 2.0, "connect_timeout": 2.0, "backoff_max": 0.5}
CONSUMER = {"gap_timeout": 5.0, "on_gap": "hold", "repair_delay": 0.5, "takeover_timeout": 6.0}
PRODUCER = {"status_interval": 1.0, "hello_timeout": 0.0, "max_repair_bytes_per_second": None}


def within(work: Work | None = None, **changes: dict[str, Any]) -> float:
    return bound(
        [{**SITE, **changes.get("site", {})}], [{**PRODUCER, **changes.get("producer", {})}],
        [{**CONSUMER, **changes.get("consumer", {})}], work or Work(0),
    )  # fmt: skip


def test_a_bound_follows_from_the_settings() -> None:
    """Connected after 2 + 2 + 0.5 s, leased after 6 s, announced after 1 s, requested within 1 + 10 s, joined after 5
    s."""
    assert within() == pytest.approx(4.5 + 6.0 + 1.0 + 11.0 + 5.0)


@pytest.mark.parametrize(
    ("role", "name", "value", "more"),
    [
        ("site", "heartbeat", 10.0, 18.0), ("site", "confirm_timeout", 30.0, 28.0),
        ("site", "connect_timeout", 10.0, 8.0), ("site", "backoff_max", 5.0, 4.5),
        ("consumer", "takeover_timeout", 30.0, 24.0), ("consumer", "repair_delay", 2.0, 3.0),
        ("consumer", "gap_timeout", 30.0, 25.0), ("consumer", "on_gap", "skip", 5.0),
        ("producer", "status_interval", 3.0, 2.0), ("producer", "hello_timeout", 1.0, 1.0),
        ("consumer", "max_unacknowledged", 1, 0.0), ("producer", "max_bytes", 1 << 16, 0.0),
    ],
)  # fmt: skip
def test_each_setting_adds_the_time_of_its_rule(role: str, name: str, value: Any, more: float) -> None:
    changes: dict[str, Any] = {role: {name: value}}
    assert within(**changes) - within() == pytest.approx(more)


def test_outstanding_messages_and_the_duration_of_faults_count() -> None:
    assert within(Work(1_000, 100)) - within() == pytest.approx(20.0 + 20.0)
    slow = {"max_repair_bytes_per_second": 1_000}
    assert within(Work(1_000, 100), producer=slow) - within(producer=slow) == pytest.approx(20.0 + 100.0)
    assert within(Work(0, faults_s=20.0)) - within() == pytest.approx(19.0)
    assert within(Work(0, faults_s=900.0)) - within() == pytest.approx(59.0), (
        "announcements are a minute apart at most"
    )


def test_settings_that_are_not_given_have_their_defaults() -> None:
    assert bound([{}], [{}], [{}], Work(0)) > within()


@pytest.mark.parametrize(
    ("confirm", "lost_state", "gone"),
    [
        ("all", set(), False), ("all", {"dc1"}, False), ("all", {"dc1", "dc2"}, True),
        ("any", {"dc1"}, True), ("any", set(), False), ("all-active", {"dc2"}, True),
        ({"quorum": 2}, {"dc1"}, False), ({"quorum": 1}, {"dc1"}, True),
    ],
)  # fmt: skip
def test_when_messages_may_be_gone(confirm: Any, lost_state: set[str], gone: bool) -> None:
    """As many sites must have lost their state as had to confirm. Messages kept until consumed are never gone."""
    assert may_be_gone({"release": "confirmed", "confirm": confirm}, 2, lost_state) == gone
    assert not may_be_gone({"release": "consumed", "confirm": confirm}, 2, lost_state)


def published(count: int = 6, topic: str = "t") -> list[dict[str, Any]]:
    return [
        {"op": "returned", "topic": topic, "n": n, "id": ["p", 9, topic, 0, n], "life": 1}
        for n in range(1, count + 1)
    ]


def gap(
    first: int, last: int | None, topic: str = "t", epoch: int = 9, producer: str = "p"
) -> dict[str, Any]:
    return {"op": "gap", "producer": producer, "topic": topic, "epoch": epoch, "first": first, "last": last}


def held(*gaps: dict[str, Any], life: int = 1) -> dict[str, Any]:
    return {"op": "held", "gaps": list(gaps), "life": life}


LACKING = [("p", "t", n) for n in (3, 4, 5, 6)]
ALL = set(LACKING)


def explained(*log: dict[str, Any], gone: frozenset[str] = frozenset({"p"})) -> set[tuple[str, str, int]]:
    return held_back(LACKING, {"p": published()}, list(log), set(gone))


@pytest.mark.parametrize("last", [3, 4, 6, None])
def test_a_named_gap_that_faults_explain_excuses_a_stall(last: int | None) -> None:
    assert explained(held(gap(3, last))) == ALL


def test_a_planted_stall_without_a_named_cause_is_a_violation() -> None:
    assert explained() == set()
    assert explained(gap(3, 4)) == set(), "a gap that was skipped explains no stall"


def test_a_planted_stall_that_no_fault_explains_is_a_violation() -> None:
    """The client names the gap, but no broker lost anything, or the producer has to keep it."""
    assert explained(held(gap(3, 4)), gone=frozenset()) == set()
    assert explained(held(gap(3, 4)), gone=frozenset({"q"})) == set()


@pytest.mark.parametrize(
    "other", [gap(5, 6), gap(1, 2), gap(3, 4, topic="u"), gap(3, 4, epoch=8), gap(3, 4, producer="q")]
)
def test_a_planted_stall_with_another_named_cause_is_a_violation(other: dict[str, Any]) -> None:
    """Another part of the stream, another stream, another epoch, another producer."""
    assert explained(held(other)) == set()


def test_only_a_current_gap_explains_a_stall() -> None:
    """The gap was filled, but the stream stalls anyway."""
    assert explained(held(gap(3, 4)), held()) == set()
    assert explained(held(gap(3, 4)), held(life=2)) == ALL, (
        "another process of the group says nothing about it"
    )


def test_only_the_held_stream_is_excused() -> None:
    lacking = [*LACKING, ("p", "u", 2), ("p", "u", 3)]
    both = {"p": [*published(), *published(topic="u")]}
    assert held_back(lacking, both, [held(gap(3, 4))], {"p"}) == ALL


def compared(report: Report, **found: int) -> Result:
    scenario = Scenario("made-up", "For a test", "P1", 100, needs=frozenset(), own_brokers=True)
    judged = compare(Judgement("complete", **found), report)  # type: ignore[arg-type]
    return Result(scenario, 1, Observations(stakes=((1, "message"),)), judged)


def reported(*kinds: str, **counts: Any) -> Report:
    return Report([Finding(kind, "planted") for kind in kinds], Counts(**counts))


def test_there_is_no_problem_if_judge_and_checker_agree() -> None:
    assert compared(reported()).ok
    assert compared(reported("removed", "declared_gap", declared_gaps=2)).ok
    assert compared(reported("lost", lost=3), held=3).ok, "held back for a cause that the faults explain"


@pytest.mark.parametrize("kind", ["phantom", "published_unconfirmed", "pending", "not_durable"])
def test_a_finding_of_the_checker_alone_is_a_violation(kind: str) -> None:
    assert not compared(reported(kind)).ok


@pytest.mark.parametrize("kind", ["lost", "duplicates", "out_of_order", "phantom"])
def test_a_count_of_the_checker_alone_is_a_violation(kind: str) -> None:
    assert not compared(reported(**{kind: 2})).ok


def test_a_count_of_the_judge_alone_is_a_violation() -> None:
    assert any("judge 1" in problem for problem in compared(reported(), duplicates=1).problems)


def test_a_full_quarantine_is_enlarged_once_and_only_if_there_are_too_many_streams() -> None:
    streams = 4

    def group(max_streams: int) -> App:
        return App("none", {"options": {"max_streams": max_streams, "max_quarantine_bytes": 1024 * 1024}})

    assert not enlarge_quarantine(group(streams), streams), "there is a place for each"
    crowded = group(streams - 1)
    assert enlarge_quarantine(crowded, streams)
    assert crowded.config["options"]["max_quarantine_bytes"] > 64 * 1024 * 1024
    assert not enlarge_quarantine(crowded, streams), "that much is not published"


@pytest.mark.parametrize(
    ("on_dead_letter", "fails", "halts"),
    [("halt", 0.02, True), ("halt", 0.0, False), ("continue", 0.02, False)],
)
def test_only_a_handler_that_was_to_halt_and_fails_may_exit_by_itself(
    on_dead_letter: str, fails: float, halts: bool
) -> None:
    config = {"options": {"on_dead_letter": on_dead_letter}, "handling": {"fails": fails}}
    assert (EXIT_HALTED in expected_exits(App("none", config))) is halts
    assert EXIT_HALTED not in expected_exits(App("none", {"options": {}}))


def test_handlers_are_supervised_while_publishers_lack_confirms() -> None:
    """With release="consumed", confirms may wait for a handler that has just exited."""
    supervised = []

    class Waiting(Applications):
        def __init__(self) -> None:
            """Without processes."""

        def outstanding(self, can_be_lost: set[str] | None = None) -> list[tuple[str, str, int]]:
            supervised.append(can_be_lost)
            return []

        def unsettled(self) -> list[App]:
            return [App("p1", {})]

    assert not Waiting().are_done({"p1"})
    assert supervised == [{"p1"}]
