"""The faults of a campaign's runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.result import Result
from reliamsg.lab.chaos.traffic import Paths
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.faults.proxy import TcpProxy

__all__ = [
    "FAULT",
    "Brokers",
    "Strike",
    "forgot",
    "make_room",
    "of_brokers",
    "of_paths",
    "stop_for",
    "struck",
]

FAULT = "fault: "
"""How the event of a fault begins."""
_FORGETS = "forgets what it held: "
"""How the event of a broker begins that was killed and keeps nothing on disk."""

Strike = Callable[[], object]
Brokers = Callable[[], RabbitNode]


def struck(result: Result) -> list[str]:
    """The faults of a run, by name, in order."""
    return [what.removeprefix(FAULT) for _, what in result.events if what.startswith(FAULT)]


def forgot(result: Result) -> set[str]:
    """The sites of a run that forgot what they held."""
    return {what.removeprefix(_FORGETS) for _, what in result.events if what.startswith(_FORGETS)}


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
            if name in forgetful:
                context.event(f"{_FORGETS}{name}")
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


def make_room(disks: Mapping[str, Path]) -> None:
    """Empty the disks that were filled."""
    for disk in disks.values():
        (disk / "filler").unlink(missing_ok=True)


def stop_for(app: App, seconds: float) -> None:
    """Stop a process with SIGSTOP for `seconds`."""
    app.signal(signal.SIGSTOP)
    time.sleep(seconds)
    app.signal(signal.SIGCONT)
