"""A standby takes over from a consumer in another process that is killed, stopped, or closed: two never read
together."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Site
from reliamsg.lab import Mosquitto, RabbitNode
from tests.e2e.tools import World
from tests.patience import patient, wait_for

pytestmark = pytest.mark.integrations

TIMEOUT = 4.0
"""``takeover_timeout``, in seconds."""
RATE = 100


class Reader:
    """A consumer process, and the messages that it received."""

    def __init__(
        self, directory: Path, topic: str, sites: list[tuple[str, str]], name: str, **options: Any
    ) -> None:
        self.out = directory / f"{name}.out"
        self.out.touch()
        self.ready = directory / f"{name}.ready"
        inbox = directory / f"{options.pop('inbox', name)}.inbox.db"
        config = {
            "sites": [(site, url, {"backoff_min": 0.05, "backoff_max": 0.5}) for site, url in sites],
            "topic": topic, "inbox": str(inbox), "out": str(self.out), "ready": str(self.ready), "delay": 0.001,
            "options": {"takeover_timeout": TIMEOUT, "gap_timeout": 60.0, **options},
        }  # fmt: skip
        self.errors = directory / f"{name}.err"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.reader", json.dumps(config)], stderr=self.errors.open("wb")
        )

    def wait_ready(self) -> Reader:
        """It reads, or listens at all sites."""
        wait_for(self.ready.exists, f"{self.ready.stem} is ready", 60)
        return self

    def lines(self) -> list[tuple[float, int, bool]]:
        """Time, number, and flag of every message so far."""
        found = [
            line.split() for line in self.out.read_text().split("\n")[:-1]
        ]  # the last line may be incomplete
        return [(float(at), int(number), flag == "1") for at, number, flag in found]

    def signal(self, number: signal.Signals) -> float:
        os.kill(self.process.pid, number)
        return time.monotonic()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        self.process.wait(patient(30))


class Scene:
    """A producer that publishes all the time, and readers."""

    def __init__(self, directory: Path, topic: str, sites: list[tuple[str, str]]) -> None:
        self.directory, self.topic, self.urls = directory, topic, sites
        self.world = World(directory, topic, [Site(name, url, backoff_min=0.05) for name, url in sites])
        self.readers: list[Reader] = []
        self.published = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def reader(self, name: str, **options: Any) -> Reader:
        made = Reader(self.directory, self.topic, self.urls, name, **options)
        self.readers.append(made)
        return made

    def begin(self) -> None:
        self.producer = self.world.producer(release="consumed")
        self._thread.start()

    def _publish(self) -> None:
        while not self._stop.wait(10 / RATE):
            self.producer.publish_many(self.topic, [b"%d" % (self.published + n) for n in range(10)])
            self.published += 10

    def finish(self) -> None:
        """Stop publishing, and wait until everything was delivered to some reader."""
        self._stop.set()
        self._thread.join(patient(30))
        wait_for(lambda: self.missing() == [], "everything is delivered", 60, poll=0.1)

    def missing(self) -> list[int]:
        seen = {number for reader in self.readers for _, number, _ in reader.lines()}
        return sorted(set(range(self.published)) - seen)

    def close(self) -> None:
        self._stop.set()
        for reader in self.readers:
            reader.end()
        self.world.close()


@pytest.fixture(params=["mqtt", pytest.param("mixed", marks=pytest.mark.full)])
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    unique: str,
    rabbit: RabbitNode,
    make_mosquitto: Callable[..., Mosquitto],
) -> Iterator[Scene]:
    sites = [("dc2", make_mosquitto().url)]
    if request.param == "mixed":
        rabbit.ctl("add_vhost", unique)
        rabbit.ctl("set_permissions", "-p", unique, "guest", ".*", ".*", ".*")
        sites.insert(0, ("dc1", rabbit.url.replace("%2F", unique)))
    scene = Scene(tmp_path, unique, sites)
    try:
        yield scene
    finally:
        scene.close()


def check(scene: Scene) -> None:
    """The readers together received everything in order; repeated messages were flagged; two never read together."""
    seen: set[int] = set()
    spans = []
    for reader in scene.readers:
        lines = reader.lines()
        numbers = [number for _, number, _ in lines]
        assert numbers == sorted(set(numbers))
        spans.append((lines[0][0], lines[-1][0]))
        assert all(flag for _, number, flag in lines if number in seen), "earlier messages are flagged"
        seen |= set(numbers)
    for (_, last), (first, _) in itertools.pairwise(spans):
        assert last < first


def given(reader: Reader, count: int) -> Callable[[], bool]:
    return lambda: len(reader.lines()) >= count


def begin(scene: Scene, **options: Any) -> Reader:
    """A reader at work."""
    first = scene.reader("first", **options)
    scene.begin()
    wait_for(given(first, 50), "the first reads", 60)
    return first


def begin_with_standby(scene: Scene, **options: Any) -> tuple[Reader, Reader]:
    """An active reader, and a standby that receives nothing."""
    first = begin(scene, **options)
    second = scene.reader("second", standby=True, **options).wait_ready()
    wait_for(given(first, len(first.lines()) + 300), "the first reads on", 60)
    assert second.lines() == []
    return first, second


def test_the_one_that_reads_is_killed(scene: Scene) -> None:
    first, second = begin_with_standby(scene)
    killed = first.signal(signal.SIGKILL)
    wait_for(given(second, 100), "the second has taken over", 60)
    assert second.lines()[0][0] > killed
    scene.finish()
    check(scene)


def test_the_reader_is_stopped_and_continues(scene: Scene) -> None:
    first, second = begin_with_standby(scene)
    stopped = first.signal(signal.SIGSTOP)
    if len(scene.urls) == 1:  # a broker with locks keeps them for a silent client, for two heartbeats
        wait_for(given(second, 100), "the second has taken over", 60)
    else:
        time.sleep(2 * TIMEOUT)
    first.signal(signal.SIGCONT)
    wait_for(lambda: first.lines()[-1][0] > stopped or given(second, 300)(), "one of them reads", 60)
    scene.finish()
    if second.lines():
        check(scene)
        assert first.lines()[-1][0] < stopped + 0.5, "it was given nothing when it went on"
        first.process.wait(patient(60))
        assert b"GroupBusy" in first.errors.read_bytes()


def test_the_one_that_reads_is_closed(scene: Scene) -> None:
    first, second = begin_with_standby(scene)
    first.signal(signal.SIGTERM)
    wait_for(given(second, 100), "the second has taken over", 60)
    scene.finish()
    check(scene)
    seen = [number for reader in scene.readers for _, number, _ in reader.lines()]
    assert len(seen) == len(set(seen)), "nothing came twice"


def test_a_standby_with_the_same_inbox(scene: Scene) -> None:
    """It continues exactly where the other stopped."""
    first, second = begin_with_standby(scene, inbox="shared")
    first.signal(signal.SIGKILL)
    wait_for(given(second, 100), "the second has taken over", 60)
    scene.finish()
    check(scene)


def test_a_second_consumer_ends(scene: Scene) -> None:
    first = begin(scene)
    second = scene.reader("second")
    second.process.wait(patient(60))
    assert b"GroupBusy" in second.errors.read_bytes()
    assert second.lines() == []
    scene.finish()
    numbers = [number for _, number, _ in first.lines()]
    assert numbers == sorted(set(numbers))
