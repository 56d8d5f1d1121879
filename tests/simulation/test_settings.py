"""Every public setting is drawn, or listed as not drawn, and drawn values are accepted by the constructors."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.simulation.faults import FAMILIES, FAULTS
from reliamsg.simulation.runner import Summary
from reliamsg.simulation.scenario import FAMILIES_DRAWN, draw
from reliamsg.simulation.settings import DRAWN, NOT_DRAWN, VALUES, choose
from tests.cli.commands import reliamsg_here

BEYOND = {
    "Producer.remove", "Producer.add_group", "Consumer.batch", "Consumer.handling_s",
    "Consumer.operator_s", "Consumer.held_bytes",
    *(f"Producer.journal_{name}" for name in ("interval", "rows", "backlog", "full", "signed")),
    *(f"Consumer.journal_{name}" for name in ("interval", "rows", "backlog", "full", "signed")),
    "Broker.tells", "Broker.inflight", "Broker.refuses",
}  # fmt: skip
"""Settings of applications and brokers."""


def public() -> set[str]:
    found = {f"Site.{field.name}" for field in fields(Site) if field.init}
    for client in (Producer, Consumer):
        names = list(inspect.signature(client.__init__).parameters)[1:]
        found |= {f"{client.__name__}.{name}" for name in names}
    return found


def test_every_public_setting_is_drawn_or_has_a_reason_not_to_be() -> None:
    assert set(VALUES) - BEYOND | set(NOT_DRAWN) == public()
    assert not set(VALUES) & set(NOT_DRAWN)
    assert all(reason for reason in NOT_DRAWN.values())


def test_every_value_is_drawn_and_counted() -> None:
    summary = Summary()
    for seed in range(300):
        for name, value in draw(seed).drawn():
            summary.settings[name][str(value)] += 1
    assert summary.idle_values == []
    assert set(summary.settings) == set(DRAWN) == set(VALUES)
    assert {name: set(values) for name, values in summary.settings.items()} == {
        name: {str(value) for value in values} for name, values in DRAWN.items()
    }, "nothing else is drawn"


def test_clients_of_a_run_differ_in_their_settings() -> None:
    both = [scenario for seed in range(100) if len((scenario := draw(seed)).producers) == 2]
    assert any(one.producers["p1"]["confirm"] != one.producers["p2"]["confirm"] for one in both)
    assert any(
        one.producers["p1"].sites[0].max_frame_bytes != one.producers["p1"].sites[1].max_frame_bytes
        for one in both
        if len(one.sites) > 1
    )


def test_faults_that_are_given_change_nothing_else() -> None:
    for seed in range(60):
        drawn = draw(seed, 60)
        assert draw(seed, 60, drawn.faults) == drawn
        for left_out in drawn.faults:
            fewer = tuple(fault for fault in drawn.faults if fault != left_out)
            assert draw(seed, 60, fewer) == replace(drawn, faults=fewer), left_out


@pytest.mark.parametrize("name", ["Site.prefetch", "Producer.max_bytes", "Consumer.repair_delay"])
def test_one_setting_more_changes_none_of_the_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [draw(seed) for seed in range(40)]
    monkeypatch.setitem(VALUES, name, (7,))
    for one in before:
        again = draw(one.seed)
        assert again.faults == one.faults
        others = [[(key, value) for key, value in each.drawn() if key != name] for each in (one, again)]
        assert others[0] == others[1]
        assert set(one.drawn()) != set(again.drawn())


def test_some_runs_have_faults_of_one_family_only() -> None:
    assert set().union(*FAMILIES.values()) == set(FAULTS), "every fault has a family"
    drawn = [(choose(seed, "family", FAMILIES_DRAWN), set(draw(seed).faults)) for seed in range(400)]
    for family, faults in FAMILIES.items():
        own = [each - {"forged"} for name, each in drawn if name == family]
        assert all(each <= set(faults) for each in own)
        assert set().union(*own) == set(faults) - {"forged"}
    assert 0.2 < sum(bool(name) for name, _ in drawn) / len(drawn) < 0.3


def test_one_fault_more_changes_none_of_the_others() -> None:
    before, everything = [draw(seed) for seed in range(40)], dict(FAULTS)
    del FAULTS["delay"]
    try:
        for one in before:
            assert draw(one.seed).faults == tuple(fault for fault in one.faults if fault != "delay")
    finally:  # in their order, which pytest's `delitem` does not keep: scenarios depend on it
        FAULTS.clear()
        FAULTS.update(everything)
    assert any("delay" in one.faults for one in before)


def test_the_table_shows_how_often_each_value_was_drawn() -> None:
    done = reliamsg_here(
        "lab", "simulate", "--seeds", "0:2", "--messages", "10", "--faults", "none", "--settings"
    )
    assert done.returncode == 0, done
    for name in VALUES:
        assert f"{name} " in done.stdout.decode()
