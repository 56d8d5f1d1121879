"""The product in simulated worlds: hundreds of seeds, each judged by the simulator and by the plain checker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from reliamsg.simulation.faults import FAULTS
from reliamsg.simulation.runner import Outcome, run, run_many
from reliamsg.simulation.scenario import draw
from reliamsg.simulation.world import World
from tests.children import one_output_whatever_the_hash_seed
from tests.options import Size

PARTS = 12
INTEGRATIONS = range(1, PARTS)
"""Parts for which ``make test`` has no time."""


@pytest.mark.parametrize(
    "part",
    [pytest.param(n, marks=[pytest.mark.integrations] if n in INTEGRATIONS else []) for n in range(PARTS)],
)
def test_no_seed_breaks_a_promise(part: int, size: Size) -> None:
    each = size(300, 3_000) // PARTS
    failed: list[Outcome] = []

    def note(outcome: Outcome) -> None:
        if outcome.violations:
            failed.append(outcome)

    run_many(range(part * each, (part + 1) * each), 200, on_outcome=note)
    for outcome in failed:
        print(f"reliamsg lab simulate --seed {outcome.scenario.seed} --trace")
        print(*outcome.violations[:5], outcome.error, sep="\n")
    assert not failed


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        # A group that begins with the latest waits for messages, none of which has arrived.
        (
            914878803180,
            "misroute,refuse,broker_down,broker_empty,two_sessions,cut_up,cut_down,delay,torn_write,torn_checkpoint,"
            "pause,disk_full,fsync_error,far_epoch",
        ),
        # A consumer finds a gap in its last commit.
        (
            908363731119,
            "crash,crash_before_commit,torn_write,pause,restart,restored,restored_inbox,wal_lost,forged",
        ),
        # A group waits for messages that it has received under other numbers.
        (
            160272186178,
            "swallow,reorder,two_sessions,address_refused,crash,restored,streams_forgotten,clock_off",
        ),
    ],
)
def test_a_run_ends_when_everything_has_had_its_time(seed: int, faults: str) -> None:
    assert not run(draw(seed, 200, faults.split(","))).violations


def test_each_restore_of_an_outbox_leaves_evidence() -> None:
    """A copy of a copy: the group had met the opening before, and reported it for what the first copy had lost."""
    faults = (
        "confirm_and_lose,early_confirm,topic_unanswered,control_unrouted,cut_up,control_lost,crash,crash_after_commit,"
        "disk_full,restored,handler_failed,far_epoch"
    )
    assert not run(draw(250892185411, 200, faults.split(","))).violations


def test_without_faults_all_is_well_and_soon_over() -> None:
    for seed in range(5):
        outcome = run(draw(seed, 60, ()))
        assert not outcome.violations, outcome.violations
        assert not outcome.struck


def test_a_run_in_which_the_simulator_fails_is_a_failed_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: World) -> None:
        raise KeyError(self)

    monkeypatch.setattr(World, "compare", fail)
    outcomes: list[Outcome] = []
    summary = run_many([3, 4], 10, (), outcomes.append)
    assert summary.failing_seeds == [3, 4]
    for outcome in outcomes:
        assert outcome.kinds == {"internal_error"}
        assert "raise KeyError" in outcome.error


@pytest.mark.integrations
def test_a_seed_makes_one_history_whatever_the_hash_seed() -> None:
    code = (
        "from reliamsg.simulation.runner import run\n"
        "from reliamsg.simulation.scenario import draw\n"
        "for seed in range(6):\n"
        "    print(*run(draw(seed, 60), keep=True).lines, sep='\\n')\n"
    )
    assert len(one_output_whatever_the_hash_seed(code).splitlines()) > 200


def test_several_processes_find_the_same_as_one() -> None:
    found = []
    for jobs in (1, 2):
        seen: list[Outcome] = []
        summary = run_many(range(20, 30), 40, on_outcome=seen.append, jobs=jobs).as_dict()
        assert summary.pop("runs_per_minute") > 0
        found.append((summary, [(one.scenario, one.violations, one.seconds) for one in seen]))
    assert found[0] == found[1]
    assert [scenario.seed for scenario, *_ in found[0][1]] == list(range(20, 30))


TAKES = {
    "two_sessions": ("two_sessions", "reset"),
    "dead_letters_replayed": ("dead_letters_replayed", "rejected"),
    **{name: (name, "crash") for name in ("restored", "restored_inbox", "wal_lost")},
}
"""Faults that can't change anything unless something else happens."""


@pytest.mark.integrations
def test_each_fault_strikes() -> None:
    idle = set(FAULTS) - set(struck_by(tuple(FAULTS), range(900, 912)))
    for fault in sorted(idle):
        faults = TAKES.get(fault, (fault,))
        assert any(fault in struck_by(faults, [seed]) for seed in range(900, 960)), fault


def struck_by(faults: tuple[str, ...], seeds: Iterable[int]) -> dict[str, int]:
    struck: dict[str, int] = {}
    for seed in seeds:
        outcome = run(draw(seed, 100, faults))
        assert not outcome.violations, (seed, outcome.violations)
        assert set(outcome.struck) <= set(faults)
        struck |= outcome.struck
    return struck


@pytest.mark.parametrize("seed", [1, 10, 12, 15, 20])
def test_faults_that_did_not_happen_change_nothing_when_they_are_left_out(seed: int) -> None:
    """So a shorter list of faults makes the same run, as long as it names those that occurred."""
    whole = run(draw(seed, 60), keep=True)
    happened = tuple(fault for fault in whole.scenario.faults if fault in whole.bit)
    again = run(draw(seed, 60, happened), keep=True)
    assert len(whole.lines) > 50
    assert again.lines == whole.lines
    assert (again.violations, again.struck) == (whole.violations, whole.struck)
    assert happened != whole.scenario.faults, "choose seeds of which some fault does not happen"
