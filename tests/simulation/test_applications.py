"""Behaviour of applications in simulated worlds that follows from the settings of their clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reliamsg.producer.admission import Admission
from reliamsg.simulation.consumer import ConsumerProcess
from reliamsg.simulation.runner import Outcome, run
from reliamsg.simulation.scenario import Scenario, draw
from reliamsg.simulation.settings import ClientSettings

pytestmark = pytest.mark.integrations

SEEDS = range(4)


def with_settings(seed: int, faults: tuple[str, ...] = (), **values: Any) -> Scenario:
    """A scenario in which all clients with these settings have these values."""

    def own(client: ClientSettings) -> ClientSettings:
        found = {name: values.get(name, value) for name, value in client.values.items()}
        return replace(client, values=found)

    drawn = draw(seed, 100, faults)
    return replace(
        drawn,
        producers={name: own(client) for name, client in drawn.producers.items()},
        groups={name: own(client) for name, client in drawn.groups.items()},
        standbys={name: own(client) for name, client in drawn.standbys.items()},
    )


def noted(outcome: Outcome, what: str) -> int:
    return sum(what in line for line in outcome.lines)


# -- publishing that waits for room -------------------------------------------------------------------------

NO_ROOM: dict[str, Any] = {
    "max_bytes": 8 * 1024,
    "retain_seconds": 0.0,
    "max_batch_messages": 1,
    "compression": None,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_publishing_continues_as_soon_as_there_is_room(seed: int) -> None:
    waits = run(with_settings(seed, when_full="block", block_timeout=30.0, **NO_ROOM), keep=True)
    raises = run(with_settings(seed, when_full="raise", **NO_ROOM), keep=True)
    assert not waits.violations
    assert not raises.violations
    assert noted(raises, "can't publish: OutboxFull"), "choose a seed with more messages than room"
    assert not noted(waits, "can't publish: OutboxFull")


def test_a_thread_that_is_not_notified_of_room_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_silence(admission: Admission, size: int) -> None:
        admission._released += size

    monkeypatch.setattr(Admission, "release", in_silence)
    monkeypatch.setattr(Admission, "transfer", _transferred)
    outcomes = [
        run(with_settings(seed, when_full="block", block_timeout=1.0, **NO_ROOM)) for seed in SEEDS[:2]
    ]
    assert {kind for outcome in outcomes for kind in outcome.kinds} == {"stalled"}


def _transferred(admission: Admission, owner: object, stored: int) -> None:
    for claim in [claim for claim in admission._claims if claim[0] is owner]:
        del admission._claims[claim]
    admission._taken += stored


# -- dead letters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_that_halts_its_client_is_redelivered_until_it_is_handled(seed: int) -> None:
    outcome = run(
        with_settings(seed, ("handler_failed",), on_dead_letter="halt", max_deliveries=1), keep=True
    )
    assert not outcome.violations
    assert noted(outcome, "halts: ")


def test_a_dead_letter_where_the_client_was_to_halt_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = ConsumerProcess._rules
    monkeypatch.setattr(ConsumerProcess, "_rules", lambda process: replace(rules(process), halt=False))
    found = [
        run(with_settings(seed, ("handler_failed",), on_dead_letter="halt", max_deliveries=1)).kinds
        for seed in SEEDS
    ]
    assert all("lost" in kinds for kinds in found), found


# -- where a group begins -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_begins_with_the_latest_is_owed_what_follows_what_came_first(seed: int) -> None:
    faults = ("confirm_and_lose", "misroute", "reorder", "crash", "restart")
    assert not run(with_settings(seed, faults, begin="latest")).violations
