"""A broker whose nodes disagree: what one connection sends to some addresses never arrives (S11)."""

from __future__ import annotations

import pytest

from reliamsg.protocol.returned_frames import ReturnedFrames
from reliamsg.simulation.runner import run
from reliamsg.simulation.scenario import draw

SEEDS = (79, 112, 262)
"""With one AMQP site, at which messages are lost that producers keep for their groups."""
FAULTS = ["control_unrouted", "confirm_and_lose"]


@pytest.mark.parametrize("seed", SEEDS)
def test_repairs_find_another_way(seed: int) -> None:
    outcome = run(draw(seed, 150, FAULTS))
    assert outcome.struck["control_unrouted"]
    assert outcome.struck["confirm_and_lose"]
    assert not outcome.violations


@pytest.mark.parametrize("seed", SEEDS)
def test_a_client_that_stays_where_it_is_gets_nothing_through(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReturnedFrames, "returned", lambda *_: False)
    outcome = run(draw(seed, 150, FAULTS))
    assert "stalled" in {violation.kind for violation in outcome.violations}
