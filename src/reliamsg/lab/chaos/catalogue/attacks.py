"""Attacks: numbers 42 to 49 of the catalogue of faults."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.paho_baseline import numbers_of
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.rogue import BOMBS, RogueClient, forged_frame, publish_bomb
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.traffic import Load, Traffic, message_count
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.chaos.wrong_clock import wrong_clock
from reliamsg.message import Prev
from reliamsg.wire.address import EXCHANGE, producer_address
from reliamsg.wire.control import VERSION, State, StreamState, encode_state
from reliamsg.wire.limits import MAX_SEQ

_DAY_S = 86_400.0
_MAX_GROWTH_MB = 64.0
_FLOOD_S = 10.0
_REQUESTS_PER_S = 1_000
"""Ten times as many would overload a machine with two processors that runs clients and brokers too."""


def signed(context: Context, *, producing: Mapping[str, Any] | None = None, start: bool = True) -> Traffic:
    """Traffic whose frames are all signed."""
    key = context.rng.randbytes(32).hex()
    load = Load(producing={"key": key, **(producing or {})}, consuming={"key": key})
    return context.traffic(context.sites(), load, start=start)


def rejected(t: Traffic) -> int:
    """The number of frames that the consumer has rejected."""
    return sum((row.detail or {}).get("count", 1) for row in t.rows(t.consumer, "rejected"))


def expect_little_growth(context: Context, t: Traffic, before: float) -> None:
    """The consumer's memory must not grow with what rogue clients send."""
    grown = t.consumer.rss_mb() - before
    context.event(f"the consumer's memory grew by {grown:.1f} MB")
    context.expect(
        grown < _MAX_GROWTH_MB, f"the consumer's memory grows by less than {_MAX_GROWTH_MB:.0f} MB"
    )


@register(
    Scenario(
        "sequence-jump",
        "A rogue client's sequence numbers jump to 2^63; nothing is signed",
        numbers=(43,), promises="P5 P7", messages=2_000,
    )
)  # fmt: skip
def sequence_jump(context: Context) -> None:
    options = {"on_gap": "skip", "gap_timeout": 1.0, "repair_delay": 0.1, "repair_timeout": 1.0}
    load = Load(
        rate=300,
        last=context.messages,
        producing={"linger": True},
        consuming={"options": options, "batch": 1},
    )
    t = context.traffic(context.sites(), load)
    t.flows(context.messages // 10)
    before = t.consumer.rss_mb()
    jumps: tuple[dict[str, Any], ...] = (
        {"seq": 2**63}, {"seq": 2**63 - 1}, {"seq": MAX_SEQ}, {"epoch": MAX_SEQ, "seq": MAX_SEQ},
        {"epoch": 6, "prev": Prev(5, 7, MAX_SEQ)},
    )  # fmt: skip
    with RogueClient.at(context.some_url()) as rogue:
        for number, jump in enumerate(jumps):
            rogue.publish(context.topic, forged_frame(context.topic, f"jumper{number}"))
            rogue.publish(context.topic, forged_frame(context.topic, f"jumper{number}", **{"seq": 2, **jump}))
    context.event("a rogue client's sequence numbers jump")
    wait_for(lambda: jumped(t) >= len(jumps), "all jumps reach the consumer")
    context.stake(jumped(t), "jumps that reached the consumer")
    wait_for(lambda: t.accepted() >= context.messages, t.producer.errors, 60)
    wait_for(lambda: t.delivered() >= context.messages, t.consumer.errors, 60)
    expect_little_growth(context, t, before)
    t.producer.stop()
    t.drained()
    # Without signatures the rogue client looks like several producers without journals, and the checker says so.
    context.record.expect_unknown(*(f"no journal of producer jumper{number}" for number in range(len(jumps))))


def jumped(t: Traffic) -> int:
    """The number of jumps that have reached the consumer, by its journal: received, declared on arrival because a newer
    epoch supersedes them, or rejected."""
    found = [
        row
        for row in t.rows(t.consumer, "received", "before_join", "declared")
        # Messages that are declared without having arrived have no site.
        if row.producer.startswith("jumper") and row.first != 1 and row.site
    ]
    return len(found) + rejected(t)


def forger_of(context: Context, t: Traffic, **more: Any) -> App:
    """Another application that publishes under the producer's name, with a key of its own, or none."""
    place = context.directory / "forger"
    place.mkdir(exist_ok=True)
    config = {
        **t.producer.config, "outbox": str(place / "outbox.db"), "log": str(place / "forger.pub.ndjson"),
        "journal": str(place / "journals"), "last": 1_000_000, "rate": 1_000, "groups": None, "confirm": False, **more,
    }  # fmt: skip
    forger = App(t.producer.module, config)
    context.stack.callback(forger.kill)
    return forger


@register(
    Scenario(
        "forged-first",
        "Forged messages under the producer's name arrive before the genuine ones",
        numbers=(44,), promises="P4 P5", messages=2_000,
    )
)  # fmt: skip
def forged_first(context: Context) -> None:
    t = signed(context, start=False)
    t.consumer.start()
    t.reads()
    forger = forger_of(context, t, key=context.rng.randbytes(32).hex()).start()
    context.event("a forger publishes under the producer's name")
    wait_for(lambda: rejected(t) > 100, lambda: f"forgeries are rejected; {t.consumer.errors()}")
    t.producer.start()
    context.event("the genuine producer starts")
    t.flows(context.messages // 2)
    context.stake(rejected(t), "forged batches that arrived")
    forger.kill()
    t.finish(context.messages)


@register(
    Scenario(
        "forged-epoch",
        "A forger without the key publishes under the producer's name, in an epoch a day ahead",
        numbers=(45,), promises="P3 P4 P5", messages=2_000,
    )
)  # fmt: skip
def forged_epoch(context: Context) -> None:
    t = signed(context)
    t.flows(context.messages // 20)
    for key in ("", context.rng.randbytes(32).hex()):
        forger = forger_of(context, t, key=key, shift=_DAY_S)
        wrong_clock(forger)
        before = rejected(t)
        forger.start()
        context.event(f"a forger {'with a key of its own' if key else 'without a key'}, an epoch ahead")
        wait_for(lambda b=before: rejected(t) > b + 20, "forgeries are rejected")  # type: ignore[misc]
        context.stake(rejected(t) - before, "batches of a higher epoch that arrived")
        t.flows(context.messages // 20)
        forger.kill()
        forger.log.unlink()
        Path(forger.config["outbox"]).unlink()
    t.finish(context.messages)
    context.expect("ProducerFenced" not in t.producer.errors(), "the genuine producer is not fenced")


def replay(context: Context, t: Traffic, *, retain: bool) -> None:
    """Record what passes at a site, and publish it again at each site, twice; with `retain`, retained at MQTT sites.
    Plain paho, if a site speaks MQTT, receives its own messages again too."""
    sites = t.consumer.config["sites"]
    plain = [pair.start() for pair in context.paho_beside(sites)]
    with RogueClient.at(context.some_url("mqtt" if retain else "")) as rogue:
        rogue.listen(context.topic)
        t.flows(context.messages // 3)
        wait_for(rogue.recorded, "something passes")
        capture = rogue.recorded()
    context.event(f"{len(capture)} batches were recorded")
    replayed = 0
    for _, url, _ in sites:
        if retain and not url.startswith("mqtt://"):
            continue
        with RogueClient.at(url) as rogue, RogueClient.at(url) as witness:
            witness.listen(context.topic)
            for body in capture * 2:
                rogue.publish(context.topic, body, retain=retain)
            wait_for(lambda w=witness: repeated(w, capture) >= 2 * len(capture), "the broker delivers them")  # type: ignore[misc]
            replayed += repeated(witness, capture)
    for pair in plain:
        with RogueClient.at(pair.subscriber.config["url"]) as rogue:
            for number in numbers_of(pair.subscriber.log, "received"):
                rogue.flood(context.plain_topic, str(number).encode())
    context.event(f"each was published again, twice, at each site{', retained' if retain else ''}")
    context.stake(replayed, "batches that brokers delivered again")
    if retain:
        t.consumer.stop()
        t.consumer.start()
        context.event("the consumer disconnects and reconnects, so brokers send retained messages")
    t.finish(context.messages)
    for pair in plain:
        context.baseline(pair.finish())


def repeated(witness: RogueClient, capture: list[bytes]) -> int:
    """The number of batches from a capture among those that a client recorded."""
    known = set(capture)
    return sum(body in known for body in witness.recorded())


@register(
    Scenario(
        "stale-replayed",
        "Old messages are published again, retained, so that brokers send them to each subscriber",
        numbers=(42,), promises="P3 P4", messages=2_000, harm="duplicates",
    )
)  # fmt: skip
def stale_replayed(context: Context) -> None:
    replay(context, context.traffic(context.sites(), Load(producing={"chunk": 5})), retain=True)


@register(
    Scenario(
        "old-capture",
        "Signed batches that an attacker recorded are published again",
        numbers=(46,), promises="P3 P4", messages=2_000,
    )
)  # fmt: skip
def old_capture(context: Context) -> None:
    replay(context, signed(context, producing={"chunk": 5}), retain=False)


@register(
    Scenario(
        "made-up-producers",
        "Ten forged producer ids per genuine message: the consumer's memory does not grow",
        numbers=(47,), promises="P7", messages=2_000,
    )
)  # fmt: skip
def made_up_producers(context: Context) -> None:
    t = signed(context)
    t.flows(context.messages // 20)
    before, ids = t.consumer.rss_mb(), 10 * context.messages
    with RogueClient.at(context.some_url()) as rogue:
        for number in range(ids):
            rogue.flood(context.topic, forged_frame(context.topic, f"made-up-{number}"))
    context.event(f"{ids:,} producers that do not exist have published, unsigned")
    wait_for(lambda: rejected(t) >= context.messages, "they are rejected")
    t.flows(context.messages // 20)
    expect_little_growth(context, t, before)
    context.stake(rejected(t), "messages of forged producers that reached the consumer")
    t.finish(context.messages)


@register(
    Scenario(
        "header-bombs",
        "Messages at RabbitMQ whose headers break decoders",
        numbers=(48,), promises="P5 P7", messages=2_000, needs=frozenset({"rabbitmq"}), own_brokers=True, harm="lost",
    )
)  # fmt: skip
def header_bombs(context: Context) -> None:
    node = context.rabbit("dc1")
    t = context.traffic(context.sites())
    plain = context.pika(node.url, rate=200).start()
    t.flows(context.messages // 10)
    forwarded = 0
    for name, table in BOMBS.items():
        publish_bomb(node.url, "", context.plain_topic, table)
        if publish_bomb(node.url, EXCHANGE, context.topic, table):
            forwarded += 1
            context.event(f"a header bomb: {name}")
            t.flows(context.messages // 50)
    context.stake(forwarded, "header bombs that the broker forwarded")
    wait_for(lambda: rejected(t) >= forwarded, lambda: f"all are rejected; {t.consumer.errors()}")
    t.finish(context.messages)
    broken = [row for row in t.rows(t.consumer, "disconnected") if row.reason != "closed"]
    context.expect(not broken, "no connection was lost")
    context.baseline(plain.finish())


@register(
    Scenario(
        "repair-flood",
        "A rogue client floods a producer with requests for everything; live traffic continues",
        numbers=(49,), promises="P5 P7", messages=3_000,
    )
)  # fmt: skip
def repair_flood(context: Context) -> None:
    # Limits what rogue clients can consume; the default is meant for groups that do lack messages.
    options = {"max_repair_bytes_per_second": 1 << 20}
    t = context.traffic(context.sites(), Load(size=1_000, producing={"options": options}))
    t.flows(context.messages // 10)
    epoch = t.rows(t.producer, "opened")[-1].epoch
    address = producer_address(t.producer.config["producer"])
    numbers, requests = itertools.count(1), 0
    before, began = t.delivered(), time.monotonic()
    with RogueClient.at(context.some_url()) as rogue:
        while (spent := time.monotonic() - began) < _FLOOD_S:  # the fault itself
            if requests > spent * _REQUESTS_PER_S:
                time.sleep(0.001)
                continue
            for frame in encode_state(_request(context, address, epoch or 1, next(numbers))):
                rogue.flood(address, frame)
                requests += 1
    live = t.delivered() - before
    answered = message_count(row for row in t.rows(t.producer, "repaired") if row.group == "rogue")
    context.stake(answered, "messages that the producer sent again to the rogue client")
    context.event(f"{requests:,} requests; meanwhile {live:,} live messages were delivered")
    context.expect(live > context.messages // 10, "live traffic continued")
    t.finish(context.messages)
    # Without signatures the rogue client looks like another group, whose journal is missing, and the checker says so.
    context.record.expect_unknown("no journal of group rogue")


def _request(context: Context, address: str, epoch: int, number: int) -> State:
    """The state of a group that lacks everything."""
    span = (epoch, 1, context.messages)
    stream = StreamState(context.topic, 0, (epoch, 1), (epoch, 0), 0, [span], [span])
    return State(
        VERSION, "rogue", "rogue", number, 0, address, context.topic, "active",
        context.rng.randbytes(8), [stream],
    )  # fmt: skip
