"""The result of a run, as text and as JSON."""

from __future__ import annotations

from typing import Any

from reliamsg.checker import Report
from reliamsg.cli.demo.audit import Audit
from reliamsg.cli.demo.director import Outcome
from reliamsg.cli.demo.plan import GROUPS, PRODUCERS, Plan
from reliamsg.cli.status import Status

__all__ = ["as_dict", "exit_code", "text"]

_LABEL_WIDTH = 21
_KIND_NAMES = {
    "embedded": "two sites: embedded MQTT brokers, in memory",
    "mosquitto": "two sites: Mosquitto brokers, without persistence, as installed",
    "rabbitmq": "two sites: RabbitMQ nodes with quorum queues",
    "mixed": "two sites: RabbitMQ at dc1, Mosquitto at dc2",
}


def exit_code(outcome: Outcome) -> Status:
    """0 only for a complete run whose faults could have lost messages, and that no audit contradicts."""
    verdict = outcome.report.verdict
    if verdict in ("violated", "lost"):
        return Status.INCOMPLETE
    proven = verdict == "complete" and outcome.mattered and outcome.audit.agrees
    return Status.OK if proven else Status.UNKNOWN


def as_dict(outcome: Outcome, kind: str, directory: str | None) -> dict[str, Any]:
    """The checker's report, with the demo's additional results."""
    return {
        **outcome.report.as_dict(),
        "audit": outcome.audit.as_dict(),
        "plain": outcome.watch.plain.as_dict(),
        "at_stake": {"dc1": outcome.at_stake, "plain": outcome.plain_at_stake},
        "handled_unacknowledged": outcome.unacknowledged,
        "faults_mattered": outcome.mattered,
        "brokers": kind,
        "run_seconds": round(outcome.seconds, 1),
        "directory": directory,
    }


def text(outcome: Outcome, plan: Plan, kind: str, plain_kind: str) -> str:
    """The result as text."""
    plain = outcome.watch.plain
    stake = ", ".join(f"{count:,} for {group}" for group, count in outcome.at_stake.items())
    rows: list[tuple[str, ...]] = [("", "published", "delivered", "lost", "duplicated", "reordered")]
    rows += [(f"reliamsg, {group}", *map(_number, _outcome_of(outcome.report, group))) for group in GROUPS]
    numbers = (len(plain.confirmed), len(plain.delivered), plain.lost, plain.duplicates, plain.out_of_order)
    rows += [("plain paho, QoS 1", *map(_number, numbers))]
    return "\n".join(
        [
            _line(
                "What happened",
                f"{len(PRODUCERS)} producers x {plan.messages:,} messages, {_KIND_NAMES[kind]}",
            ),
            _line("", "dc1 SIGKILLed during traffic, its state lost, restarted empty"),
            _line("", f"the consumer of {GROUPS[0]} SIGKILLed and restarted"),
            _line("At stake", f"confirmed by dc1 and queued there when it died: {stake}"),
            _line(
                "", f"handled by {GROUPS[0]}, not yet acknowledged, when it died: {outcome.unacknowledged:,}"
            ),
            "",
            *(_line(row[0], "".join(f"{cell:>12}" for cell in row[1:])) for row in rows),
            _line(
                "", f"(plain paho: one {plain_kind}, killed with dc1 while it had {outcome.plain_at_stake:,}"
            ),
            _line("", " queued; published: messages that it had confirmed)"),
            "",
            _line("Verdict", f"{outcome.report.verdict.upper()}{_reason(outcome)}"),
            _line(
                "",
                f"from {outcome.report.clients} journals and {outcome.report.logs} logs of the applications,",
            ),
            _line("", "by a checker that trusts none of the clients"),
            *_audit_lines(outcome.audit),
        ]
    )


def _audit_lines(audit: Audit) -> list[str]:
    if audit.not_run:
        return [_line("Spark audit", f"not run: {audit.not_run}")]
    if not audit.agrees:
        return [_line("Spark audit", "DIFFERS"), *(_line("", f"- {each}") for each in audit.differences)]
    return [
        _line("Spark audit", f"{audit.verdict.upper()}: equal to the checker in verdict and every count,"),
        _line("", f"from the journals alone ({audit.seconds:.0f} s including the start of Spark)"),
    ]


def _line(label: str, content: str) -> str:
    return f"{label:{_LABEL_WIDTH}}{content}"


def _number(value: int) -> str:
    return f"{value:,}"


def _outcome_of(report: Report, group: str) -> tuple[int, int, int, int, int]:
    """Published, delivered, lost, duplicated, reordered: the worse of the group's journal and its application's log."""
    published, delivered = report.messages.enqueued, report.messages.delivered.get(group, 0)

    def count(kind: str) -> int:
        found = {"journal": 0, "application": 0}
        for finding in report.of_kind(kind):
            if finding.group == group:
                found[finding.source] = found.get(finding.source, 0) + max(1, finding.count)
        return max(found.values())

    return published, delivered, max(0, published - delivered), count("duplicate"), count("out_of_order")


def _reason(outcome: Outcome) -> str:
    if not outcome.mattered:
        return ", but it proves nothing: nothing was at stake"
    if outcome.report.verdict == "complete":
        return ": nothing lost, duplicated or reordered, and nothing left open"
    shown = outcome.report.findings[:5]
    more = len(outcome.report.findings) - len(shown)
    return "".join("\n" + _line("", f"- {finding}") for finding in shown) + (
        "\n" + _line("", f"- and {more:,} more") if more else ""
    )
