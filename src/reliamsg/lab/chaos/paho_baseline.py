"""The baseline at MQTT sites: plain paho, in separate processes that can be killed like reliamsg's applications.

``python -m reliamsg.lab.chaos.paho_baseline CONFIG``. QoS 1 and persistent sessions at one broker. Each process logs
message numbers: ``handed`` when paho's `publish` returned, ``confirmed`` by the broker, ``received``.
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

from reliamsg.lab.chaos.processes import App, LineCounter
from reliamsg.lab.chaos.result import Baseline
from reliamsg.lab.chaos.waiting import MachineClock, wait_for
from reliamsg.lab.paho import PahoPublisher, PahoSubscriber

__all__ = ["PahoPair", "numbers_of", "paho_pair"]

Word = Literal["handed", "confirmed", "received", "ready"]

_MAX_UNCONFIRMED = 5_000
"""MQTT has 65,535 packet ids, and paho does not check whether one is in use."""
_QUIET_S = 3.0
"""When nothing has arrived for this long, nothing more is expected."""
_MAX_WAIT_S = 60.0
"""Messages that arrive later count as lost."""


def numbers_of(log: Path, word: Word) -> list[int]:
    """The numbers in a log after `word`, in order."""
    if not log.exists():
        return []
    lines = log.read_text().splitlines()
    return [int(number) for found, _, number in (line.partition(" ") for line in lines) if found == word]


class PahoPair:
    """A plain publisher and a plain subscriber at one broker."""

    def __init__(self, publisher: App, subscriber: App) -> None:
        self.publisher = publisher
        self.subscriber = subscriber

    def start(self) -> PahoPair:
        """Start the subscriber, then the publisher. Returns when messages are confirmed, so any later fault affects
        them."""
        self.subscriber.start()
        wait_for(self.counter("ready"), lambda: f"plain paho subscribes: {self.subscriber.errors()}")
        self.publisher.start()
        wait_for(self.counter("confirmed"), lambda: f"plain paho publishes: {self.publisher.errors()}")
        return self

    def counter(self, word: Word) -> Callable[[], int]:
        """Counts the lines with `word` in the logs."""
        app = self.publisher if word in ("handed", "confirmed") else self.subscriber
        return LineCounter(app.log, f"{word} ".encode())

    def finish(self, accepted: Literal["handed", "confirmed"] = "confirmed") -> Baseline:
        """Stop publishing, wait until nothing more arrives, stop the subscriber: the fate of `accepted` messages."""
        if self.publisher.running:
            self.publisher.stop(60)
        if not self.subscriber.running:
            self.subscriber.start()
        received = self.counter("received")
        wanted = set(numbers_of(self.publisher.log, accepted))
        best, quiet, clock = -1, time.monotonic(), MachineClock()
        while time.monotonic() - quiet < _QUIET_S and clock.look() < _MAX_WAIT_S:
            if received() > best:
                best, quiet = received(), time.monotonic()
            clock.pause(0.1)
        self.subscriber.stop(30)
        arrived = numbers_of(self.subscriber.log, "received")
        return Baseline(
            "plain paho, QoS 1, persistent session, at one broker",
            len(wanted),
            len(wanted - set(arrived)),
            len(arrived) - len(set(arrived)),
            sum(later < earlier for earlier, later in itertools.pairwise(arrived)),
        )

    def end(self) -> None:
        """Kill both processes."""
        self.publisher.kill()
        self.subscriber.kill()


def paho_pair(
    directory: Path,
    url: str,
    reading: str,
    topic: str,
    *,
    rate: int = 500,
    delay: float = 0.0,
    poison: int = 0,
) -> PahoPair:
    """A pair, not started. `rate`: messages per second. `delay`: seconds that the subscriber spends on each message.
    `poison`: the subscriber raises on messages whose number is a multiple of it. `reading`: the subscriber's URL."""
    directory.mkdir(parents=True, exist_ok=True)

    def app(role: str, url: str) -> App:
        config = {"role": role, "url": url, "topic": topic, "rate": rate, "delay": delay, "poison": poison,
                  "log": str(directory / f"{role}.log")}  # fmt: skip
        return App("reliamsg.lab.chaos.paho_baseline", config)

    return PahoPair(app("publish", url), app("subscribe", reading))


class _Log:
    """One line per number, passed to the kernel at once."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (open as long as the process lives)

    def write(self, word: Word, number: int) -> None:
        self._file.write(f"{word} {number}\n")


def publish(config: dict[str, Any], stop: list[int]) -> None:
    """Publish numbers until SIGTERM, and then wait for the outstanding confirms."""
    path = Path(config["log"])
    number = max(numbers_of(path, "handed"), default=0)
    log = _Log(config["log"])
    publisher = PahoPublisher(config["url"], f"{config['topic']}-publisher")
    started, first = time.monotonic(), number
    while not stop:
        number += 1
        publisher.publish(config["topic"], str(number).encode(), number)
        log.write("handed", number)
        while True:
            for found in publisher.confirmed(0.0):
                log.write("confirmed", cast(int, found))
            early = started + (number - first) / config["rate"] - time.monotonic()
            if stop or (early <= 0 and publisher.unconfirmed < _MAX_UNCONFIRMED):
                break
            time.sleep(min(max(early, 0.001), 0.05))
    end = time.monotonic() + 30
    while publisher.unconfirmed and time.monotonic() < end:
        for found in publisher.confirmed(0.1):
            log.write("confirmed", cast(int, found))
    publisher.close()


def subscribe(config: dict[str, Any], stop: list[int]) -> None:
    """Log every number that arrives until SIGTERM."""
    log = _Log(config["log"])

    def on_body(body: bytes) -> None:
        if config["poison"] and int(body) % config["poison"] == 0:
            raise ValueError(f"message {int(body)} is poison")
        log.write("received", int(body))
        if config["delay"]:
            time.sleep(config["delay"])

    subscriber = PahoSubscriber(config["url"], f"{config['topic']}-subscriber", config["topic"], on_body)
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
