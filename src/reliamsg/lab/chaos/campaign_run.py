"""One run of a campaign: applications with settings drawn at random, random faults one after the other or at the same
time, and a judge that reads the applications' logs.

When the faults are over, every message for which publish() returned must be delivered within a bound that follows from
the settings. It may instead be declared to the application if the settings allow that, or be held back for a cause that
status() names and the fault log confirms (:mod:`reliamsg.lab.chaos.liveness`). A black-box run considers nothing else.
In any other run the checker also reads the clients' journals and files, and both must find the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reliamsg.checker import Expect, Report, Trust, check_directory
from reliamsg.checker.journals import collect
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos import black_box, liveness
from reliamsg.lab.chaos.campaign_apps import Applications, Logs, Plan, expected_exits
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.environment_faults import (
    broker_faults,
    disk_faults,
    fault_event,
    free_space,
    path_faults,
    process_faults,
    sites_that_lost_state,
)
from reliamsg.lab.chaos.processes import App, SiteSpec
from reliamsg.lab.chaos.record import Record
from reliamsg.lab.chaos.result import Judgement
from reliamsg.lab.chaos.settings import Drawn, draw, fit_small_disks, journal_secret
from reliamsg.lab.chaos.traffic import Paths
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.faults.proxy import TcpProxy
from reliamsg.trust import ClientKeys

__all__ = ["CampaignRun", "compare"]

LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("amqp", "mqtt"), ("mqtt", "mqtt"), ("amqp", "mqtt", "mqtt"), ("mqtt", "mqtt"), ("mqtt",),
)  # fmt: skip
SMALL_DISKS = 0.2
"""The fraction of runs whose first producer and first consumer have a disk of 2 MB each, if we are root."""
_DECLARED = ("declared_gap", "removed", "discarded")
"""Kinds of findings about losses that were declared to the application."""
_MAX_FINDINGS = 10
RETRIED_S = 60.0
"""Messages for a queue without a leader are retried at least this often, and RabbitMQ logs it each time."""
LEADERLESS_S = 120.0
"""A queue that has had no leader for this long after the last fault never will."""


@dataclass(frozen=True)
class _Finished:
    """A run whose faults are over, and in which outstanding messages had their time to arrive."""

    applications: Applications
    bound: float
    """That time, in seconds."""


class CampaignRun:
    """One run: :meth:`perform` is a scenario's code, :meth:`judge` its judge."""

    def __init__(self, rabbit: Callable[[], RabbitNode] | None, *, black_box: bool) -> None:
        """`rabbit`: returns a running RabbitMQ that outlives the run; None if there is none. `black_box`: judge by the
        applications' logs alone."""
        self._rabbit, self._black_box = rabbit, black_box
        self._finished: _Finished | None = None

    def perform(self, context: Context) -> None:
        """Run until all applications have exited."""
        drawn, small = self._set_up(context)
        paths = context.proxied()
        plan = _make_plan(context, drawn, paths, small=small)
        applications = Applications(context.run, plan, context.rng, _intervention(context))
        applications.start()
        wait_for(applications.messages_flow, lambda: f"messages flow: {applications.errors()}", 60.0, 0.2)
        since = time.monotonic()
        at_stake = _inject(context, applications, paths)
        _heal(context, applications, paths)
        context.stake(at_stake, "messages under way when faults struck")
        bound = applications.bound(time.monotonic() - since)
        context.event(f"everything must arrive within {bound:.0f} s")
        _drain(context, applications, bound)
        self._finished = _Finished(applications, bound)
        for app in applications.all():
            _stop(app)
        _delete_queues(context, plan)

    def _set_up(self, context: Context) -> tuple[Drawn, bool]:
        """Start the brokers, and draw the settings, and whether there are small disks."""
        rng = context.rng
        layout: tuple[str, ...] = rng.choice(LAYOUTS)
        if self._rabbit is None:
            layout = tuple("mqtt" for _ in layout)
        for number, protocol in enumerate(layout, 1):
            if protocol == "amqp" and self._rabbit is not None:
                context.share_rabbit(f"dc{number}", self._rabbit())
            else:
                context.mosquitto(f"dc{number}")
        drawn = draw(rng, layout)
        small = rng.random() < SMALL_DISKS and os.geteuid() == 0
        if small:
            fit_small_disks(drawn)
        context.record.set_drawn(drawn)
        context.event(f"settings: {drawn.text()}")
        return drawn, small

    def judge(self, record: Record, directory: Path) -> Judgement:
        """Judge by the applications' logs, and unless this is a black-box run compare with the checker's report."""
        if self._finished is None:
            return Judgement()  # the run has failed, and the record states why
        judgement = _judge_logs(self._finished, record.events())
        return (
            judgement
            if self._black_box
            else _with_problems(
                compare(judgement, check_directory(directory, Expect(drained=True))),
                _not_signed(directory / "journals", self._finished.applications.plan),
            )
        )


# -- the course of a run ----------------------------------------------------------------------------------------


def _make_plan(context: Context, drawn: Drawn, paths: Paths, *, small: bool) -> Plan:
    def sites(proxies: dict[str, TcpProxy], side: int) -> tuple[SiteSpec, ...]:
        return tuple(
            (name, proxies[name].url(url), drawn.sites[2 * number + side])
            for number, (name, url) in enumerate(paths.urls.items())
        )

    disks = {name: context.disk(f"{name}-disk", "2m") for name in ("outbox", "inbox")} if small else {}
    return Plan(
        drawn,
        tuple(f"{context.topic}-{topic}" for topic in drawn.topics),
        tuple(f"{context.group}-g{number}" for number, _ in enumerate(drawn.consumers, 1)),
        sites(paths.producer, 0),
        sites(paths.consumer, 1),
        disks,
    )


def _intervention(context: Context) -> Callable[[str], None]:
    def intervene(name: str) -> None:
        context.event(f"an operator enlarges the quarantine of {name}")
        context.record.add_intervention()

    return intervene


def _inject(context: Context, applications: Applications, paths: Paths) -> int:
    """Inject a few faults; returns how many deliveries were outstanding when they struck."""
    rng, plan, at_stake = context.rng, applications.plan, 0
    faults = {
        **process_faults(rng, applications.publishers, applications.all_handlers(), plan.disks),
        **broker_faults(context, plan.quorum_queues()),
        **path_faults(rng, paths),
        **disk_faults(plan.disks),
    }
    for _ in range(rng.randrange(2, 6)):
        name = rng.choice(sorted(faults))
        context.event(fault_event(name))
        faults[name]()
        time.sleep(rng.uniform(0.1, 1.5))  # the instant of the next fault is random
        at_stake += len(applications.outstanding())
        if rng.random() < 0.4:
            paths.heal(reset=True)
    return at_stake


def _heal(context: Context, applications: Applications, paths: Paths) -> None:
    """End all faults, and publishing."""
    free_space(applications.plan.disks)
    for broker in context.brokers.values():
        if isinstance(broker, RabbitNode):
            broker.memory_alarm(False)
    paths.heal(reset=True)
    applications.supervise()
    applications.stop_publishing()
    context.event("all faults are over")


def _drain(context: Context, applications: Applications, bound: float) -> None:
    """Wait until everything has arrived; the judge counts the messages that are outstanding after `bound` seconds."""
    can_be_lost = applications.plan.can_be_lost(sites_that_lost_state(context.record.events()))
    since = time.monotonic()

    def lacks_what_never_comes() -> bool:
        """Whether everything was delivered, and confirms are missing for a queue that still has no leader."""
        if time.monotonic() - since < LEADERLESS_S or applications.outstanding(can_be_lost):
            return False
        return bool(_leaderless_queues(context, datetime.now(UTC) - timedelta(seconds=RETRIED_S)))

    with contextlib.suppress(Unmet):
        wait_for(
            lambda: applications.are_done(can_be_lost) or lacks_what_never_comes(),
            "everything arrives", bound, 0.5,
        )  # fmt: skip
    context.record.set_drain_seconds(time.monotonic() - since)
    leaderless = _leaderless_queues(context, datetime.now(UTC) - timedelta(seconds=max(RETRIED_S, bound / 2)))
    for queue in leaderless:
        context.event(f"RabbitMQ knows no leader of {queue}: messages for it are not confirmed")
    if leaderless:
        return
    for app in applications.unsettled():
        context.record.add_problem(
            f"{app.name} lacks confirms {bound:.0f} s after the end of all faults; {applications.errors()}"
        )


def _leaderless_queues(context: Context, since: datetime) -> list[str]:
    """Queues that a RabbitMQ node has lost for good, by its own log: no client can have messages for them confirmed."""
    found = set[str]()
    for broker in context.brokers.values():
        if isinstance(broker, RabbitNode):
            found |= broker.leaderless_queues(since)
    return sorted(found)


def _stop(app: App) -> None:
    """Stop an application. One that lost its group to a standby, or halted, may just have exited by itself."""
    try:
        app.stop(60.0)
    except Unmet:
        if app.child is None or app.child.exit_code not in expected_exits(app):
            raise


def _delete_queues(context: Context, plan: Plan) -> None:
    """Other runs use the same RabbitMQ after this one."""
    for broker in context.brokers.values():
        if isinstance(broker, RabbitNode):
            with broker.channel() as channel:
                for queue in plan.queues():
                    channel.queue_delete(queue)


# -- the judgement ----------------------------------------------------------------------------------------------


def _judge_logs(finished: _Finished, events: list[str]) -> Judgement:
    """The judgement that follows from the applications' logs."""
    applications, plan = finished.applications, finished.applications.plan
    published, handled = applications.logs()
    can_be_lost = plan.can_be_lost(sites_that_lost_state(events))
    total_lost = total_declared = total_held = 0
    problems: list[str] = []
    for group, log in handled.items():
        lost, declared = black_box.losses(published, log, applications.wants_latest(group))
        held = liveness.held_back(lost, published, log, can_be_lost)
        lost -= held
        total_lost, total_declared, total_held = (
            total_lost + len(lost), total_declared + declared["gap"] + declared["before"], total_held + len(held),
        )  # fmt: skip
        if lost:
            examples = ", ".join(f"{name}/{topic} {n}" for name, topic, n in sorted(lost)[:5])
            problems.append(
                f"{group} did not receive {len(lost)} messages within {finished.bound:.0f} s of the end of all faults,"
                f" and no cause that it names is confirmed by the faults: {examples}; {applications.errors()}"
            )
        if declared["gap"] and all(one["release"] == "consumed" for one in plan.drawn.producers):
            problems.append(f"{group} skipped {declared['gap']} declared messages that are kept")
    wrong = black_box.judge(published, handled)
    problems += [f"{count} messages: {kind}" for kind, count in sorted(wrong.items())]
    return Judgement(
        verdict="violated" if wrong else "lost" if total_lost else "complete",
        messages=_count_published(published),
        lost=total_lost,
        declared=total_declared,
        held=total_held,
        duplicates=wrong["duplicate without the flag"],
        out_of_order=wrong["out of order"],
        problems=tuple(problems),
    )


def _count_published(published: Logs) -> int:
    return sum(at["op"] == "returned" for log in published.values() for at in log)


def _with_problems(judged: Judgement, more: list[str]) -> Judgement:
    return dataclasses.replace(judged, problems=(*judged.problems, *more))


def _not_signed(journals: Path, plan: Plan) -> list[str]:
    """A problem for each segment and head for which the keys of the clients, if they sign, do not show that its client
    wrote it."""
    if not plan.drawn.journal_signed or not journals.is_dir():
        return []
    owners = [*(("producer", f"p{n + 1}") for n in range(len(plan.drawn.producers)))]
    owners += [("group", group) for group in plan.groups]
    found = collect(journals, Trust(ClientKeys({owner: {"run": journal_secret(*owner)} for owner in owners})))
    return [f"the checker: {owner[1]}: {line}" for owner in owners for line in found.not_signed_by(*owner)]


def compare(judged: Judgement, report: Report) -> Judgement:
    """The same judgement, with a problem for each thing that only the checker found, or only the judge."""
    counts = report.messages
    problems = list(judged.problems)
    for kind, found, expected in (
        ("duplicates", counts.duplicates, judged.duplicates),
        ("out of order", counts.out_of_order, judged.out_of_order),
        ("phantom", counts.phantom, 0),
    ):
        if found != expected:
            problems.append(f"the checker counts {found} messages {kind}, the judge {expected}")
    # Anything else may be unknown, such as deliveries by two inboxes of one group; that is reported, and no violation.
    violations = [f for f in report.findings if f.severity == "violated" or f.kind == "pending"]
    if counts.lost > judged.lost + judged.held:
        problems.append(
            f"the checker counts {counts.lost} messages lost, the judge {judged.lost} and {judged.held} held back"
        )
        violations += [f for f in report.findings if f.severity == "lost" and f.kind not in _DECLARED]
    problems += [f"the checker: {f.severity}: {f}" for f in violations[:_MAX_FINDINGS]]
    unknown = [f"{f.severity}: {f}" for f in report.findings if f.severity == "unknown"]
    return dataclasses.replace(judged, problems=tuple(problems), findings=tuple(unknown[:_MAX_FINDINGS]))
