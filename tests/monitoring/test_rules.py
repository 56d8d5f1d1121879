"""Every alert, on time series that promtool evaluates: it fires in time, alone, and clears. A calm hour raises none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from reliamsg.lab.process import program
from tests.monitoring.rules import Rule, read_rules
from tests.monitoring.server import RULES

pytestmark = pytest.mark.integrations

INTERVAL_S = 15
"""Between two scrapes, and between two evaluations: Prometheus' usual order of magnitude."""
SLACK_S = 2 * INTERVAL_S
BEGIN, END, LAST = 24, 90, 156
"""The scrapes at which a fault begins and ends, and the last one."""
HOUR = 3600 // INTERVAL_S
INSTANCE = 'job="shop", instance="web-1"'

GAUGES = {
    "up": 1, "reliamsg_build_info": 1,
    'reliamsg_producers{state="running"}': 1, 'reliamsg_producers{state="failed"}': 0,
    'reliamsg_consumers{state="active"}': 1, 'reliamsg_consumers{state="blocked"}': 0,
    'reliamsg_consumers{state="failed"}': 0,
    "reliamsg_outbox_oldest_age_seconds": 2, "reliamsg_outbox_used_bytes": 10, "reliamsg_outbox_limit_bytes": 100,
    'reliamsg_journal_full{role="producer"}': 0, 'reliamsg_journal_full{role="consumer"}': 0,
    "reliamsg_held_messages": 5, "reliamsg_unacknowledged_messages": 2, "reliamsg_dead_letters": 0,
    'reliamsg_streams{state="in_memory"}': 9, 'reliamsg_streams{state="gap"}': 0,
    'reliamsg_streams{state="held"}': 0, 'reliamsg_streams{state="halted"}': 0,
    'reliamsg_quarantined_deliveries{reason="held"}': 0, 'reliamsg_quarantined_deliveries{reason="other"}': 0,
    'reliamsg_site_parked_streams{site="dc1"}': 0, 'reliamsg_site_unseen_groups{site="dc1"}': 0,
    'reliamsg_site_clients{role="producer", site="dc1", state="connected"}': 1,
    'reliamsg_site_clients{role="producer", site="dc1", state="blocked"}': 0,
    'reliamsg_site_clients{role="producer", site="dc1", state="unreachable"}': 0,
    'reliamsg_site_clients{role="consumer", site="dc1", state="connected"}': 1,
    'reliamsg_site_clients{role="consumer", site="dc1", state="unreachable"}': 0,
    'reliamsg_site_clients{role="consumer", site="dc1", state="closed"}': 1,
}  # fmt: skip
"""Values while all is well."""
COUNTERS = {
    "reliamsg_acknowledged_total": 100, "reliamsg_conflicts_total": 0,
    'reliamsg_declared_total{reason="lost"}': 0, 'reliamsg_declared_total{reason="removed"}': 1,
    'reliamsg_rejected_total{site="dc1"}': 0, 'reliamsg_rejected_total{site="dc2"}': 0,
}  # fmt: skip
"""How much each grows between two scrapes while all is well."""


@dataclass(frozen=True)
class Fault:
    """A fault of sixteen minutes, or of a moment where only counters show it, and the alert that is due."""

    alert: str
    gauges: dict[str, float] = field(default_factory=dict)
    """Values during the fault; None for no value."""
    steps: dict[str, int] = field(default_factory=dict)
    """How much counters grow once, when the fault begins."""
    stopped: tuple[str, ...] = ()
    """Counters that do not grow during the fault."""
    window_s: int = 0
    """For how long the expression sees a step of a counter, or a counter that has stopped."""
    gone: bool = False
    """The target can't be scraped: it has no values but ``up``."""

    def series(self, last: int = LAST) -> list[dict[str, str]]:
        """All series, until scrape `last`."""
        during, after = END - BEGIN, last - END
        found = {}
        for name, value in GAUGES.items():
            found[name] = f"{value}x{BEGIN - 1} {self.gauges.get(name, value)}x{during - 1} {value}x{after}"
            if self.gone and name != "up":
                found[name] = f"{value}x{BEGIN - 1} stale _x{during - 2} {value}x{after}"
        for name, growth in COUNTERS.items():
            first = growth * (BEGIN - 1)
            begin = first + self.steps.get(name, growth)
            per_scrape = 0 if name in self.stopped else growth
            end = begin + per_scrape * (during - 1)
            found[name] = (
                f"0+{growth}x{BEGIN - 1} {begin}+{per_scrape}x{during - 1} {end + growth}+{growth}x{after}"
            )
            if self.gone:
                found[name] = f"0+{growth}x{BEGIN - 1} stale _x{during - 2} 0+{growth}x{after}"
        return [{"series": labelled(name), "values": values} for name, values in found.items()]


FAULTS = {
    "a process that can't be scraped": Fault("ReliamsgDown", {"up": 0}, gone=True),
    "a producer that failed": Fault("ReliamsgClientFailed", {'reliamsg_producers{state="failed"}': 1}),
    "a consumer that failed": Fault("ReliamsgClientFailed", {'reliamsg_consumers{state="failed"}': 1}),
    "an inbox that can't be written": Fault(
        "ReliamsgClientFailed", {'reliamsg_consumers{state="blocked"}': 2}
    ),
    "no site confirms": Fault("ReliamsgOutboxDelayed", {"reliamsg_outbox_oldest_age_seconds": 301}),
    "an application that does not ask for messages": Fault(
        "ReliamsgConsumerStuck",
        {"reliamsg_unacknowledged_messages": 0},
        stopped=("reliamsg_acknowledged_total",),
        window_s=300,
    ),
    "a handler that hangs beside a gap": Fault(
        "ReliamsgConsumerStuck",
        {'reliamsg_streams{state="gap"}': 1},
        stopped=("reliamsg_acknowledged_total",),
        window_s=300,
    ),
    "a handler that hangs": Fault(
        "ReliamsgConsumerStuck", stopped=("reliamsg_acknowledged_total",), window_s=300
    ),
    "a gap that holds a stream": Fault("ReliamsgStreamHeld", {'reliamsg_streams{state="held"}': 1}),
    "a gap that holds the only stream": Fault(
        "ReliamsgStreamHeld",
        {'reliamsg_streams{state="held"}': 1, "reliamsg_unacknowledged_messages": 0},
        stopped=("reliamsg_acknowledged_total",),
    ),
    "a dead letter that halts": Fault("ReliamsgStreamHeld", {'reliamsg_streams{state="halted"}': 1}),
    "messages declared lost": Fault(
        "ReliamsgMessagesLost", steps={'reliamsg_declared_total{reason="lost"}': 3}, window_s=900
    ),
    "two producers with one identity": Fault(
        "ReliamsgConflict", steps={"reliamsg_conflicts_total": 1}, window_s=900
    ),
    "an outbox that is nearly full": Fault("ReliamsgOutboxFull", {"reliamsg_outbox_used_bytes": 91}),
    "a journal that can't be exported": Fault(
        "ReliamsgOutboxFull", {'reliamsg_journal_full{role="producer"}': 1}
    ),
    "a site that can't be reached": Fault(
        "ReliamsgSiteUnavailable",
        {
            'reliamsg_site_clients{role="producer", site="dc1", state="connected"}': 0,
            'reliamsg_site_clients{role="producer", site="dc1", state="unreachable"}': 1,
        },
    ),
    "a site that is low on memory": Fault(
        "ReliamsgSiteUnavailable", {'reliamsg_site_clients{role="producer", site="dc1", state="blocked"}': 1}
    ),
    "a site that refuses a stream": Fault(
        "ReliamsgSiteUnavailable", {'reliamsg_site_parked_streams{site="dc1"}': 1}
    ),
    "a site that lacks a group": Fault(
        "ReliamsgSiteUnavailable", {'reliamsg_site_unseen_groups{site="dc1"}': 1}
    ),
    "a dead letter": Fault("ReliamsgUndeliverable", {"reliamsg_dead_letters": 1}),
    "a delivery in the quarantine": Fault(
        "ReliamsgUndeliverable", {'reliamsg_quarantined_deliveries{reason="other"}': 1}
    ),
    "a forged delivery": Fault(
        "ReliamsgUndeliverable", steps={'reliamsg_rejected_total{site="dc2"}': 1}, window_s=900
    ),
}

CALM = {
    "an hour without faults": Fault(""),
    "messages removed by their producer": Fault(
        "", steps={'reliamsg_declared_total{reason="removed"}': 1_000}
    ),
    "an idle hour": Fault("", {"reliamsg_held_messages": 0}, stopped=("reliamsg_acknowledged_total",)),
    "a long gap_timeout, and one stream": Fault(
        "",
        {'reliamsg_streams{state="gap"}': 1, "reliamsg_unacknowledged_messages": 0},
        stopped=("reliamsg_acknowledged_total",),
    ),
    "gaps that are filled in time": Fault("", {'reliamsg_streams{state="gap"}': 3}),
    "deliveries kept for a held stream": Fault("", {'reliamsg_quarantined_deliveries{reason="held"}': 7}),
    "messages that wait for four minutes": Fault("", {"reliamsg_outbox_oldest_age_seconds": 240}),
}
SHORT = {
    "a broker's restart": (
        180,
        {
            'reliamsg_site_clients{role="producer", site="dc1", state="connected"}': 0,
            'reliamsg_site_clients{role="producer", site="dc1", state="unreachable"}': 1,
            'reliamsg_site_clients{role="consumer", site="dc1", state="connected"}': 0,
            'reliamsg_site_clients{role="consumer", site="dc1", state="unreachable"}': 1,
            "reliamsg_outbox_oldest_age_seconds": 180,
            'reliamsg_streams{state="gap"}': 5,
        },
    ),
    "a process's restart": (120, {"up": 0}),
}
"""Faults that are shorter than slack allows for: seconds, and values."""


def labelled(name: str) -> str:
    """A series of the one instance."""
    metric, _, labels = name.partition("{")
    return f"{metric}{{{INSTANCE}{', ' + labels.rstrip('}') if labels else ''}}}"


def check(name: str, series: list[dict[str, str]], at: dict[int, Rule | None]) -> dict[str, Any]:
    """A test of promtool: which alerts fire at each time, in seconds."""
    firing = f'count by (alertname, severity) (ALERTS{{alertstate="firing"}}) # {name}'
    return {
        "interval": f"{INTERVAL_S}s",
        "input_series": series,
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{seconds}s",
                "exp_samples": []
                if rule is None
                else [{"labels": f'{{alertname="{rule.name}", severity="{rule.severity}"}}', "value": 1}],
            }
            for seconds, rule in at.items()
        ],
    }


def checks() -> Iterator[dict[str, Any]]:
    rules = {rule.name: rule for rule in read_rules(RULES)}
    for name, fault in FAULTS.items():
        rule, begin, end = rules[fault.alert], BEGIN * INTERVAL_S, END * INTERVAL_S
        holds = begin + (fault.window_s if fault.stopped else 0)
        over = begin + fault.window_s if fault.steps else end
        times: dict[int, Rule | None] = {begin - INTERVAL_S: None, holds + rule.for_s + SLACK_S: rule}
        if rule.for_s:
            # What a window sees of a counter that stops may be true one scrape earlier.
            times[holds + rule.for_s - SLACK_S] = None
        yield check(name, fault.series(), {**times, over + SLACK_S: None, LAST * INTERVAL_S: None})
    every_minute = dict.fromkeys(range(0, HOUR * INTERVAL_S + 1, 60))
    for name, fault in CALM.items():
        yield check(name, fault.series(HOUR), every_minute)
    for name, (seconds, values) in SHORT.items():
        series = [
            {
                "series": labelled(gauge),
                "values": f"{value}x{BEGIN - 1} {values.get(gauge, value)}x{seconds // INTERVAL_S - 1}"
                f" {value}x{HOUR}",
            }
            for gauge, value in GAUGES.items()
        ]
        yield check(name, series, every_minute)


def promtool(*arguments: str, cwd: Path) -> None:
    command = [program("promtool", "prometheus"), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(RULES)
    promtool("check", "rules", "--lint-fatal", "alerts.yml", cwd=tmp_path)


def test_every_alert_has_a_fault() -> None:
    assert {fault.alert for fault in FAULTS.values()} == {rule.name for rule in read_rules(RULES)}


def run(tests: list[dict[str, Any]], rules: str, directory: Path) -> None:
    (directory / "alerts.yml").write_text(rules)
    file = {"rule_files": ["alerts.yml"], "evaluation_interval": f"{INTERVAL_S}s", "tests": tests}
    (directory / "tests.yml").write_text(json.dumps(file))  # YAML, too
    promtool("test", "rules", "tests.yml", cwd=directory)


def test_alerts_fire_in_time_and_clear(tmp_path: Path) -> None:
    run(list(checks()), RULES, tmp_path)


def test_a_rule_that_is_late_is_detected(tmp_path: Path) -> None:
    """The test above can fail."""
    name = "a producer that failed"
    (one,) = (each for each in checks() if each["promql_expr_test"][0]["expr"].endswith(name))
    run([one], RULES, tmp_path)
    with pytest.raises(AssertionError, match=name):
        run([one], RULES.replace("for: 2m", "for: 4m"), tmp_path)
