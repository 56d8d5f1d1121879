"""What the control plane did is judged by the plain checker as it should be."""

from __future__ import annotations

import pytest

from reliamsg.verify import Finding, check
from reliamsg.verify.spans import Spans
from tests.verify.controlled import SCENARIOS

_ALSO_COUNTED = (
    "lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending", "late", "before_join",
    "saved_by_repair", "saved_by_second_site",
)  # fmt: skip


def _found(findings: list[Finding]) -> set[tuple[str, int, tuple[tuple[int, int], ...]]]:
    spans: dict[tuple[str, int], Spans] = {}
    for each in findings:
        own = spans.setdefault((each.kind, each.epoch or 0), Spans())
        if each.first is not None and each.last is not None:
            own.add(each.first, each.last)
    return {(*place, tuple(ranges)) for place, ranges in spans.items()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    scenario = SCENARIOS[name]
    report = check(scenario.chains())
    assert _found(report.findings) == scenario.found, report.text()
    assert report.verdict == scenario.verdict
    counts = {each: getattr(report.messages, each) for each in _ALSO_COUNTED}
    assert {each: count for each, count in counts.items() if count} == scenario.counts
    lost = {site: counts.lost_after_confirm for site, counts in report.sites.items()}
    assert {site: count for site, count in lost.items() if count} == scenario.lost_after_confirm
