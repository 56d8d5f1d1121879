"""Publishing until both sites have confirmed everything: small messages at RabbitMQ and Mosquitto sites, small ones as
plain broker messages, and large ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.pairs import alternate, run_ours, run_peer, verdict
from benchmarks.sites import mosquittos, queue, rabbits, session
from reliamsg.lab import RabbitNode

__all__ = ["large", "mosquitto", "plain", "small", "zstd"]

SMALL, LARGE = 100, 64 * 1024
VS_RSTREAM, VS_PIKA = 3.0, 20.0
VS_PAHO = 20.0
PLAIN_VS_PIKA = 0.8
LARGE_VS_PIKA = 0.75

OURS, OURS_PLAIN, OURS_LARGE = 1_000_000, 50_000, 3_000
RSTREAM, RSTREAM_SEND, PIKA, PAHO, PIKA_TWO, PIKA_LARGE = 1_000_000, 100_000, 60_000, 60_000, 40_000, 3_000
"""Messages in a run, which takes one to three seconds."""


def at_rabbits(nodes: list[RabbitNode], run: Callable[[str], Run], what: str) -> Callable[[int], Run]:
    """A side that publishes to a separate topic in each round."""

    def side(turn: int) -> Run:
        topic = f"{what}-{turn}"
        with queue(nodes, topic):
            return run(topic)

    return side


def small(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """One run of ours for all peers: `publish_many`, and `publish_nowait`, which is compared with rstream's `send()`
    for each message."""
    with rabbits(streams=True) as nodes:
        urls, count = [node.url for node in nodes], options.scaled
        sides: dict[str, Callable[[int], Run]] = {
            "nowait": at_rabbits(
                nodes, lambda topic: run_ours("publish", "nowait", topic, count(OURS), SMALL, *urls), "nowait"
            ),
            "many": at_rabbits(
                nodes, lambda topic: run_ours("publish", "many", topic, count(OURS), SMALL, *urls), "many"
            ),
        }
        if "publish-vs-rstream" in names:
            sides["rstream"] = lambda turn: run_peer(
                "publish_rstream", f"stream-{turn}", count(RSTREAM), SMALL, nodes[0].stream_port
            )
        if "publish-vs-rstream-send" in names:
            sides["send"] = lambda turn: run_peer(
                "publish_rstream", f"each-{turn}", count(RSTREAM_SEND), SMALL, nodes[0].stream_port, "each"
            )
        if "publish-vs-pika" in names:
            sides["pika"] = at_rabbits(
                nodes, lambda topic: run_peer("publish_pika", topic, count(PIKA), SMALL, urls[0]), "pika"
            )
        runs = alternate(options.pairs, sides, options.note)
    for peer, target in (("rstream", VS_RSTREAM), ("pika", VS_PIKA)):
        if peer in runs:
            nowait = verdict("", runs["nowait"], runs[peer], target, unit="messages/s")
            kept = ("ours", "ratio", "spread", "met", "ours_cpu_us_per_message", "ours_rss_mb")
            yield verdict(
                f"publish-vs-{peer}", runs["many"], runs[peer], target, unit="messages/s",
                publish_nowait={key: nowait[key] for key in kept},
            )  # fmt: skip

    if "send" in runs:
        yield verdict("publish-vs-rstream-send", runs["nowait"], runs["send"], VS_RSTREAM, unit="messages/s")


def mosquitto(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    with mosquittos() as brokers:
        urls, count = [broker.url for broker in brokers], options.scaled

        def ours(turn: int) -> Run:
            with session(brokers, f"ours-{turn}"):
                return run_ours("publish", "many", f"ours-{turn}", count(OURS), SMALL, *urls)

        def paho(turn: int) -> Run:
            with session(brokers, f"paho-{turn}"):
                return run_peer("publish_paho", f"paho-{turn}", count(PAHO), SMALL, brokers[0].port)

        runs = alternate(options.pairs, {"ours": ours, "paho": paho}, options.note)
    yield verdict("publish-mosquitto", runs["ours"], runs["paho"], VS_PAHO, unit="messages/s")


def zstd(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """JSON bodies, compressed compared with uncompressed. There is no target."""
    with rabbits() as nodes:
        urls, count = [node.url for node in nodes], options.scaled(OURS)

        def side(how: str) -> Callable[[int], Run]:
            return at_rabbits(nodes, lambda topic: run_ours("publish", how, topic, count, SMALL, *urls), how)

        sides = {how: side(how) for how in ("zstd", "json")}
        runs = alternate(options.pairs, sides, options.note)
    size = {how: found[0].more["held_bytes_per_message"] for how, found in runs.items()}
    yield verdict(
        "zstd", runs["zstd"], runs["json"], None, unit="messages/s",
        bytes_per_message={how: round(found, 1) for how, found in size.items()},
    )  # fmt: skip


def plain(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    yield _two_sites("plain", "plain", (OURS_PLAIN, PIKA_TWO), SMALL, PLAIN_VS_PIKA, options)


def large(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    yield _two_sites("large", "many", (OURS_LARGE, PIKA_LARGE), LARGE, LARGE_VS_PIKA, options)


def _two_sites(
    name: str, how: str, messages: tuple[int, int], size: int, target: float, options: Options
) -> dict[str, Any]:
    """Ours and pika, both to two sites until both have confirmed; large messages in MB/s."""
    with rabbits() as nodes:
        urls = [node.url for node in nodes]
        ours, pika = map(options.scaled, messages)
        runs = alternate(
            options.pairs,
            {
                "ours": at_rabbits(
                    nodes, lambda topic: run_ours("publish", how, topic, ours, size, *urls), "ours"
                ),
                "pika": at_rabbits(
                    nodes, lambda topic: run_peer("publish_pika", topic, pika, size, *urls), "pika"
                ),
            },
            options.note,
        )
    unit = "messages/s"
    if size == LARGE:
        unit = "MB/s"
        runs = {side: [_in_megabytes(run, size) for run in found] for side, found in runs.items()}
    return verdict(name, runs["ours"], runs["pika"], target, unit=unit)


def _in_megabytes(run: Run, size: int) -> Run:
    return Run(run.rate * size / 1e6, run.messages, run.cpu_seconds, run.rss_mb, run.more)
