"""The publish rates of other clients, each tuned: 100-byte messages, until all are confirmed. There is no target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.pairs import alternate, rounded, run_peer
from benchmarks.publishing import PAHO, PIKA, RSTREAM, SMALL, at_rabbits
from benchmarks.sites import mosquittos, rabbits, session
from reliamsg.lab import Mosquitto, RabbitNode

__all__ = ["peers"]

AIO_PIKA, AIOMQTT, SUB_ENTRIES, RSTREAM_EACH = 10_000, 10_000, 2_000_000, 200_000


def peers(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    with rabbits(streams=True) as nodes, mosquittos() as brokers:
        runs = alternate(options.pairs, _sides(nodes, brokers[:1], options), options.note)
    yield {
        "name": "peers",
        "unit": "messages/s",
        "met": True,
        "pairs": options.pairs,
        "rates": {
            name: rounded(statistics.median(run.rate for run in found)) for name, found in runs.items()
        },
        "cpu_us_per_message": {
            name: rounded(statistics.median(1e6 * run.cpu_seconds / run.messages for run in found))
            for name, found in runs.items()
        },
    }


def _sides(
    nodes: list[RabbitNode], brokers: list[Mosquitto], options: Options
) -> dict[str, Callable[[int], Run]]:
    url, stream, mqtt, count = nodes[0].url, nodes[0].stream_port, brokers[0].port, options.scaled

    def at_mosquitto(module: str, messages: int) -> Callable[[int], Run]:
        def side(turn: int) -> Run:
            topic = f"{module}-{turn}"
            with session(brokers, topic):
                return run_peer(module, topic, count(messages), SMALL, mqtt)

        return side

    def at_rabbit(module: str, messages: int) -> Callable[[int], Run]:
        return at_rabbits(
            nodes[:1], lambda topic: run_peer(module, topic, count(messages), SMALL, url), module
        )

    return {
        "rstream": lambda turn: run_peer("publish_rstream", f"stream-{turn}", count(RSTREAM), SMALL, stream),
        "rstream, sub-entries": lambda turn: run_peer(
            "publish_rstream", f"entries-{turn}", count(SUB_ENTRIES), SMALL, stream, "sub"
        ),
        "rstream, send() for each": lambda turn: run_peer(
            "publish_rstream", f"each-{turn}", count(RSTREAM_EACH), SMALL, stream, "each"
        ),
        "pika, pipelined": at_rabbit("publish_pika", PIKA),
        "aio-pika": at_rabbit("publish_aio_pika", AIO_PIKA),
        "paho, QoS 1": at_mosquitto("publish_paho", PAHO),
        "aiomqtt, QoS 1": at_mosquitto("publish_aiomqtt", AIOMQTT),
    }
