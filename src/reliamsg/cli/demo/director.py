"""The steps of a run: the applications start, dc1 is killed, a consumer is killed, both return."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from reliamsg.checker import Expect, Report, check_directory
from reliamsg.cli.demo.audit import Audit, audit
from reliamsg.cli.demo.brokers import Brokers
from reliamsg.cli.demo.plan import GROUPS, PRODUCERS, SUBSCRIBED, TOPIC, Plan
from reliamsg.cli.demo.watch import Watch
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import Failure
from reliamsg.export.offline import export_file
from reliamsg.lab.process import Child, LabError

__all__ = ["Outcome", "Run"]

_LOOK_SECONDS = 0.25
_KILL_AFTER = 0.5
"""The share of messages that are published before dc1 is killed."""
_KILL_BY = 0.9
"""The share of published messages at which dc1 is killed at the latest."""
_AT_STAKE = 0.02
"""The share of messages that must be queued at dc1 for each group when it is killed."""
_STALLED_SECONDS = 25.0
_PLAIN_QUIET_SECONDS = 3.0
_END_SECONDS = 15.0
_SETTLED_SECONDS = 0.6
"""Journals are written several times a second; if they say the same for this time, they include the time of the
kill."""
_SETTLED_BY_SECONDS = 5.0
"""After this time it is taken to be included."""

_TRIED_SECONDS = 2.0
"""Consumers try to reach dc1 at least every 0.5 s."""


@dataclass
class Outcome:
    """The outcome of a run."""

    report: Report
    audit: Audit
    watch: Watch
    at_stake: dict[str, int]
    """For each group, the confirmed messages that were queued at dc1 when it was killed."""
    plain_at_stake: int
    unacknowledged: int
    """Messages that were delivered to the killed consumer and not durably acknowledged."""
    seconds: float
    finished: bool
    """Whether all groups received everything before the time limit."""

    @property
    def mattered(self) -> bool:
        """Whether the faults could have lost messages; otherwise the run proves nothing."""
        return min(self.at_stake.values()) > 0 and self.watch.plain.lost > 0


@dataclass
class Run:
    """One run of the demo."""

    plan: Plan
    brokers: Brokers
    stop: StopRequest
    on_look: Callable[[Watch], None]
    """Called several times a second."""
    on_event: Callable[[str], None]
    keep: bool = False
    """Keep the audit's files for inspection."""
    watch: Watch = field(init=False)
    _children: dict[str, Child] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.watch = Watch(self.plan)

    def perform(self) -> Outcome:
        """Start the applications, inject the faults, wait for the end, and check the result."""
        started = time.monotonic()
        for place in (self.plan.evidence, self.plan.control):
            place.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.callback(self._kill_all)
            self._start_all()
            plain_at_stake = self._lose_site()
            unacknowledged = self._lose_consumer()
            at_stake = self._return_site()
            finished = self._finish()
        self.watch.look()
        report, audited = self._judge()
        seconds = time.monotonic() - started
        return Outcome(
            report, audited, self.watch, at_stake, plain_at_stake, unacknowledged, seconds, finished
        )

    # The steps

    def _start_all(self) -> None:
        self._start("plain", "plain-subscriber", "subscribe")
        for group in GROUPS:
            self._start("consuming", group, group)
        self._wait(self._subscribed, 30.0, "the plain subscriber subscribes")
        for producer in PRODUCERS:
            self._start("producing", producer, producer)
        self._start("plain", "plain-publisher", "publish")
        self.on_event(
            f"producers {' and '.join(PRODUCERS)} publish {self.plan.messages:,} messages each, to dc1 and dc2; "
            f"groups {' and '.join(GROUPS)} read both; plain paho publishes as many"
        )

    def _lose_site(self) -> int:
        """Kill dc1 and the plain broker during traffic, with messages queued; returns the number of messages that were
        queued at the plain one."""
        least = _AT_STAKE * self.plan.total
        self._wait(lambda: self._published() >= _KILL_AFTER, 60.0, "half of the messages are published")
        self._wait(
            lambda: (
                (min(self.watch.queued("dc1").values()) >= least and self.watch.plain_queued >= least)
                or self._published() >= _KILL_BY
            ),
            60.0,
            "messages queue up at dc1",
        )
        self.brokers.sites["dc1"].kill()
        self.brokers.plain.kill()
        at_stake, plain = self._settle_at_stake(), self.watch.plain_queued
        queued = ", ".join(f"{count:,} for {group}" for group, count in at_stake.items())
        self.on_event(
            f"SIGKILL to dc1, which loses its messages ({queued}), and to plain paho's broker ({plain:,} messages)"
        )
        return plain

    def _settle_at_stake(self) -> dict[str, int]:
        """For each group, what dc1 had confirmed and not delivered when it was killed. What was in flight then is
        confirmed or received soon after; so this waits until the numbers stay the same."""
        at_stake, end = self.watch.queued("dc1"), time.monotonic() + _SETTLED_SECONDS
        limit = time.monotonic() + _SETTLED_BY_SECONDS
        while time.monotonic() < min(end, limit):
            self._look()
            newest = self.watch.queued("dc1")
            if newest != at_stake:
                at_stake, end = newest, time.monotonic() + _SETTLED_SECONDS
        return at_stake

    def _lose_consumer(self) -> int:
        """Kill the first group's consumer while it is consuming, and restart it. When this returns, it reads dc2, both
        groups have heard from the producers of all that dc1 confirmed, and have tried to reach dc1 since. This proves
        what dc1 lost."""
        group = GROUPS[0]
        self._ended.add(group)
        self._child(group).kill()
        self._pause(_SETTLED_SECONDS)
        handed, boot = _delivered(self.plan.delivered(group)), self.watch.boots[group]
        unacknowledged = max(0, handed - self.watch.acknowledged[group])
        self.on_event(
            f"SIGKILL to the consumer of {group}: {unacknowledged:,} messages handled, not yet acknowledged"
        )
        self.plan.heard(group).unlink(missing_ok=True)
        self._start("consuming", group, group)
        self.on_event(f"consumer of {group} starts again")
        self._wait(
            lambda: self.watch.boots[group] != boot and "dc2" in self.watch.reading[group],
            60.0,
            f"the consumer of {group} reads dc2",
        )
        self._wait(lambda: self.watch.announced("dc1"), 60.0, "the groups hear what dc1 had confirmed")
        self._pause(_TRIED_SECONDS)
        return unacknowledged

    def _return_site(self) -> dict[str, int]:
        """Start dc1 and the plain broker again, without their data; returns, for each group, the messages that were
        queued at dc1 when it was killed. By now all journals have the rows of that time."""
        self.watch.look()
        at_stake = self.watch.queued("dc1")
        for broker in (self.brokers.sites["dc1"], self.brokers.plain):
            broker.wipe()
        # Both are down for about the same time, so that neither client is favoured.
        self.brokers.plain.start()
        self.brokers.sites["dc1"].start()
        lost = ", ".join(f"{count:,} messages for {group}" for group, count in at_stake.items())
        self.on_event(f"dc1 returns without {lost}; plain paho's broker returns empty, too")
        return at_stake

    def _finish(self) -> bool:
        """Wait until all groups have everything, then shut down the applications."""
        finished = self._drained()
        for name in PRODUCERS:
            self._end(name)
        self._drain_plain()
        for name in (*GROUPS, "plain-publisher", "plain-subscriber"):
            self._end(name)
        return finished

    def _judge(self) -> tuple[Report, Audit]:
        """Export the journals, and judge them with the checker and with Spark."""
        for path in (*map(self.plan.outbox, PRODUCERS), *map(self.plan.inbox, GROUPS)):
            export_file(path, self.plan.journals)
        report = check_directory(
            self.plan.evidence, Expect(drained=True, groups={TOPIC: GROUPS}, producers=PRODUCERS)
        )
        self.on_event(f"the checker's verdict: {report.verdict}; now Spark audits the same journals")
        audited = audit(
            self.plan.journals, Path(self.plan.directory) / "spark", report, self.stop, keep=self.keep
        )
        if audited.not_run:
            self.on_event(f"no Spark audit: {audited.not_run}")
        return report, audited

    def _drained(self) -> bool:
        best, deadline = -1, time.monotonic() + _STALLED_SECONDS
        while True:
            self._look()
            done = sum(self.watch.acknowledged.values())
            confirmed = self.watch.confirmed.values()
            if done >= self.plan.total * len(GROUPS) and min(confirmed) >= self.plan.total:
                return True
            if done + sum(confirmed) > best:
                best, deadline = done + sum(confirmed), time.monotonic() + _STALLED_SECONDS
            if time.monotonic() > deadline:
                return False

    def _drain_plain(self) -> None:
        """Wait until plain paho's publisher is done, and no message has arrived for a while."""
        best, deadline = -1, time.monotonic() + _PLAIN_QUIET_SECONDS
        while time.monotonic() < deadline and self.watch.plain.lost:
            self._look()
            done = (
                len(self.watch.plain.confirmed)
                + len(self.watch.plain.delivered)
                + self.watch.plain.duplicates
            )
            if done > best or self._child("plain-publisher").alive:
                best, deadline = done, time.monotonic() + _PLAIN_QUIET_SECONDS

    # Processes

    def _start(self, module: str, name: str, argument: str) -> None:
        command = [sys.executable, "-m", f"reliamsg.cli.demo.{module}", self.plan.as_json(), argument]
        output = Path(self.plan.directory) / "output" / f"{name}.txt"
        self._children[name] = Child(name, command, output=output)
        self._ended.discard(name)

    def _child(self, name: str) -> Child:
        return self._children[name]

    def _end(self, name: str) -> None:
        self._ended.add(name)
        self._child(name).terminate(_END_SECONDS)

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.kill()

    # Waiting

    def _published(self) -> float:
        return sum(self.watch.published.values()) / self.plan.total

    def _subscribed(self) -> bool:
        log = self.plan.plain_delivered
        return log.exists() and SUBSCRIBED.encode() in log.read_bytes()

    def _look(self) -> None:
        """Update the numbers, show them, and check that all processes are running."""
        if self.stop.wait(_LOOK_SECONDS):
            raise Failure(self.stop.status, "interrupted; all processes were stopped")
        self.watch.look()
        self.on_look(self.watch)
        for name, child in self._children.items():
            if child.exit_code and name not in self._ended:
                last = child.output_tail().strip().splitlines() or ["no output"]
                raise LabError(
                    f"{name} exited with {child.exit_code}: {last[-1]}; its output: {child.output}"
                )

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()

    def _wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise LabError(f"not within {seconds:g} s: {what}")
            self._look()


def _delivered(log: Path) -> int:
    """The number of messages delivered to a group's application so far, by its own log."""
    return log.read_bytes().count(b'"op":"delivered"')
