"""The plain checker judges the actions of the control plane correctly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reliamsg.checker import ApplicationLog, AppRecord, Expect, Finding, check, sha256
from reliamsg.checker.report import KINDS
from reliamsg.checker.spans import Spans
from tests.checker.controlled import E1, E2, E9, SCENARIOS, S
from tests.checker.histories import body_of

_ALSO_COUNTED = (
    "lost", "declared_gaps", "duplicates", "out_of_order", "phantom", "pending", "late", "before_join", "dead_lettered",
    "saved_by_repair", "saved_by_second_site",
)  # fmt: skip


def _found(findings: Sequence[Finding]) -> set[tuple[str, int, tuple[tuple[int, int], ...]]]:
    spans: dict[tuple[str, int], Spans] = {}
    for each in findings:
        own = spans.setdefault((each.kind, each.epoch or 0), Spans())
        if each.first is not None and each.last is not None:
            own.add(each.first, each.last)
    return {(*place, tuple(ranges)) for place, ranges in spans.items()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    scenario = SCENARIOS[name]
    report = check(scenario.chains(), expect=Expect(drained=True))
    assert _found(report.findings) == scenario.found, report.text()
    assert report.verdict == scenario.verdict
    for kind, why in scenario.why.items():
        meaning = KINDS[kind][1]
        assert {f.text.removeprefix(meaning).removeprefix(": ") for f in report.of_kind(kind)} == why
    counts = {each: getattr(report.messages, each) for each in _ALSO_COUNTED}
    assert {each: count for each, count in counts.items() if count} == scenario.counts
    lost = {site: counts.lost_after_confirm for site, counts in report.sites.items()}
    assert {site: count for site, count in lost.items() if count} == scenario.lost_after_confirm


def _log(op: str, epoch: int, content: int, first: int, last: int) -> list[AppRecord]:
    """Each message of a range in an application's log. `content`: the epoch whose contents they have."""
    published = op == "publish"
    return [
        AppRecord(op, "ok" if published else "", "" if published else "g", producer=S.producer, topic=S.topic,
                  epoch=epoch, seq=seq, n=epoch * 100 + seq, sha256=sha256(body_of(S, content, seq)))
        for seq in range(first, last + 1)
    ]  # fmt: skip


def _logs(last: int = 10) -> list[ApplicationLog]:
    """The run in which messages are renumbered: publishing had returned for the first five of them by then."""
    given = [record for each in ((E1, E1, 1, 10), (E9, E9, 1, last)) for record in _log("delivered", *each)]
    published = [
        *_log("publish", E1, E1, 1, 10),
        *_log("publish", E2, E9, 1, 5),
        *_log("publish", E9, E9, 6, 10),
    ]
    return [
        ApplicationLog("publish", [AppRecord("opened", producer="A"), *published]),
        ApplicationLog("consume", [AppRecord("opened", group="g", topics=["orders"]), *given]),
    ]


def test_applications_know_messages_by_the_epoch_that_they_had() -> None:
    """Neither the outbox nor the group lacks messages that publish() returned under their old identities."""
    report = check(SCENARIOS["messages get another epoch"].chains(), _logs(), Expect(drained=True))
    assert {finding.kind for finding in report.findings} == {"fork"}, report.text()
    assert report.verdict == "complete"
    assert (report.messages.enqueued, report.messages.delivered) == (20, {"g": 20})


@pytest.mark.parametrize("missing", [1, 6, 9])
def test_applications_miss_messages_under_their_new_name(missing: int) -> None:
    report = check(SCENARIOS["messages get another epoch"].chains(), _logs(missing - 1), Expect(drained=True))
    lost = [finding for finding in report.of_kind("lost") if finding.source == "application"]
    assert [(finding.epoch, finding.first, finding.last) for finding in lost] == [(E9, missing, 10)], (
        report.text()
    )


def test_applications_were_promised_messages_that_no_outbox_has() -> None:
    """Renumbered messages are known; an eleventh of the old epoch never was."""
    publish, consume = _logs()
    publish = replace(publish, records=[*publish.records, *_log("publish", E2, E2, 11, 11)])
    report = check(SCENARIOS["messages get another epoch"].chains(), [publish, consume], Expect(drained=True))
    assert [(f.epoch, f.first, f.last) for f in report.of_kind("not_durable")] == [(E2, 11, 11)], (
        report.text()
    )
