"""Rates from an audit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from reliamsg.cli.status import Status
from reliamsg.errors import ConfigError
from reliamsg.plan import Estimate, estimate, make_plan
from reliamsg.plan.rates import YEAR
from tests.cli.commands import refused, reliamsg_here, succeeded
from tests.plan.examples import rates_of, write_rates


def away(seconds: float, number: int = 0, away_seconds: float = 0.0) -> dict[str, Any]:
    return {"seconds": seconds, "number": number, "away_seconds": away_seconds}


def role(seconds: float, crashes: int = 0, breaks: int = 0, files_lost: int = 0) -> dict[str, Any]:
    return {
        "clients": 2, "files_lost": files_lost,
        "crashes": away(seconds, crashes, 20.0 * crashes), "breaks": away(seconds, breaks, 30.0 * breaks),
    }  # fmt: skip


def verdict(directory: Path, **changed: Any) -> Path:
    """The output of an audit over half a year of four clients."""
    content: dict[str, Any] = {
        "verdict": "complete",
        "messages": {"enqueued": 1_000_000, "lost": 0},
        "streams": 4,
        "sites": {
            "dc1": {"confirmed": 9, "received": 9, "lost_after_confirm": 0, "saved_alone": 0},
            "dc2": {"confirmed": 9, "received": 9, "lost_after_confirm": 7, "saved_alone": 0},
        },
        "latency": {"received_to_delivered": {"p50": 0.25, "p95": 1.0, "p99": 1.0, "max": 2.0}},
        "operation": {
            "producers": role(YEAR, crashes=5, breaks=9),
            "groups": role(YEAR / 2, crashes=1, breaks=4, files_lost=1),
            "sites": {
                "dc1": away(YEAR / 2) | {"confirm_seconds": 0.003},
                "dc2": away(YEAR / 2, 10, 600.0) | {"confirm_seconds": None},
            },
        },
    }
    output = directory / "verdict"
    output.mkdir(exist_ok=True)
    (output / "verdict.json").write_text(json.dumps(content | changed))
    return output


def found_in(tmp_path: Path, **changed: Any) -> dict[str, Estimate]:
    found = estimate(rates_of(tmp_path), verdict(tmp_path, **changed))
    return {one.name: one for one in found.estimates}


@pytest.mark.parametrize(
    ("events", "low", "high"),
    # Half of the quantiles of chi squared: 0.025 with 2 k degrees of freedom, 0.975 with 2 k + 2.
    [
        (1, 0.025318, 5.571643),
        (5, 1.623486, 11.668332),
        (20, 12.216520, 30.888383),
        (100, 81.363973, 121.627196),
    ],
)
def test_intervals_are_exact(events: int, low: float, high: float, tmp_path: Path) -> None:
    one = found_in(
        tmp_path,
        operation={"producers": role(YEAR, crashes=events), "groups": role(YEAR), "sites": {}},
    )["producer.crashes_per_year"]
    assert (one.value, one.events, one.years) == (events, events, 1.0)
    assert (one.low, one.high) == pytest.approx((low, high), rel=1e-5)


def test_no_event_is_a_bound_and_never_a_rate_of_zero(tmp_path: Path) -> None:
    found = found_in(tmp_path)
    for name, years in (("producer.disk_losses_per_year", 1.0), ("sites.dc1.losses_per_year", 0.5)):
        one = found[name]
        assert (one.events, one.low) == (0, 0.0)
        assert one.value == one.high == 3 / years


def test_each_number_is_in_its_place(tmp_path: Path) -> None:
    rates = rates_of(tmp_path)
    found = estimate(rates, verdict(tmp_path))
    now = found.rates
    assert (now.producer.crashes_per_year, now.producer.restart_seconds) == (5, 20)
    assert (now.consumer.outages_per_year, now.consumer.outage_seconds) == (8, 30)
    assert now.consumer.inbox_losses_per_year == 2
    assert now.consumer.inbox_wait_seconds == 0.25
    assert (now.sites["dc2"].crashes_per_year, now.sites["dc2"].outage_seconds) == (20, 60)
    assert (now.sites["dc1"].confirm_seconds, now.sites["dc2"].confirm_seconds) == (0.003, 0.005)
    assert now.traffic.messages_per_second == pytest.approx(1_000_000 / 4 / (YEAR / 2))
    # What no journal shows stays as it was.
    assert now.sites["dc2"].losses_per_year == rates.sites["dc2"].losses_per_year
    assert now.sites["dc1"].crash_loses_seconds == rates.sites["dc1"].crash_loses_seconds
    assert (now.all_sites, now.cluster) == (rates.all_sites, rates.cluster)
    assert now.traffic.message_bytes == rates.traffic.message_bytes
    (kept,) = found.kept
    assert kept.startswith("sites.dc2.losses_per_year: the site lost 7 confirmed messages")
    assert make_plan(found.upper).client.fate.missing > make_plan(now).client.fate.missing


def test_a_site_without_journals_keeps_its_rates(tmp_path: Path) -> None:
    rates = rates_of(tmp_path)
    empty = {"producers": role(0), "groups": role(0), "sites": {}}
    found = estimate(rates, verdict(tmp_path, operation=empty, latency={}, sites={}))
    assert found.estimates == ()
    assert found.rates == found.upper == rates
    assert len(found.kept) == 6


def test_the_command_shows_what_it_used(tmp_path: Path) -> None:
    rates, audit = write_rates(tmp_path), verdict(tmp_path)
    output = succeeded(reliamsg_here("plan", rates, "--audit", audit)).decode()
    assert "producer.crashes_per_year" in output
    assert "1.62 to 11.7" in output
    assert "0 in 0.5 years" in output
    assert "from the file: sites.dc2.losses_per_year" in output
    found = json.loads(succeeded(reliamsg_here("plan", rates, "--audit", audit, "--json")))
    expected = estimate(rates_of(tmp_path), audit)
    assert found["client"]["missing"] == make_plan(expected.rates).client.fate.missing
    assert math.isclose(found["upper"]["missing"], make_plan(expected.upper).client.fate.missing)
    assert [one["name"] for one in found["estimates"]] == [one.name for one in expected.estimates]


def test_errors_name_the_file(tmp_path: Path) -> None:
    rates, nothing = write_rates(tmp_path), tmp_path / "nothing"
    nothing.mkdir()
    refused(reliamsg_here("plan", rates, "--audit", nothing), Status.USAGE, "verdict.json", "audit --out")
    output = verdict(tmp_path, operation=None)
    refused(reliamsg_here("plan", rates, "--audit", output), Status.USAGE, "earlier version")
    (output / "verdict.json").write_text("{}")
    with pytest.raises(ConfigError, match="not the verdict of an audit"):
        estimate(rates_of(tmp_path), output)
