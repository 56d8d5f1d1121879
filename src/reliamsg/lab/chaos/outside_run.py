"""A run of a campaign: applications with settings drawn at random, faults at random, one after the other or side by
side, and a judge that reads what the applications logged.

When the faults are over, everything for which publish() returned must be delivered within a bound that follows from the
settings, or declared to the application where these allow that, or be held back for a cause that status() names and the
fault log confirms (:mod:`reliamsg.lab.chaos.liveness`). In a black-box run nothing else is looked at. In any other the
checker reads the clients' journals and files, too, and both must find the same.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from reliamsg.checker import Report, check_directory
from reliamsg.lab.chaos import blackbox, liveness
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.mishaps import (
    FAULT,
    Brokers,
    Strike,
    forgot,
    make_room,
    of_brokers,
    of_paths,
    stop_for,
)
from reliamsg.lab.chaos.outside import BUSY, CROWDED
from reliamsg.lab.chaos.processes import App, SiteSpec
from reliamsg.lab.chaos.result import Result
from reliamsg.lab.chaos.settings import Drawn, draw, fit_small_disks
from reliamsg.lab.chaos.traffic import Paths
from reliamsg.lab.chaos.waiting import Unmet, wait_for
from reliamsg.lab.disk import fill
from reliamsg.lab.process import LabError
from reliamsg.lab.rabbitmq import RabbitNode
from reliamsg.wire.address import group_queue

__all__ = ["OutsideRun"]

RATE = 200
"""Messages a second from each producer."""
LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("amqp", "mqtt"), ("mqtt", "mqtt"), ("amqp", "mqtt", "mqtt"), ("mqtt", "mqtt"), ("mqtt",),
)  # fmt: skip
ROOMY_QUARANTINE = 256 * 1024 * 1024
SMALL_DISKS = 0.2
"""The part of the runs whose first producer and first consumer have a disk of 2 MB each, where we are root."""


def compare(result: Result, report: Report) -> None:
    """The checker, which reads the clients' journals and files, must find what the judge of the applications' logs
    found, and nothing else wrong."""
    counts = report.messages
    for kind, found, judged in (
        ("duplicates", counts.duplicates, result.duplicates),
        ("out of order", counts.out_of_order, result.out_of_order),
        ("phantom", counts.phantom, 0),
    ):
        if found != judged:
            result.problems.append(f"the checker counts {found} messages {kind}, the judge {judged}")
    silent = [f for f in report.findings if f.severity == "lost" and f.kind not in _DECLARED]
    # What else may be unknown, such as what two inboxes of one group were given, is said, and no violation.
    unproven = [f for f in report.findings if f.severity == "violated" or f.kind == "pending"]
    result.findings = [f"{f.severity}: {f}" for f in report.findings if f.severity == "unknown"][
        :_MOST_FINDINGS
    ]
    if report.messages.lost > result.lost + result.held:
        result.problems.append(
            f"the checker counts {report.messages.lost} messages lost, the judge {result.lost} and"
            f" {result.held} held back"
        )
        unproven += silent
    result.problems += [f"the checker: {found.severity}: {found}" for found in unproven[:_MOST_FINDINGS]]


def stop(app: App) -> None:
    """End an application. One that lost its group to a standby may just have ended by itself."""
    try:
        app.stop(60.0)
    except Unmet:
        if app.child is None or app.child.exit_code != BUSY:
            raise


_DECLARED = ("declared_gap", "removed", "discarded")
"""Losses of which the application was told, by the checker's names."""
_MOST_FINDINGS = 10


class OutsideRun:
    """One run. `rabbit` gives a running RabbitMQ that outlives it; None where there is none."""

    def __init__(self, rabbit: Brokers | None, *, black_box: bool) -> None:
        self._rabbit, self._black_box = rabbit, black_box
        self.drawn: Drawn | None = None
        self._publishers: list[App] = []
        self._handlers: dict[str, list[App]] = {}
        """By group; a standby comes last."""
        self._ended = False
        """All faults are over, and what was missing then had its time to come."""
        self._bound = 0.0
        """That time, in seconds."""

    def perform(self, context: Context) -> None:
        """Do it, up to the end of both applications; :meth:`judge` does the rest."""
        rng = context.rng
        layout: tuple[str, ...] = rng.choice(LAYOUTS)
        if self._rabbit is None:
            layout = tuple("mqtt" for _ in layout)
        for number, protocol in enumerate(layout, 1):
            if protocol == "amqp" and self._rabbit is not None:
                context.brokers[f"dc{number}"] = self._rabbit()
            else:
                context.mosquitto(f"dc{number}")
        self.drawn = draw(rng, layout)
        small = rng.random() < SMALL_DISKS and os.geteuid() == 0
        if small:
            fit_small_disks(self.drawn)
        context.result.drawn = self.drawn
        context.event(f"settings: {self.drawn.text()}")
        paths = context.proxied()
        disks = self._disks(context) if small else {}
        self._make_applications(context, paths, disks)
        for app in self._apps:
            app.start()
        wait_for(
            partial(self._some_delivered, context), lambda: f"messages flow: {self._errors()}", 60.0, 0.2
        )
        since = time.monotonic()
        at_stake = self._strike(context, paths, disks)
        self._mend(context, paths, disks)
        context.stake(at_stake, "messages under way when faults struck")
        self._bound = self._within(context, time.monotonic() - since)
        context.event(f"everything must come within {self._bound:.0f} s")
        since = time.monotonic()
        with contextlib.suppress(Unmet):  # what is missing then is counted by the judge
            wait_for(partial(self._complete, context), "everything comes", self._bound, 0.5)
        context.result.drain_seconds = time.monotonic() - since
        # A broker that did not mend confirms nothing, whatever a client does: it still says so itself.
        lately = datetime.now(UTC) - timedelta(seconds=self._bound / 2)
        broken = {
            queue
            for broker in context.brokers.values()
            if isinstance(broker, RabbitNode)
            for queue in broker.without_leader(lately)
        }
        for queue in sorted(broken):
            context.event(f"RabbitMQ knows no leader of {queue}: what goes there is not confirmed")
        for app in () if broken else self._unsettled:
            context.result.problems.append(
                f"{app.name} lacks confirms {self._bound:.0f} s after the end of all faults; {self._errors()}"
            )
        self._ended = True
        for app in self._apps:
            stop(app)
        self._tidy_brokers(context)

    def judge(self, result: Result, directory: Path) -> None:
        """Set the result from the applications' logs in `directory`."""
        published, handled = self._logs(directory)
        drawn = self.drawn
        if drawn is None or not self._ended:
            return  # the run has failed, and says why
        result.messages = sum(at["op"] == "returned" for log in published.values() for at in log)
        wrong = blackbox.judge(published, handled)
        for number, (group, log) in enumerate(handled.items()):
            latest = drawn.consumers[number]["begin"] == "latest"
            lost, declared = blackbox.missing(published, log, latest)
            held = liveness.held_back(lost, published, log, self._gone(result))
            lost -= held
            result.lost += len(lost)
            result.declared += declared
            result.held += len(held)
            if lost:
                some = ", ".join(f"{name}/{topic} {n}" for name, topic, n in sorted(lost)[:5])
                result.problems.append(
                    f"{group} was not given {len(lost)} messages within {self._bound:.0f} s of the end of all faults,"
                    f" for no cause that it names and the faults explain: {some}; {self._errors()}"
                )
            if declared and all(one["release"] == "consumed" for one in drawn.producers):
                result.problems.append(f"{group} was told to go on without {declared} messages that are kept")
        result.duplicates = wrong["duplicate without the flag"]
        result.out_of_order = wrong["out of order"]
        result.problems += [f"{count} messages: {kind}" for kind, count in sorted(wrong.items())]
        result.verdict = "violated" if wrong else "lost" if result.lost else "complete"
        if not self._black_box:
            compare(result, check_directory(directory))

    def _gone(self, result: Result) -> set[str]:
        """Producers whose messages can be gone, by the settings and the fault log."""
        assert self.drawn is not None
        sites = forgot(result)
        return {
            app.config["producer"]
            for app, options in zip(self._publishers, self.drawn.producers, strict=True)
            if liveness.may_be_gone(options, len(self.drawn.sites) // 2, sites)
        }

    def _within(self, context: Context, faults_s: float) -> float:
        drawn = self.drawn
        assert drawn is not None
        size = max(one["size"] for one in drawn.publishing)
        work = liveness.Work(len(self._lacking(context)), size, faults_s)
        return liveness.bound(drawn.sites, drawn.producers, drawn.consumers, work)

    @property
    def _apps(self) -> list[App]:
        return [*(app for apps in self._handlers.values() for app in apps), *self._publishers]

    def _errors(self) -> str:
        return " ".join(f"[{app.name}] {app.errors()[-400:]}" for app in self._apps)

    def _disks(self, context: Context) -> dict[str, Path]:
        return {name: context.disk(f"{name}-disk", "2m") for name in ("outbox", "inbox")}

    def _make_applications(self, context: Context, paths: Paths, disks: Mapping[str, Path]) -> None:
        drawn, directory = self.drawn, context.run.directory
        assert drawn is not None
        topics = [f"{context.topic}-{topic}" for topic in drawn.topics]
        groups = [f"{context.group}-g{number}" for number, _ in enumerate(drawn.consumers, 1)]
        journal = None if drawn.journal is None else {"target": str(directory / "journals"), **drawn.journal}
        common = {"topics": topics, "key": drawn.key, "journal": journal, "hurry": str(directory / "hurry"),
                  "enough": str(directory / "enough"), "rate": RATE}  # fmt: skip

        def add(role: str, name: str, number: int, config: dict[str, Any]) -> App:
            kind, disk = ("outbox", "producer") if role == "publish" else ("inbox", "consumer")
            place = disks[kind] if disks and number == 0 else directory
            app = App("reliamsg.lab.chaos.outside", {
                **common, **config, "role": role, "seed": context.rng.randrange(2**32),
                kind: str(place / f"{name}.{kind}.db"),
                "log": str(directory / f"{config.get('shared', name)}.{role}.jsonl"),
                "ready": str(directory / f"{name}.ready"), "ended": str(directory / f"{name}.ended"),
                "settled": str(directory / f"{name}.settled"),
                "sites": self._site_specs(paths, 0 if disk == "producer" else 1),
            })  # fmt: skip
            context.run.apps.append(app)
            return app

        for number, options in enumerate(drawn.consumers):
            group = groups[number]
            config = {
                "group": group,
                "handling": drawn.handling[number],
                "options": {**options, "standby": False},
            }
            self._handlers[group] = [add("handle", group, number, config)]
            if options["standby"]:
                spare = {**config, "options": options, "shared": group}
                self._handlers[group].append(add("handle", f"{group}-standby", number + 1, spare))
        for number, options in enumerate(drawn.producers):
            config = {"producer": f"p{number + 1}", "groups": groups, "options": options,
                      "publishing": drawn.publishing[number]}  # fmt: skip
            self._publishers.append(add("publish", f"p{number + 1}", number, config))

    def _site_specs(self, paths: Paths, side: int) -> list[SiteSpec]:
        """The sites as producers (0) or consumers (1) are told of them."""
        assert self.drawn is not None
        proxies = (paths.producer, paths.consumer)[side]
        return [
            (name, proxies[name].url(url), self.drawn.sites[2 * number + side])
            for number, (name, url) in enumerate(paths.urls.items())
        ]

    # -- what the applications said -------------------------------------------------------------------------

    def _logs(self, directory: Path) -> tuple[dict[str, list[blackbox.Line]], dict[str, list[blackbox.Line]]]:
        published = {app.config["producer"]: blackbox.lines(app.log) for app in self._publishers}
        handled = {group: blackbox.lines(apps[0].log) for group, apps in self._handlers.items()}
        return published, handled

    def _lacking(self, context: Context, gone: set[str] | None = None) -> list[liveness.Owed]:
        """Deliveries that are still owed, over all groups; without those that are held back for good, if messages of
        the producers `gone` can be gone."""
        assert self.drawn is not None
        self._supervise(context)
        published, handled = self._logs(context.run.directory)
        found: list[liveness.Owed] = []
        for number, log in enumerate(handled.values()):
            latest = self.drawn.consumers[number]["begin"] == "latest"
            lost, _ = blackbox.missing(published, log, latest)
            found += lost - liveness.held_back(lost, published, log, gone) if gone else lost
        return found

    def _complete(self, context: Context) -> bool:
        return not self._unsettled and not self._lacking(context, self._gone(context.result))

    @property
    def _unsettled(self) -> list[App]:
        """Publishers that have not ended, or that lack confirms."""
        return [app for app in self._publishers if not Path(app.config["settled"]).exists()]

    def _some_delivered(self, context: Context) -> bool:
        self._supervise(context)
        _, handled = self._logs(context.run.directory)
        return all(len(log) >= 20 for log in handled.values())

    def _supervise(self, context: Context) -> None:
        """Start again what ended because another one still held the group's lock, and do for a full quarantine what its
        error says; anything else that ends by itself is a failure of the run."""
        for app in self._apps:
            child = app.child
            if child is None or child.alive or app.killed():
                continue
            if child.exit_code == CROWDED and self._gives_room(app):
                context.event(f"an operator gives the quarantine of {app.name} more room")
                context.result.operated += 1
            elif child.exit_code != BUSY:
                raise LabError(f"{app.name} ended by itself with {child.exit_code}: {app.errors()}")
            app.start()

    def _gives_room(self, app: App) -> bool:
        """As an operator, have a group's quarantine hold all that a run publishes, where its settings explain that it
        was full: there are more streams than the group may have in use at once. Once: then it may not be full again."""
        drawn, options = self.drawn, app.config["options"]
        assert drawn is not None
        crowded = options["max_streams"] < len(drawn.producers) * len(drawn.topics)
        if not crowded or options["max_quarantine_bytes"] >= ROOMY_QUARANTINE:
            return False
        app.config["options"] = {**options, "max_quarantine_bytes": ROOMY_QUARANTINE}
        return True

    # -- faults -----------------------------------------------------------------------------------------------

    def _strike(self, context: Context, paths: Paths, disks: Mapping[str, Path]) -> int:
        """A few faults; returns how many deliveries were owed when they struck."""
        rng, at_stake = context.rng, 0
        strikes = {**self._of_processes(context, disks), **of_brokers(context, self._quorum_queues(context)),
                   **of_paths(context, paths)}  # fmt: skip
        for name, disk in disks.items():
            strikes[f"disk of the {name} full"] = partial(fill, disk)
        for _ in range(rng.randrange(2, 6)):
            name = rng.choice(sorted(strikes))
            context.event(f"{FAULT}{name}")
            strikes[name]()
            time.sleep(rng.uniform(0.1, 1.5))  # what is random here is the instant
            at_stake += len(self._lacking(context))
            if rng.random() < 0.4:
                paths.heal(reset=True)
        return at_stake

    def _of_processes(self, context: Context, disks: Mapping[str, Path]) -> dict[str, Strike]:
        rng = context.rng

        def restart(apps: list[App]) -> None:
            make_room(disks)  # it would not start on a full disk, and says so
            app = rng.choice(apps)
            app.kill()
            app.start()

        handlers = [app for apps in self._handlers.values() for app in apps]
        return {
            "producer killed": lambda: restart(self._publishers),
            "consumer killed": lambda: restart(handlers),
            "process stopped": lambda: stop_for(rng.choice(self._apps), rng.uniform(0.2, 2.5)),
        }

    def _mend(self, context: Context, paths: Paths, disks: Mapping[str, Path]) -> None:
        """End all faults, and publishing."""
        make_room(disks)
        for broker in context.brokers.values():
            if isinstance(broker, RabbitNode):
                broker.memory_alarm(False)
        paths.heal(reset=True)
        self._supervise(context)
        (context.run.directory / "enough").touch()
        (context.run.directory / "hurry").touch()
        context.event("all faults are over")

    def _queues(self, context: Context) -> list[str]:
        assert self.drawn is not None
        return [
            group_queue(f"{context.topic}-{topic}", 0, group)
            for topic in self.drawn.topics
            for group in self._handlers
        ]

    def _quorum_queues(self, context: Context) -> list[str]:
        assert self.drawn is not None
        return self._queues(context) if any(s.get("queue_type") == "quorum" for s in self.drawn.sites) else []

    def _tidy_brokers(self, context: Context) -> None:
        """Others run at the same RabbitMQ after this one."""
        for broker in context.brokers.values():
            if isinstance(broker, RabbitNode):
                with broker.channel() as channel:
                    for queue in self._queues(context):
                        channel.queue_delete(queue)
