"""Producer and consumer together: end to end, draining what both sites hold, and catching up after both were down."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.child import Child, run_of
from benchmarks.measured import Run
from benchmarks.options import Options
from benchmarks.pairs import alternate, run_peer, verdict
from benchmarks.sites import queue, rabbits, work_directory
from reliamsg.lab import RabbitNode

__all__ = ["catch_up", "checked", "consumer", "drain", "end_to_end", "producer"]

SIZE = 100
DRAINED = 2_000_000
END_TO_END, RSTREAM, RSTREAM_SEND, VS_RSTREAM = 1_000_000, 1_000_000, 100_000, 1.5
HELD, PEAK, LIVE_RATE, VS_PEAK = 300_000, 600_000, 10_000, 0.7


def producer(nodes: list[RabbitNode], directory: Path, topic: str, **config: Any) -> Child:
    """Started and connected; see :mod:`benchmarks.ours.producing`."""
    child = Child(
        "producing",
        {
            "sites": named(nodes), "outbox": str(directory / f"{topic}.outbox"), "topic": topic, "size": SIZE,
            **config,
        },
    )  # fmt: skip
    child.wait_started()
    return child


def consumer(nodes: list[RabbitNode], directory: Path, topic: str, **config: Any) -> Child:
    """Started and connected; see :mod:`benchmarks.ours.consuming`."""
    child = Child(
        "consuming",
        {"sites": named(nodes), "inbox": str(directory / f"{topic}.inbox"), "topic": topic, **config},
    )
    child.wait_started()
    return child


def named(nodes: list[RabbitNode]) -> list[list[str]]:
    return [[f"dc{number}", node.url] for number, node in enumerate(nodes, 1)]


def checked(got: dict[str, Any], count: int) -> dict[str, Any]:
    """An answer of the consumer, if everything arrived in order. The warm-up's message is not in `count`."""
    if not got["done"] or got["delivered"] != count + 1 or got["out_of_order"]:
        raise SystemExit(
            f"of {count + 1} messages {got['delivered']} arrived, {got['out_of_order']} out of order"
        )
    return got


def one_end_to_end(nodes: list[RabbitNode], topic: str, count: int) -> Run:
    """From the first publish until everything is confirmed by both sites, delivered, acknowledged, and released by
    both."""
    with (
        queue(nodes, topic),
        work_directory() as directory,
        consumer(nodes, directory, topic) as reading,
        producer(nodes, directory, topic) as sending,
    ):
        reading.tell(do="wait", count=count + 1, timeout=120, settled=True)
        sent = sending.ask(do="publish", count=count, rate=0, numbered=False)
        got = checked(reading.answer(), count)
    seconds = max(sent["end"], got["at"]) - sent["start"]
    return run_of(count / seconds, count, sent, got, publish_rate=count / sent["seconds"])


def end_to_end(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    """One run of ours for both of rstream's ways to publish."""
    count = options.scaled(END_TO_END)
    with rabbits(streams=True) as nodes:

        def rstream(turn: int, messages: int, kind: str) -> Run:
            stream = f"stream{kind}-{turn}"
            return run_peer(
                "publish_rstream", stream, options.scaled(messages), SIZE, nodes[0].stream_port, kind
            )

        sides: dict[str, Callable[[int], Run]] = {
            "ours": lambda turn: one_end_to_end(nodes, f"flow-{turn}", count)
        }
        if "end-to-end" in names:
            sides["rstream"] = lambda turn: rstream(turn, RSTREAM, "")
        if "end-to-end-vs-send" in names:
            sides["send"] = lambda turn: rstream(turn, RSTREAM_SEND, "each")
        runs = alternate(options.pairs, sides, options.note)
    for name, peer in (("end-to-end", "rstream"), ("end-to-end-vs-send", "send")):
        if peer in runs:
            yield verdict(name, runs["ours"], runs[peer], VS_RSTREAM, unit="messages/s")


def one_drain(nodes: list[RabbitNode], topic: str, count: int) -> tuple[Run, Run]:
    """From the first delivery until both sites have released everything; and the rate at which it was published."""
    with queue(nodes, topic), work_directory() as directory:
        with producer(nodes, directory, topic) as sending:
            sent = sending.ask(do="publish", count=count, rate=0, numbered=False)
        with consumer(nodes, directory, topic) as reading:
            got = checked(reading.ask(do="wait", count=count + 1, timeout=120, settled=True), count)
    drained = run_of(count / (got["at"] - got["first_at"]), count, got)
    return drained, run_of(count / sent["seconds"], count, sent)


def drain(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    with rabbits() as nodes:
        count = options.scaled(DRAINED)
        drained, published = in_one_run(options, lambda turn: one_drain(nodes, f"stored-{turn}", count))
    yield verdict("drain", drained, published, None, unit="messages/s")


def in_one_run(options: Options, one: Callable[[int], tuple[Run, Run]]) -> tuple[list[Run], list[Run]]:
    """Rounds, each of which yields both sides of a pair."""
    found: dict[int, Run] = {}

    def first(turn: int) -> Run:
        run, found[turn] = one(turn)
        return run

    runs = alternate(options.pairs, {"ours": first, "compared": lambda turn: found[turn]}, options.note)
    return runs["ours"], runs["compared"]


@contextlib.contextmanager
def away(nodes: list[RabbitNode]) -> Iterator[None]:
    """Make the sites unreachable, as in maintenance; their content stays. At the end they all return at the same
    moment."""
    for node in nodes:
        node.evaluate("rabbit_maintenance:suspend_all_client_listeners().")
        node.evaluate('rabbit_networking:close_all_connections("away").')
    try:
        yield
    finally:
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(
                pool.map(
                    lambda node: node.evaluate("rabbit_maintenance:resume_all_client_listeners()."), nodes
                )
            )


def one_catch_up(nodes: list[RabbitNode], topic: str, options: Options) -> tuple[Run, Run]:
    """The rate at which held messages are confirmed, and the same producer's peak rate just before."""
    held, peak = options.scaled(HELD), options.scaled(PEAK)
    with queue(nodes, topic), work_directory() as directory:
        with producer(nodes, directory, topic) as sending:
            at_peak = sending.ask(do="publish", count=peak, rate=0)
            with away(nodes):
                sending.ask(do="hold", count=held)
                sending.tell(do="catch_up", rate=LIVE_RATE)
            back = sending.answer()
        with consumer(nodes, directory, topic, every=True) as reading:
            checked(reading.ask(do="wait", count=back["published"] + 1, timeout=120), back["published"])
    return run_of(held / back["seconds"], held, back), run_of(peak / at_peak["seconds"], peak, at_peak)


def catch_up(names: frozenset[str], options: Options) -> Iterator[dict[str, Any]]:
    with rabbits() as nodes:
        caught_up, peak = in_one_run(options, lambda turn: one_catch_up(nodes, f"away-{turn}", options))
    yield verdict(
        "catch-up", caught_up, peak, VS_PEAK, unit="messages/s",
        held=options.scaled(HELD), live_rate=LIVE_RATE,
    )  # fmt: skip
