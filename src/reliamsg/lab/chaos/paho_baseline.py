"""The control: plain paho as its documentation recommends it, in processes of its own that can be killed like ours.

``python -m reliamsg.lab.chaos.paho_baseline CONFIG``. QoS 1 and persistent sessions at one broker. Each writes
numbers to a log: ``handed`` when paho's `publish` returned, ``confirmed`` when the broker said so, ``received``.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from reliamsg.lab.chaos.processes import App, Lines
from reliamsg.lab.chaos.result import Control
from reliamsg.lab.chaos.waiting import MachineClock, wait_for
from reliamsg.lab.paho import PlainPublisher, PlainSubscriber

__all__ = ["PlainPair", "numbers_of", "plain_pair"]

Word = Literal["handed", "confirmed", "received", "ready"]

_MOST_UNCONFIRMED = 5_000
"""MQTT has 65,535 packet ids, and paho does not look whether one is in use."""
_QUIET_S = 3.0
"""Nothing more comes when nothing came for so long."""
_MOST_S = 60.0
"""What has not come by then comes too late."""


def numbers_of(log: Path, word: Word) -> list[int]:
    """The numbers that a log has under `word`, in order."""
    if not log.exists():
        return []
    lines = log.read_text().splitlines()
    return [int(number) for found, _, number in (line.partition(" ") for line in lines) if found == word]


class PlainPair:
    """A plain publisher and a plain subscriber at one broker."""

    def __init__(self, publisher: App, subscriber: App) -> None:
        self.publisher = publisher
        self.subscriber = subscriber

    def start(self) -> PlainPair:
        """The subscriber first; returns when messages are confirmed: what is done after that is done to them."""
        self.subscriber.start()
        wait_for(self.counter("ready"), lambda: f"plain paho subscribes: {self.subscriber.errors()}")
        self.publisher.start()
        wait_for(self.counter("confirmed"), lambda: f"plain paho publishes: {self.publisher.errors()}")
        return self

    def counter(self, word: Word) -> Callable[[], int]:
        """Counts what the logs have under `word`."""
        app = self.publisher if word in ("handed", "confirmed") else self.subscriber
        return Lines(app.log, f"{word} ".encode())

    def finish(self, accepted: Literal["handed", "confirmed"] = "confirmed") -> Control:
        """End publishing, wait until nothing more comes, end the subscriber: what came of what was `accepted`."""
        if self.publisher.running:
            self.publisher.stop(60)
        if not self.subscriber.running:
            self.subscriber.start()
        received = self.counter("received")
        wanted = set(numbers_of(self.publisher.log, accepted))
        best, quiet, clock = -1, time.monotonic(), MachineClock()
        while time.monotonic() - quiet < _QUIET_S and clock.look() < _MOST_S:
            if received() > best:
                best, quiet = received(), time.monotonic()
            clock.pause(0.1)
        self.subscriber.stop(30)
        came = numbers_of(self.subscriber.log, "received")
        return Control(
            "plain paho, QoS 1, persistent session, at one broker",
            len(wanted),
            len(wanted - set(came)),
            len(came) - len(set(came)),
            sum(later < earlier for earlier, later in itertools.pairwise(came)),
        )

    def end(self) -> None:
        """Kill what still runs."""
        self.publisher.kill()
        self.subscriber.kill()


def plain_pair(
    directory: Path,
    url: str,
    reading: str,
    topic: str,
    *,
    rate: int = 500,
    delay: float = 0.0,
    poison: int = 0,
) -> PlainPair:
    """A pair, not started: `rate` messages a second, of which each costs the subscriber `delay` seconds; it raises over
    those whose number `poison` divides. `reading`: the subscriber's URL."""
    directory.mkdir(parents=True, exist_ok=True)

    def app(role: str, url: str) -> App:
        config = {"role": role, "url": url, "topic": topic, "rate": rate, "delay": delay, "poison": poison,
                  "log": str(directory / f"{role}.log")}  # fmt: skip
        return App("reliamsg.lab.chaos.paho_baseline", config)

    return PlainPair(app("publish", url), app("subscribe", reading))


class _Log:
    """A line for each number, handed to the kernel at once."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (lives as long as its process)

    def write(self, word: Word, number: int) -> None:
        self._file.write(f"{word} {number}\n")


def publish(config: dict[str, Any], stop: list[int]) -> None:
    """Publish numbers until a signal comes, and wait for what is unconfirmed then."""
    path = Path(config["log"])
    number = max(numbers_of(path, "handed"), default=0)
    log = _Log(config["log"])
    publisher = PlainPublisher(config["url"], f"{config['topic']}-publisher")
    started, first = time.monotonic(), number
    while not stop:
        number += 1
        publisher.publish(config["topic"], str(number).encode(), number)
        log.write("handed", number)
        while True:
            for found in publisher.confirmed(0.0):
                log.write("confirmed", cast(int, found))
            early = started + (number - first) / config["rate"] - time.monotonic()
            if stop or (early <= 0 and publisher.unconfirmed < _MOST_UNCONFIRMED):
                break
            time.sleep(min(max(early, 0.001), 0.05))
    end = time.monotonic() + 30
    while publisher.unconfirmed and time.monotonic() < end:
        for found in publisher.confirmed(0.1):
            log.write("confirmed", cast(int, found))
    publisher.close()


def subscribe(config: dict[str, Any], stop: list[int]) -> None:
    """Note every number that comes until a signal does."""
    log = _Log(config["log"])

    def got(body: bytes) -> None:
        if config["poison"] and int(body) % config["poison"] == 0:
            raise ValueError(f"message {int(body)} is poison")
        log.write("received", int(body))
        if config["delay"]:
            time.sleep(config["delay"])

    subscriber = PlainSubscriber(config["url"], f"{config['topic']}-subscriber", config["topic"], got)
    subscriber.wait_subscribed(60)
    log.write("ready", 0)
    while not stop:
        time.sleep(0.05)
    subscriber.close()


def main(config: dict[str, Any]) -> None:
    """Publish or subscribe, as `config` says."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    Path(config["ready"]).touch()
    {"publish": publish, "subscribe": subscribe}[config["role"]](config, stop)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
