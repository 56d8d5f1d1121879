"""docs/reference/alerts.md describes the rules in the package, and covers every scenario of the laboratory."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest

from reliamsg.lab.chaos.catalogue import scenarios
from tests.cli.commands import reliamsg_here, succeeded
from tests.monitoring.page import PAGE, due_alerts
from tests.monitoring.rules import read_rules
from tests.monitoring.server import RULES

ALERTS = {rule.name: rule for rule in read_rules(RULES)}


def test_there_are_few_alerts() -> None:
    assert 6 <= len(ALERTS) <= 10
    assert len(ALERTS) == RULES.count("- alert: ")
    assert {rule.severity for rule in ALERTS.values()} == {"page", "ticket"}


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_section_and_a_row(name: str) -> None:
    rule, page = ALERTS[name], PAGE.read_text()
    assert rule.runbook == f"docs/reference/alerts.md#{name.lower()}"
    assert f"\n### {name}\n" in page
    duration = f"{rule.for_s // 60} min" if rule.for_s else "at once"
    assert f"| [`{name}`](#{name.lower()}) | {rule.severity} | {duration} |" in page


def test_the_page_names_no_other_alert() -> None:
    assert set(re.findall(r"\bReliamsg[A-Z]\w+", PAGE.read_text())) == set(ALERTS)


def test_every_scenario_has_a_row() -> None:
    assert list(due_alerts()) == [entry.scenario.name for entry in scenarios()]


def test_the_table_names_alerts_that_exist() -> None:
    for scenario, due in due_alerts().items():
        assert due.alerts <= set(ALERTS), scenario
        assert due.alerts or due.certain, scenario


def test_every_alert_is_raised_by_some_scenario_or_is_explained() -> None:
    raised = frozenset[str]().union(*(due.alerts for due in due_alerts().values()))
    _, _, after = PAGE.read_text().partition("No scenario raises")
    assert set(ALERTS) - raised == set(re.findall(r"`(Reliamsg\w+)`", after.partition("\n\n")[0]))


def test_the_commands_print_the_files() -> None:
    files = resources.files("reliamsg.metrics")
    for command, name in (("alerts", "alerts.yml"), ("dashboard", "dashboard.json")):
        printed = succeeded(reliamsg_here("monitoring", command))
        assert printed == files.joinpath(name).read_bytes()


def test_the_dashboard_is_consistent() -> None:
    dashboard = json.loads(resources.files("reliamsg.metrics").joinpath("dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) <= variables | {"__rate_interval", "__all"}
