"""The network between the runs' applications and dc1, a RabbitMQ, and dc2, a Mosquitto; with checked traffic."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.chaos import traffic as chaos
from reliamsg.lab.chaos.traffic import IMPATIENT, Paths
from tests.runs.harness import App, Run, assert_complete

__all__ = ["IMPATIENT", "Paths", "Traffic", "paths_to", "traffic"]


@contextlib.contextmanager
def paths_to(rabbit: RabbitNode, mosquitto: Mosquitto) -> Iterator[Paths]:
    """A proxy for each path to them."""
    with chaos.paths_to([("dc1", rabbit.url, {}), ("dc2", mosquitto.url, {})]) as found:
        yield found


@dataclass
class Traffic(chaos.Traffic):
    """An active producer and consumer, judged at the end."""

    def drained(self) -> None:
        """Everything arrives, once and in order, and the checker agrees."""
        super().drained()
        assert_complete(self.run.check())


def traffic(
    run: Run,
    paths: Paths,
    topic: str,
    messages: int,
    *,
    rate: int = 1_000,
    size: int = 200,
    producing: dict[str, Any] | None = None,
    consuming: dict[str, Any] | None = None,
    module: Callable[[App], None] | None = None,
    **options: Any,
) -> Traffic:
    """Start a consumer, and when it reads both sites a producer; `options` are further arguments of its sites."""
    consumer = run.consumer(topic, paths.sites(paths.consumer), [topic], **(consuming or {}))
    producer = run.producer(
        "till", paths.sites(paths.producer, **options), topic, [topic], messages,
        **{"rate": rate, "chunk": max(1, rate // 50), "size": size, **(producing or {})},
    )  # fmt: skip
    if module is not None:
        module(producer)
        module(consumer)
    found = Traffic(run, producer, consumer, messages)
    found.start()
    return found
