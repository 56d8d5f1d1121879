"""All benchmarks by name. Benchmarks with the same function share its brokers and its runs of ours."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.options import Options

__all__ = ["BENCHMARKS", "Benchmark", "chosen", "measure"]


@dataclass(frozen=True)
class Benchmark:
    """One line of results."""

    name: str
    summary: str
    place: str
    """``module:function``, called with the requested names and the options; yields result lines."""
    in_all: bool = True


_PLACES: list[tuple[str, dict[str, str]]] = [
    ("publishing:small", {
        "publish-vs-rstream": "100 B to two RabbitMQ sites, against rstream to one stream",
        "publish-vs-rstream-send": "the same with one call per message on both sides",
        "publish-vs-pika": "100 B to two RabbitMQ sites, against pipelined pika to one site",
    }),
    ("publishing:mosquitto", {
        "publish-mosquitto": "100 B to two Mosquitto sites, against paho QoS 1 to one",
    }),
    ("publishing:plain", {
        "plain": 'wire="plain" to two RabbitMQ sites, against pipelined pika to both',
    }),
    ("publishing:large", {
        "large": "64 KiB messages to two RabbitMQ sites, against pipelined pika to both",
    }),
    ("publishing:zstd", {
        "zstd": "JSON bodies, compressed with zstd, against uncompressed",
    }),
    ("flows:end_to_end", {
        "end-to-end-vs-send": "the same against rstream's publishing with one call per message",
        "end-to-end": "published, confirmed, merged, in order, acknowledged, against rstream's publishing",
    }),
    ("observed:observed", {
        "observed": "end to end with metrics that are scraped every second, against none: processor time",
        "observed-otel": "the same with metrics that OpenTelemetry exports every second",
    }),
    ("flows:drain", {
        "drain": "a consumer alone with 2,000,000 messages at both sites, against publishing them",
    }),
    ("flows:catch_up", {
        "catch-up": "300,000 messages after both sites were down, with live ones, against the peak",
    }),
    ("alone:publish_latency", {
        "publish-latency": "publish(), durable on return, one thread: median, against one bare commit",
    }),
    ("alone:publish_threads", {
        "publish-threads": "publish() from 50 threads, no site reachable, against one thread",
    }),
    ("asynchronous:vs_blocking", {
        "asyncio-many": "publish_many from an event loop, against the blocking producer",
    }),
    ("asynchronous:tasks", {
        "asyncio-tasks": "1,000 tasks that await publish() and the receipt, against aio-pika; the loop's lag",
    }),
    ("latency:latency", {
        "latency": "publish to delivered, 50 threads, 1,500 messages/s, MQTT, against paho QoS 1",
    }),
    ("alone:core", {
        "core": "the protocol's receiver alone: in-order batches from two sites; bytes per stream",
    }),
    ("alone:imported", {
        "import": "import reliamsg, against an interpreter that imports nothing",
    }),
    ("gap:gap", {
        "gap": "1,000,000 messages behind a missing one: memory, and their release once it arrives",
    }),
    ("soak:soak", {
        "soak": "ten minutes at half the peak rate: memory growth",
    }),
    ("repair:repair", {
        "repair": "the cost of control frames and idle streams, and the rate of repairs",
    }),
    ("others:peers", {
        "peers": "the publish rates of other clients, each tuned; no target",
    }),
    ("audit:traffic_and_audit", {
        "audit": "ten million messages, and a Spark audit of their journals",
    }),
    ("audit_scale:audits", {
        "audit-billion": "an audit of 10^9 messages in 1,000 streams, in ranges of 1,000",
        "audit-disturbed": "the same, with 5 % of the streams disturbed, and 20 faults",
        "audit-short-ranges": "an audit of 10^8 messages in ranges of 100",
        "audit-rows-apart": "an audit of 2 million rows of one message each, none of which continues another",
        "audit-site-gaps": "an audit of a stream of which a site lacks every second message",
        "audit-many-streams": "an audit of 100,000 streams of 10 messages",
        "audit-many-files": "an audit of 10,000 segments",
        "audit-join": "an audit of 10^7 messages in ranges of 100, and a join of single messages",
        "audit-increment": "an audit of the last 1 % of audit-billion's journals, with a state",
        "audit-compacted": "an audit of audit-billion's journals after a compaction",
        "audit-one-stream": "an audit of one stream, on one processor and on two",
    }),
    ("audit_follow:lags", {
        "audit-follow": "the lag of an audit that goes on while a hundred clients export",
    }),
]  # fmt: skip
"""Module and function, and the benchmarks that it measures: name and summary."""

_ON_REQUEST = frozenset(
    {
        "audit", "audit-billion", "audit-disturbed", "audit-short-ranges", "audit-rows-apart", "audit-site-gaps",
        "audit-many-streams", "audit-many-files", "audit-join", "audit-increment", "audit-compacted",
        "audit-one-stream", "audit-follow", "observed", "observed-otel", "peers", "soak",
    }
)  # fmt: skip
"""Benchmarks that ``all`` leaves out, because they take too long."""

_ALL = [
    Benchmark(name, summary, place, name not in _ON_REQUEST)
    for place, lines in _PLACES
    for name, summary in lines.items()
]

BENCHMARKS = {benchmark.name: benchmark for benchmark in _ALL}


def chosen(names: Iterable[str]) -> list[str]:
    """The names, with ``all`` replaced by the benchmarks that it includes. ValueError for an unknown name."""
    found: dict[str, None] = {}
    for name in names:
        if name != "all" and name not in BENCHMARKS:
            raise ValueError(f"unknown benchmark {name!r}; choose from: all {' '.join(BENCHMARKS)}")
        for each in BENCHMARKS.values():
            if each.name == name or (name == "all" and each.in_all):
                found[each.name] = None
    return list(found)


def measure(names: Iterable[str], options: Options) -> Iterator[dict[str, Any]]:
    """Run the named benchmarks in the catalogue's order, and yield each line as soon as it is known. A failure is a
    line with its error, and the others continue."""
    wanted = set(names)
    for place in dict.fromkeys(each.place for each in _ALL if each.name in wanted):
        here = [each.name for each in _ALL if each.place == place and each.name in wanted]
        options.note(f"-- {', '.join(here)}")
        module, function = place.split(":")
        done = set()
        try:
            call = getattr(importlib.import_module(f"benchmarks.{module}"), function)
            for line in call(frozenset(here), options):
                done.add(line["name"])
                yield line
        except (Exception, SystemExit) as error:  # noqa: BLE001  (it is in the line)
            for name in here:
                if name not in done:
                    yield {"name": name, "met": False, "error": str(error) or repr(error)}
