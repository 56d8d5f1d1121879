"""The environment faults of a campaign: functions that inject them, by name."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.traffic import Paths
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.faults.disk import fill
from reliamsg.lab.faults.proxy import TcpProxy

__all__ = [
    "Faults",
    "broker_faults",
    "disk_faults",
    "fault_event",
    "free_space",
    "injected",
    "path_faults",
    "process_faults",
    "sites_that_lost_state",
]

_FAULT = "fault: "
"""Prefix of the event of a fault."""
_LOST_STATE = "loses its state: "
"""Prefix of the event of a killed broker that keeps nothing on disk."""

Faults = dict[str, Callable[[], object]]


def fault_event(name: str) -> str:
    """The text of the event of this fault."""
    return f"{_FAULT}{name}"


def injected(events: Iterable[str]) -> list[str]:
    """The names of the faults among `events`, in order."""
    return [what.removeprefix(_FAULT) for what in events if what.startswith(_FAULT)]


def sites_that_lost_state(events: Iterable[str]) -> set[str]:
    """The sites whose brokers lost their state, according to `events`."""
    return {what.removeprefix(_LOST_STATE) for what in events if what.startswith(_LOST_STATE)}


def process_faults(
    rng: random.Random, publishers: Sequence[App], handlers: Sequence[App], disks: Mapping[str, Path]
) -> Faults:
    """Faults of the applications' processes."""

    def restart(apps: Sequence[App]) -> None:
        free_space(disks)  # it would not start on a full disk, and say so
        app = rng.choice(apps)
        app.kill()
        app.start()

    return {
        "producer killed": lambda: restart(publishers),
        "consumer killed": lambda: restart(handlers),
        "process stopped": lambda: _suspend(rng.choice([*handlers, *publishers]), rng.uniform(0.2, 2.5)),
    }


def _suspend(app: App, seconds: float) -> None:
    """Suspend a process with SIGSTOP for `seconds`."""
    app.signal(signal.SIGSTOP)
    time.sleep(seconds)
    app.signal(signal.SIGCONT)


def broker_faults(context: Context, queues: Sequence[str]) -> Faults:
    """Faults of the run's brokers. `queues`: the groups' quorum queues at RabbitMQ."""
    rng = context.rng
    names = list(context.brokers)
    volatile = [name for name in names if isinstance(context.brokers[name], Mosquitto)]

    def kill(*victims: str) -> None:
        for name in victims:
            broker = context.brokers[name]
            if isinstance(broker, RabbitNode):
                # Otherwise the fault would not be the kill but a new queue that RabbitMQ has not recorded yet.
                for queue in queues:
                    wait_for(partial(broker.has_recorded, queue), f"{name} has recorded {queue}")
        for name in victims:
            context.brokers[name].kill()
            if name in volatile:
                context.event(f"{_LOST_STATE}{name}")
        for name in victims:
            context.brokers[name].start()

    def pause() -> None:
        broker = context.brokers[rng.choice(names)]
        broker.pause()
        time.sleep(rng.uniform(0.2, 2.5))  # the fault itself
        broker.resume()

    found: Faults = {
        "Mosquitto killed": lambda: kill(rng.choice(volatile)),
        "both sites killed": lambda: kill(*names),
        "broker stopped": pause,
    }
    for broker in context.brokers.values():
        if isinstance(broker, RabbitNode):
            found["RabbitMQ killed"] = lambda: kill("dc1")
            found["RabbitMQ memory alarm"] = partial(broker.memory_alarm, True)
    return found


def path_faults(rng: random.Random, paths: Paths) -> Faults:
    """Faults of the network between applications and sites."""
    names = list(paths.urls)

    def path() -> TcpProxy:
        return rng.choice(paths.of())

    def stall_all() -> None:
        for proxy in paths.of():
            proxy.stall()

    def split() -> None:
        one, other = rng.sample(names, 2)
        paths.producer[one].stall()
        paths.consumer[other].stall()

    def cut_site() -> None:
        for proxy in paths.of(rng.choice(names)):
            proxy.cut()

    found: Faults = {"producer and consumer see one site each": split} if len(names) > 1 else {}
    return {
        **found,
        "partition from all sites": stall_all,
        "site cut off": cut_site,
        "path hangs": lambda: path().stall(),
        "path hangs one way": lambda: path().stall(rng.choice(("to_broker", "from_broker"))),
        "confirms lost": lambda: path().drop_from_broker(),
        "half open": lambda: path().half_open(),
        "reset in mid-frame": lambda: path().reset_mid_frame(rng.randrange(1, 5_000)),
        "delay": lambda: path().delay(rng.uniform(0.0, 1.0)),
        "slow line": lambda: path().limit(rng.choice((2_000, 20_000))),
    }


def disk_faults(disks: Mapping[str, Path]) -> Faults:
    """Faults of the small disks, if the run has any."""
    return {f"disk of the {name} full": partial(fill, disk) for name, disk in disks.items()}


def free_space(disks: Mapping[str, Path]) -> None:
    """Delete what fills the disks."""
    for disk in disks.values():
        (disk / "filler").unlink(missing_ok=True)
