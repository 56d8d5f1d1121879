"""The applications of a campaign's run: publishers and handlers with settings drawn at random, and their logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reliamsg.lab.chaos import black_box, liveness
from reliamsg.lab.chaos.black_box_app import EXIT_BUSY, EXIT_HALTED, EXIT_QUARANTINE_FULL
from reliamsg.lab.chaos.processes import App, Run, SiteSpec
from reliamsg.lab.chaos.settings import Drawn, journal_secret
from reliamsg.lab.process import LabError
from reliamsg.wire.address import group_queue

__all__ = ["Applications", "Logs", "Plan", "enlarge_quarantine", "expected_exits"]

RATE = 200
"""Messages per second from each producer."""
ROOMY_QUARANTINE = 256 * 1024 * 1024
"""Bytes; holds everything that a run publishes."""
_STARTED = 20
"""Log lines of each group after which messages are known to flow."""

Logs = dict[str, list[black_box.Line]]
"""Log lines, by producer or by group."""


@dataclass(frozen=True)
class Plan:
    """What the applications of a run are configured from."""

    drawn: Drawn
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    outbound: tuple[SiteSpec, ...]
    """The sites as producers are configured with them."""
    inbound: tuple[SiteSpec, ...]
    """The sites as consumers are configured with them."""
    disks: Mapping[str, Path]
    """The small disks of the first ``outbox`` and the first ``inbox``; empty if there are none."""

    def queues(self) -> list[str]:
        """The groups' queues at RabbitMQ."""
        return [group_queue(topic, 0, group) for topic in self.topics for group in self.groups]

    def quorum_queues(self) -> list[str]:
        """The same, if any site uses quorum queues."""
        quorum = any(site.get("queue_type") == "quorum" for site in self.drawn.sites)
        return self.queues() if quorum else []

    def can_be_lost(self, sites: set[str]) -> set[str]:
        """The producers whose messages may be gone if these sites have lost their state."""
        return {
            f"p{number}"
            for number, options in enumerate(self.drawn.producers, 1)
            if liveness.may_be_gone(options, len(self.outbound), sites)
        }


class Applications:
    """The applications of one run. Each group has one handler, and possibly a standby."""

    def __init__(
        self, run: Run, plan: Plan, rng: random.Random, on_intervention: Callable[[str], object]
    ) -> None:
        """`on_intervention`: called with the name of an application when an operator enlarges its quarantine."""
        self.plan = plan
        self._directory = run.directory
        self._on_intervention = on_intervention
        self.handlers: dict[str, list[App]] = {}
        """By group; a standby comes last."""
        self.publishers: list[App] = []
        drawn = plan.drawn
        for number, (group, options) in enumerate(zip(plan.groups, drawn.consumers, strict=True)):
            config = {
                "group": group, "handling": drawn.handling[number], "options": {**options, "standby": False},
            }  # fmt: skip
            self.handlers[group] = [run.add(*self._application(rng, "handle", group, number, config))]
            if options["standby"]:
                # Not number 0: only the first handler has a small disk.
                config = {**config, "options": options, "shared": group}
                standby = self._application(rng, "handle", f"{group}-standby", number + 1, config)
                self.handlers[group].append(run.add(*standby))
        for number, options in enumerate(drawn.producers):
            name = f"p{number + 1}"
            config = {"producer": name, "groups": list(plan.groups), "options": options,
                      "publishing": drawn.publishing[number]}  # fmt: skip
            self.publishers.append(run.add(*self._application(rng, "publish", name, number, config)))

    def _application(
        self, rng: random.Random, role: str, name: str, number: int, config: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Module and configuration of an application; the first publisher and the first handler have number 0."""
        plan, directory = self.plan, self._directory
        kind, sites = ("outbox", plan.outbound) if role == "publish" else ("inbox", plan.inbound)
        place = plan.disks[kind] if plan.disks and number == 0 else directory
        journal = plan.drawn.journal
        owner = ("producer", config["producer"]) if role == "publish" else ("group", config["group"])
        return "reliamsg.lab.chaos.black_box_app", {
            "topics": list(plan.topics), "key": plan.drawn.key, "rate": RATE,
            "journal": None if journal is None else {"target": str(directory / "journals"), **journal},
            "journal_key": journal_secret(*owner).hex() if plan.drawn.journal_signed else "",
            "hurry": str(directory / "hurry"), "enough": str(directory / "enough"),
            **config,
            "role": role, "seed": rng.randrange(2**32), kind: str(place / f"{name}.{kind}.db"),
            "log": str(directory / f"{config.get('shared', name)}.{role}.jsonl"),
            "ready": str(directory / f"{name}.ready"), "ended": str(directory / f"{name}.ended"),
            "settled": str(directory / f"{name}.settled"), "sites": list(sites),
        }  # fmt: skip

    def all(self) -> list[App]:
        """All applications, handlers first."""
        return [*self.all_handlers(), *self.publishers]

    def all_handlers(self) -> list[App]:
        """All handlers, standbys included."""
        return [app for apps in self.handlers.values() for app in apps]

    def start(self) -> None:
        """Start all applications."""
        for app in self.all():
            app.start()

    def stop_publishing(self) -> None:
        """Tell the publishers to stop, and the handlers to handle messages without delay."""
        (self._directory / "enough").touch()
        (self._directory / "hurry").touch()

    def errors(self) -> str:
        """The end of each application's output."""
        return " ".join(f"[{app.name}] {app.errors()[-400:]}" for app in self.all())

    def logs(self) -> tuple[Logs, Logs]:
        """The publishers' logs by producer, and the handlers' logs by group."""
        published = {app.config["producer"]: black_box.read_log(app.log) for app in self.publishers}
        handled = {group: black_box.read_log(apps[0].log) for group, apps in self.handlers.items()}
        return published, handled

    def wants_latest(self, group: str) -> bool:
        """Whether a group wants only messages that are published after it joined."""
        return bool(self.plan.drawn.consumers[self.plan.groups.index(group)]["begin"] == "latest")

    def outstanding(self, can_be_lost: set[str] | None = None) -> list[liveness.Owed]:
        """Deliveries that are still owed, over all groups. Excluded are messages of the producers `can_be_lost` that
        are held back for good."""
        self.supervise()
        published, handled = self.logs()
        found: list[liveness.Owed] = []
        for group, log in handled.items():
            lost, _ = black_box.losses(published, log, self.wants_latest(group))
            found += lost - liveness.held_back(lost, published, log, can_be_lost) if can_be_lost else lost
        return found

    def are_done(self, can_be_lost: set[str]) -> bool:
        """Whether nothing is outstanding and publishers lack no confirms. Handlers are supervised even while publishers
        wait for confirms, since these may wait for a handler that exited."""
        return not self.outstanding(can_be_lost) and not self.unsettled()

    def unsettled(self) -> list[App]:
        """Publishers that have not finished, or that lack confirms."""
        return [app for app in self.publishers if not Path(app.config["settled"]).exists()]

    def messages_flow(self) -> bool:
        """Whether every group has received some messages."""
        self.supervise()
        _, handled = self.logs()
        return all(len(log) >= _STARTED for log in handled.values())

    def bound(self, faults_s: float) -> float:
        """The bound, in seconds, for everything to arrive after `faults_s` seconds of faults."""
        drawn = self.plan.drawn
        size = max(one["size"] for one in drawn.publishing)
        work = liveness.Work(len(self.outstanding()), size, faults_s)
        return liveness.bound(drawn.sites, drawn.producers, drawn.consumers, work)

    def supervise(self) -> None:
        """Restart applications that exited because another one still held the group's lock or because they were to halt
        at a message that can't be handled, and those whose quarantine was full, after enlarging it. If an application
        exits for any other reason, the run fails."""
        streams = len(self.plan.drawn.producers) * len(self.plan.topics)
        for app in self.all():
            child = app.child
            if child is None or child.alive or app.killed():
                continue
            if child.exit_code == EXIT_QUARANTINE_FULL and enlarge_quarantine(app, streams):
                self._on_intervention(app.name)
            elif child.exit_code not in expected_exits(app):
                raise LabError(f"{app.name} exited by itself with {child.exit_code}: {app.errors()}")
            app.start()


def expected_exits(app: App) -> tuple[int, ...]:
    """The exit codes with which an application with these settings may exit by itself, to be started again."""
    handling, options = app.config.get("handling", {}), app.config["options"]
    halts = options.get("on_dead_letter") == "halt" and handling["fails"] > 0
    return (EXIT_BUSY, EXIT_HALTED) if halts else (EXIT_BUSY,)


def enlarge_quarantine(app: App, streams: int) -> bool:
    """As an operator would, make a group's quarantine large enough for everything that a run publishes. Only if its
    settings explain why it was full, because the run has more streams than the group may have in use at once; and only
    once, since it must not be full again."""
    options = app.config["options"]
    if options["max_streams"] >= streams or options["max_quarantine_bytes"] >= ROOMY_QUARANTINE:
        return False
    app.configure(options={**options, "max_quarantine_bytes": ROOMY_QUARANTINE})
    return True
