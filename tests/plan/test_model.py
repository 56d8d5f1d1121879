"""The model agrees with formulas that can be derived by hand, and with the promises of the README."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from reliamsg.plan import Client, Fate, Rates, make_plan
from reliamsg.plan.model import EDGES, fate_of
from reliamsg.plan.rates import YEAR
from reliamsg.plan.system import system_of
from reliamsg.policy import Quorum
from tests.plan.examples import ONE_SITE, RATES, rates_of
from tests.plan.sets import SETS
from tests.plan.simulation import SiteSetup, WorldSetup
from tests.plan.validate import modelled


def without(directory: Path, *keys: str) -> Rates:
    """The rates, with 0 for all that have one of these keys."""
    lines = [f"{line.split(' = ')[0]} = 0" if line.startswith(keys) else line for line in RATES.splitlines()]
    return rates_of(directory, "\n".join(lines))


class TestByHand:
    def test_a_message_is_lost_if_its_only_broker_loses_everything_before_it_is_read(self) -> None:
        world = WorldSetup(kind="pika", sites=(SiteSetup(loss=0.01),), broker_wait=5, inbox_wait=0)
        assert modelled(world).lost == pytest.approx(1 - exp(-0.05))

    def test_a_crash_erases_only_what_was_not_saved(self) -> None:
        world = WorldSetup(
            kind="pika", sites=(SiteSetup(crash=0.01, crash_window=2),), broker_wait=5, inbox_wait=0
        )
        assert modelled(world).lost == pytest.approx(1 - exp(-0.02))

    def test_both_sites_have_to_lose_it(self) -> None:
        site = SiteSetup(loss=0.01, outage=0, confirm=0)
        world = WorldSetup(sites=(site, site), broker_wait=5, needed=2)
        assert modelled(world).lost == pytest.approx((1 - exp(-0.05)) ** 2)

    def test_a_wait_of_the_consumer_ends_at_any_time_of_its_outage(self) -> None:
        """Integrated by hand: up with 1/(1+rate*length), else the rest of the outage is uniform."""
        world = WorldSetup(
            kind="pika", sites=(SiteSetup(loss=0.01, outage=0),), broker_wait=0, inbox_wait=0,
            consumer_crash=0.002, consumer_outage=100,
        )  # fmt: skip
        away = 0.2 / 1.2
        assert modelled(world).lost == pytest.approx(away * (1 - (1 - exp(-1)) / 1), rel=1e-6)

    def test_the_outbox_is_the_only_copy_until_a_site_confirms(self) -> None:
        world = WorldSetup(sites=(SiteSetup(confirm=2.0),), consumed=True, producer_disk=0.01, broker_wait=0)
        assert modelled(world).lost == pytest.approx(1 - exp(-0.02))

    def test_retention_ends_before_a_late_consumer_asks(self) -> None:
        """Lost if the broker lost it, and the consumer came back after the retention."""
        world = WorldSetup(
            sites=(SiteSetup(loss=0.001, outage=0, confirm=0),), broker_wait=0, retain=60,
            consumer_crash=1e-6, consumer_outage=100,
        )  # fmt: skip
        late = sum(1 - exp(-0.001 * (60 + 40 * (step + 0.5) / 1000)) for step in range(1000)) / 1000
        assert modelled(world).lost == pytest.approx(1e-4 / (1 + 1e-4) * 0.4 * late, rel=1e-4)

    def test_the_probability_of_small_things_is_no_rounding_error(self) -> None:
        site = SiteSetup(loss=1e-12, outage=0, confirm=0)
        world = WorldSetup(sites=(site, site), broker_wait=1, needed=2)
        assert modelled(world).lost == pytest.approx(1e-24)


class TestPromises:
    """With at most the faults that the README allows, the probability of loss is exactly 0."""

    @pytest.mark.parametrize("confirm", ["all", "any", "all-active", Quorum(2)])
    def test_end_to_end(self, confirm: object, tmp_path: Path) -> None:
        """P6: whatever brokers, processes and inboxes do, if the producer's disk survives."""
        rates = without(tmp_path, "disk_losses_per_year")
        client = Client(sites=("dc1", "dc2"), confirm=confirm, release="consumed")  # type: ignore[arg-type]
        assert fate_of(system_of(rates, client)).missing == 0

    def test_end_to_end_at_a_cluster_that_discards_one_side(self) -> None:
        world = WorldSetup(
            sites=(SiteSetup(split=0.01, split_seconds=100, loss=0.01),), consumed=True, inbox_loss=0.01,
            consumer_crash=0.01, consumer_outage=1000, producer_crash=0.1, producer_restart=1000, common_loss=0.01,
        )  # fmt: skip
        assert modelled(world).missing == 0

    def test_one_site_may_lose_everything(self) -> None:
        """With the default release policy: one site is not trusted, the other one and both disks work."""
        world = WorldSetup(
            sites=(SiteSetup(loss=0.01, crash=0.01, crash_window=1e9), SiteSetup()), needed=2, broker_wait=60,
            consumer_crash=0.01, consumer_outage=1000, producer_crash=0.1, producer_restart=1000,
        )  # fmt: skip
        assert modelled(world).missing == 0

    def test_each_fault_that_is_not_allowed_costs_messages(self, tmp_path: Path) -> None:
        client = Client(sites=("dc1", "dc2"))
        for allowed in (("disk_losses_per_year",), ("inbox_losses_per_year",), ("crashes_per_year",)):
            assert fate_of(system_of(without(tmp_path, *allowed), client)).missing > 0
        kept = replace(client, release="consumed")
        assert fate_of(system_of(rates_of(tmp_path), kept)).missing > 0

    def test_nothing_is_declared_while_the_producer_is_away_for_less_than_the_time_out(
        self, tmp_path: Path
    ) -> None:
        rates = rates_of(tmp_path)
        client = Client(sites=("dc1", "dc2"), release="consumed", on_gap="skip", gap_timeout=30.0)
        assert fate_of(system_of(rates, client)).declared == 0
        assert fate_of(system_of(rates, replace(client, gap_timeout=20.0))).declared > 0
        assert fate_of(system_of(rates, replace(client, gap_timeout=20.0, on_gap="hold"))).declared == 0


def flow(fate: Fate, state: str) -> float:
    """What enters a state, without what leaves it."""
    entered = sum(value for (_, to), value in fate.edges.items() if to == state)
    return entered - sum(value for (start, _), value in fate.edges.items() if start == state)


@pytest.mark.parametrize("one", SETS, ids=lambda one: one.name)
def test_messages_neither_appear_nor_vanish(one: object) -> None:
    fate = modelled(one.world)  # type: ignore[attr-defined]
    assert set(fate.edges) == set(EDGES)
    assert min(fate.edges.values()) >= 0
    for state in ("in memory", "durable", "queued", "erased", "received", "delivered"):
        assert flow(fate, state) == pytest.approx(0, abs=1e-12)
    assert flow(fate, "accepted") == pytest.approx(-1)
    assert flow(fate, "lost") == pytest.approx(fate.lost)
    assert flow(fate, "declared missing") == pytest.approx(fate.declared)
    assert fate.edges["acknowledged", "duplicated"] == pytest.approx(fate.duplicated)
    assert sum(fate.confirmed.values()) == pytest.approx(1)


class TestPlan:
    def test_longer_retention_never_costs_messages(self, tmp_path: Path) -> None:
        rates = rates_of(tmp_path)
        lost = [
            fate_of(system_of(rates, Client(sites=("dc1", "dc2"), retain_seconds=seconds))).missing
            for seconds in (0, 10, 100, 300, 1000, 10_000)
        ]
        assert lost == sorted(lost, reverse=True)
        assert lost[0] > lost[-1]

    def test_bytes_limit_retention_as_well(self, tmp_path: Path) -> None:
        rates, client = rates_of(tmp_path), Client(sites=("dc1", "dc2"))
        by_bytes = system_of(rates, replace(client, retain_seconds=300, retain_bytes=2000 * 60))
        assert by_bytes.retain == 60

    def test_an_incident_of_the_only_broker_costs_what_waits_there(self, tmp_path: Path) -> None:
        rates = without(tmp_path, "disk_losses", "inbox_losses", "outages")
        plan = make_plan(rates, Client(sites=("dc1",), retain_seconds=0))
        (found,) = (one for one in plan.influences if one.name == "sites.dc1.losses_per_year")
        assert found.lost_per_incident == pytest.approx(10 * 0.5, rel=0.01)

    def test_the_target_names_the_least_change(self, tmp_path: Path) -> None:
        rates, client = rates_of(tmp_path, ONE_SITE), Client(sites=("dc1",), retain_seconds=1.0)
        easy = make_plan(rates, client, target=0.5)
        assert easy.reached
        assert easy.cheapest is None
        now = easy.client.fate.missing
        some = make_plan(rates, client, target=now / 5)
        assert some.cheapest is not None
        assert some.cheapest.text.startswith("retain_seconds")
        hard = make_plan(rates, client, target=1e-15)
        assert hard.cheapest is not None
        assert "lost at most" in hard.cheapest.text
        for plan in (some, hard):
            assert not plan.reached
            assert plan.cheapest is not None
            assert plan.target is not None
            assert plan.cheapest.missing <= plan.target

    def test_plain_clients_are_compared_with_every_policy(self, tmp_path: Path) -> None:
        rates = rates_of(tmp_path)
        plan = make_plan(rates)
        names = [one.name for one in plan.compared]
        assert names[:3] == ["plain paho, site dc1", "plain pika, site dc1", "plain pika, one cluster"]
        assert len(set(names)) == len(names) == 3 + 2 * 3
        plain, ours = (plan.compared[at].fate.missing for at in (1, -1))
        assert plain > 1e3 * ours
        own = plan.client
        assert own.lost_per_year == pytest.approx(own.fate.missing * 10 * YEAR * own.fate.accepting)
