"""A run of a campaign: a few faults at random, one after the other or side by side, and then everything must come."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.result import Result
from reliamsg.lab.chaos.traffic import Paths, Traffic
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.disk import fill
from reliamsg.lab.mosquitto import Mosquitto
from reliamsg.lab.process import LabError
from reliamsg.lab.proxy import TcpProxy
from reliamsg.lab.rabbitmq import RabbitNode
from reliamsg.wire.address import group_queue

__all__ = [
    "FAULT",
    "Brokers",
    "Mishaps",
    "Strike",
    "make_room",
    "of_brokers",
    "of_paths",
    "stop_for",
    "struck",
]

FAULT = "fault: "
"""How the event of a fault begins."""
_RATE = 400
_MIXED_RUNS = 0.4
"""The part of the runs at RabbitMQ and Mosquitto, where there is a RabbitMQ; the others are at two Mosquittos."""
_SMALL_DISKS = 0.3
"""The part of the runs whose outbox and inbox have a disk of 2 MB each, where we are root."""

Strike = Callable[[], object]
Brokers = Callable[[], RabbitNode]


def struck(result: Result) -> list[str]:
    """The faults of a run, by name, in order."""
    return [what.removeprefix(FAULT) for _, what in result.events if what.startswith(FAULT)]


class Mishaps:
    """One run. `rabbit` gives a running RabbitMQ that outlives it; None where there is none."""

    def __init__(self, rabbit: Brokers | None) -> None:
        self._rabbit = rabbit
        self._disks: dict[str, Path] = {}

    def perform(self, context: Context) -> None:
        """Do it."""
        rng = context.rng
        # In this order always: what a seed means must not depend on the machine.
        mixed, small = rng.random() < _MIXED_RUNS, rng.random() < _SMALL_DISKS
        if mixed and self._rabbit is not None:
            context.brokers["dc1"] = self._rabbit()
        else:
            context.mosquitto("dc1")
        context.mosquitto("dc2")
        paths = context.proxied()
        if small and os.geteuid() == 0:
            self._disks = {name: context.disk(f"{name}-disk", "2m") for name in ("outbox", "inbox")}
        t = self._traffic(context, paths)
        strikes = self._strikes(context, t, paths)
        # Both at once: whoever comes first, everything must come. A third of a run was waiting for processes to start.
        t.consumer.start()
        t.producer.start()
        t.reads()
        t.flows(50)
        context.event("a producer publishes, a group consumes")
        at_stake = 0
        for _ in range(rng.randrange(2, 6)):
            name = rng.choice(sorted(strikes))
            context.event(f"{FAULT}{name}")
            strikes[name]()
            time.sleep(rng.uniform(0.1, 1.2))  # what is random here is the instant
            at_stake += max(0, t.under_way)
            if rng.random() < 0.4:
                paths.heal(reset=True)
        self._mend(context, t, paths)
        context.stake(at_stake, "messages under way when faults struck")
        since = time.monotonic()
        t.comes()
        context.result.drain_seconds = time.monotonic() - since
        for node in _rabbits(context):
            with node.channel() as channel:
                channel.queue_delete(_queue(context))  # others run there after this one

    def _traffic(self, context: Context, paths: Paths) -> Traffic:
        def placed(name: str) -> dict[str, str]:
            return {name: str(self._disks[name] / f"{name}.db")} if self._disks else {}

        options = {"release": "consumed", "max_batch_messages": 20}
        return context.traffic(
            paths, rate=_RATE, start=False,
            producing={**placed("outbox"), "options": options, "linger": True},
            consuming={**placed("inbox"), **context.slow(0.001), "options": {"max_inbox_bytes": 1 << 16}},
        )  # fmt: skip

    def _strikes(self, context: Context, t: Traffic, paths: Paths) -> dict[str, Strike]:
        """All faults that this run may have, by name."""
        found = {
            **self._of_processes(context, t),
            **of_brokers(context, [_queue(context)]),
            **of_paths(context, paths),
        }

        def full(app: App, disk: Path) -> None:
            wait_for(app.ready, "it has opened its file")  # it would not start on a full disk, and says so
            fill(disk)

        for app, (name, disk) in zip((t.producer, t.consumer), self._disks.items(), strict=False):
            found[f"disk of the {name} full"] = partial(full, app, disk)
        return found

    def _of_processes(self, context: Context, t: Traffic) -> dict[str, Strike]:
        rng = context.rng

        def restart(app: App) -> None:
            make_room(self._disks)  # it would not start on a full disk, and says so
            app.kill()
            app.start()

        return {
            "producer killed": lambda: restart(t.producer),
            "consumer killed": lambda: restart(t.consumer),
            "process stopped": lambda: stop_for(rng.choice((t.producer, t.consumer)), rng.uniform(0.2, 2.5)),
        }

    def _mend(self, context: Context, t: Traffic, paths: Paths) -> None:
        """End all faults, and publishing."""
        make_room(self._disks)
        for node in _rabbits(context):
            node.memory_alarm(False)
        paths.heal(reset=True)
        for app in (t.producer, t.consumer):
            if not app.running:
                raise LabError(f"{app.name} ended by itself: {app.errors()}")
        t.producer.enough()
        context.hurry()
        context.event("all faults are over")


def of_brokers(context: Context, queues: list[str]) -> dict[str, Strike]:
    """What is done to the run's brokers, by name. `queues`: the groups', at RabbitMQ."""
    rng = context.rng
    names = list(context.brokers)
    forgetful = [name for name in names if isinstance(context.brokers[name], Mosquitto)]

    def killed(*struck: str) -> None:
        for name in struck:
            broker = context.brokers[name]
            if isinstance(broker, RabbitNode):
                # Else it is not the kill that is tried, but a queue that RabbitMQ forgot, being a second old.
                for queue in queues:
                    wait_for(partial(broker.has_recorded, queue), "its queue is recorded")
        for name in struck:
            context.brokers[name].kill()
        for name in struck:
            context.brokers[name].start()

    def paused() -> None:
        broker = context.brokers[rng.choice(names)]
        broker.pause()
        time.sleep(rng.uniform(0.2, 2.5))  # the fault itself
        broker.resume()

    found: dict[str, Strike] = {
        "Mosquitto killed": lambda: killed(rng.choice(forgetful)),
        "both sites killed": lambda: killed(*names),
        "broker stopped": paused,
    }
    for node in _rabbits(context):
        found["RabbitMQ killed"] = lambda: killed("dc1")
        found["RabbitMQ memory alarm"] = partial(node.memory_alarm, True)
    return found


def of_paths(context: Context, paths: Paths) -> dict[str, Strike]:
    """What is done to the network, by name."""
    rng = context.rng
    names = list(paths.urls)

    def path() -> TcpProxy:
        return rng.choice(paths.of())

    def everything() -> None:
        for proxy in paths.of():
            proxy.stall()

    def parted() -> None:
        one, other = rng.sample(names, 2)
        paths.producer[one].stall()
        paths.consumer[other].stall()

    def site() -> None:
        for proxy in paths.of(rng.choice(names)):
            proxy.cut()

    found: dict[str, Strike] = {"producer and consumer see one site each": parted} if len(names) > 1 else {}
    return {
        **found,
        "partition from all sites": everything,
        "site cut off": site,
        "path hangs": lambda: path().stall(),
        "path hangs one way": lambda: path().stall(rng.choice(("to_broker", "from_broker"))),
        "confirms lost": lambda: path().drop_from_broker(),
        "half open": lambda: path().half_open(),
        "reset in mid-frame": lambda: path().reset_mid_frame(rng.randrange(1, 5_000)),
        "delay": lambda: path().delay(rng.uniform(0.0, 1.0)),
        "slow line": lambda: path().limit(rng.choice((2_000, 20_000))),
    }


def _rabbits(context: Context) -> list[RabbitNode]:
    return [broker for broker in context.brokers.values() if isinstance(broker, RabbitNode)]


def _queue(context: Context) -> str:
    return group_queue(context.topic, 0, context.group)


def make_room(disks: Mapping[str, Path]) -> None:
    """Empty the disks that were filled."""
    for disk in disks.values():
        (disk / "filler").unlink(missing_ok=True)


def stop_for(app: App, seconds: float) -> None:
    """Stop a process with SIGSTOP for `seconds`."""
    app.signal(signal.SIGSTOP)
    time.sleep(seconds)
    app.signal(signal.SIGCONT)
