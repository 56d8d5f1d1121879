"""Malice: 43 to 50 of the catalogue."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.paho_baseline import numbers_of
from reliamsg.lab.chaos.processes import App
from reliamsg.lab.chaos.rogue import BOMBS, Stranger, forged_frame, throw_bomb
from reliamsg.lab.chaos.scenario import scenario
from reliamsg.lab.chaos.traffic import Traffic, sum_of
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.chaos.wrong_clock import wrong_clock
from reliamsg.message import Prev
from reliamsg.wire.address import EXCHANGE, producer_address
from reliamsg.wire.control import VERSION, State, StreamState, encode_state
from reliamsg.wire.limits import MAX_SEQ

_DAY_S = 86_400.0
_MOST_GROWTH_MB = 64.0
_FLOOD_S = 10.0
_REQUESTS_PER_S = 1_000
"""Ten times that would be a flood for the machine itself, with clients and brokers on two processors."""


def signed(context: Context, **more: Any) -> Traffic:
    """Traffic whose frames are all signed."""
    key = context.rng.randbytes(32).hex()
    return context.traffic(
        context.sites(), producing={"key": key, **more.pop("producing", {})},
        consuming={"key": key}, **more,
    )  # fmt: skip


def rejected(t: Traffic) -> int:
    """How many frames the consumer has refused."""
    return sum((row.detail or {}).get("count", 1) for row in t.rows(t.consumer, "rejected"))


def grows_little(context: Context, t: Traffic, before: float) -> None:
    """The consumer's memory must not follow what strangers send."""
    grown = t.consumer.rss_mb() - before
    context.event(f"the consumer's memory grew by {grown:.1f} MB")
    context.expect(grown < _MOST_GROWTH_MB, f"it grows by less than {_MOST_GROWTH_MB:.0f} MB")


@scenario("sequence-jump", 43, promises="P5 P7", messages=2_000,
          title="A stranger's sequence numbers jump to 2^63; nothing is signed")  # fmt: skip
def sequence_jump(context: Context) -> None:
    options = {"on_gap": "skip", "gap_timeout": 1.0, "nak_delay": 0.1, "repair_timeout": 1.0}
    t = context.traffic(
        context.sites(),
        last=context.messages,
        rate=300,
        consuming={"options": options, "batch": 1},
        producing={"linger": True},
    )
    t.flows(context.messages // 10)
    before = t.consumer.rss_mb()
    jumps: tuple[dict[str, Any], ...] = (
        {"seq": 2**63}, {"seq": 2**63 - 1}, {"seq": MAX_SEQ}, {"epoch": MAX_SEQ, "seq": MAX_SEQ},
        {"epoch": 6, "prev": Prev(5, 7, MAX_SEQ)},
    )  # fmt: skip
    with Stranger.at(context.some_url()) as stranger:
        for number, jump in enumerate(jumps):
            stranger.publish(context.topic, forged_frame(context.topic, f"jumper{number}"))
            stranger.publish(
                context.topic, forged_frame(context.topic, f"jumper{number}", **{"seq": 2, **jump})
            )
    context.event("a stranger's numbers jump")
    wait_for(lambda: jumped(t) >= len(jumps), "all jumps come to the consumer")
    context.stake(jumped(t), "jumps that came to the consumer")
    wait_for(lambda: t.accepted() >= context.messages, t.producer.errors, 60)
    wait_for(lambda: t.delivered() >= context.messages, t.consumer.errors, 60)
    grows_little(context, t, before)
    t.producer.stop()
    t.drained()
    # Without signatures the stranger is as many more producers, who left no journals: that is said, and nothing else.
    context.unproven(*(f"no journal of producer jumper{number}" for number in range(len(jumps))))


def jumped(t: Traffic) -> int:
    """How many of the jumps have come to the consumer, by its journal: taken for messages, declared on arrival since a
    newer epoch supersedes them, or refused."""
    taken = [
        row
        for row in t.rows(t.consumer, "received", "before_join", "declared")
        # What is declared without having arrived has no site.
        if row.producer.startswith("jumper") and row.first != 1 and row.site
    ]
    return len(taken) + rejected(t)


def forger_of(context: Context, t: Traffic, **more: Any) -> App:
    """Somebody else who publishes in the producer's name, with a key of their own, or none."""
    place = context.directory / "forger"
    place.mkdir(exist_ok=True)
    config = {
        **t.producer.config, "outbox": str(place / "outbox.db"), "log": str(place / "forger.pub.ndjson"),
        "journal": str(place / "journals"), "last": 1_000_000, "rate": 1_000, "groups": None, "confirm": False, **more,
    }  # fmt: skip
    forger = App(t.producer.module, config)
    context.stack.callback(forger.kill)
    return forger


@scenario("forged-first", 44, promises="P4 P5", messages=2_000,
          title="Forged messages in the producer's name come first, the genuine ones second")  # fmt: skip
def forged_first(context: Context) -> None:
    t = signed(context, start=False)
    t.consumer.start()
    t.reads()
    forger = forger_of(context, t, key=context.rng.randbytes(32).hex()).start()
    context.event("a forger publishes in the producer's name")
    wait_for(lambda: rejected(t) > 100, lambda: f"forgeries are refused; {t.consumer.errors()}")
    t.producer.start()
    context.event("the genuine producer starts")
    t.flows(context.messages // 2)
    context.stake(rejected(t), "forged batches that came")
    forger.kill()
    t.finish(context.messages)


@scenario("forged-epoch", 45, promises="P3 P4 P5", messages=2_000,
          title="Somebody without the key publishes in the producer's name, in an epoch a day ahead")  # fmt: skip
def forged_epoch(context: Context) -> None:
    t = signed(context)
    t.flows(context.messages // 20)
    for key in ("", context.rng.randbytes(32).hex()):
        forger = forger_of(context, t, key=key, shift=_DAY_S)
        wrong_clock(forger)
        before = rejected(t)
        forger.start()
        context.event(f"a forger {'with a key of its own' if key else 'without a key'}, an epoch ahead")
        wait_for(lambda b=before: rejected(t) > b + 20, "forgeries are refused")  # type: ignore[misc]
        context.stake(rejected(t) - before, "batches of a higher epoch that came")
        t.flows(context.messages // 20)
        forger.kill()
        forger.log.unlink()
        Path(forger.config["outbox"]).unlink()
    t.finish(context.messages)
    context.expect("ProducerFenced" not in t.producer.errors(), "the genuine producer is not fenced")


def replay(context: Context, t: Traffic, *, retain: bool) -> None:
    """Record what passes at a site, and send it again, twice, at each; retained, where that is possible. Plain paho, if
    a site speaks MQTT, gets what it had again, too."""
    sites = t.consumer.config["sites"]
    plain = [pair.start() for pair in context.plain_beside(sites)]
    with Stranger.at(context.some_url("mqtt" if retain else "")) as stranger:
        stranger.listen(context.topic)
        t.flows(context.messages // 3)
        wait_for(stranger.heard, "something passes")
        capture = stranger.heard()
    context.event(f"{len(capture)} batches were recorded")
    came_again = 0
    for _, url, _ in sites:
        if retain and not url.startswith("mqtt://"):
            continue
        with Stranger.at(url) as stranger, Stranger.at(url) as witness:
            witness.listen(context.topic)
            for body in capture * 2:
                stranger.publish(context.topic, body, retain=retain)
            wait_for(lambda w=witness: again(w, capture) >= 2 * len(capture), "the broker passes them on")  # type: ignore[misc]
            came_again += again(witness, capture)
    for pair in plain:
        with Stranger.at(pair.subscriber.config["url"]) as stranger:
            for number in numbers_of(pair.subscriber.log, "received"):
                stranger.flood(context.plain_topic, str(number).encode())
    context.event(f"each was sent again, twice, to each site{', retained' if retain else ''}")
    context.stake(came_again, "batches that brokers passed on again")
    if retain:
        t.consumer.stop()
        t.consumer.start()
        context.event("the consumer leaves and returns, which makes brokers send what is retained")
    t.finish(context.messages)
    for pair in plain:
        context.control(pair.finish())


def again(witness: Stranger, capture: list[bytes]) -> int:
    """How many of the batches that somebody hears are of a capture."""
    known = set(capture)
    return sum(body in known for body in witness.heard())


@scenario("stale-replayed", 42, promises="P3 P4", messages=2_000, harm="duplicates",
          title="Old messages are published again, retained, so that brokers send them to whoever comes")  # fmt: skip
def stale_replayed(context: Context) -> None:
    replay(context, context.traffic(context.sites(), producing={"chunk": 5}), retain=True)


@scenario("old-capture", 46, promises="P3 P4", messages=2_000,
          title="Signed batches that somebody recorded are sent again")  # fmt: skip
def old_capture(context: Context) -> None:
    replay(context, signed(context, producing={"chunk": 5}), retain=False)


@scenario("made-up-producers", 47, promises="P7", messages=2_000,
          title="Ten made-up producer ids for each genuine message: their memory stays where it is")  # fmt: skip
def made_up_producers(context: Context) -> None:
    t = signed(context)
    t.flows(context.messages // 20)
    before, ids = t.consumer.rss_mb(), 10 * context.messages
    with Stranger.at(context.some_url()) as stranger:
        for number in range(ids):
            stranger.flood(context.topic, forged_frame(context.topic, f"made-up-{number}"))
    context.event(f"{ids:,} producers that do not exist have published, unsigned")
    wait_for(lambda: rejected(t) >= context.messages, "they are refused")
    t.flows(context.messages // 20)
    grows_little(context, t, before)
    context.stake(rejected(t), "messages of made-up producers that came to the consumer")
    t.finish(context.messages)


@scenario("header-bombs", 48, promises="P5 P7", messages=2_000, needs=("rabbitmq",), own_brokers=True, harm="lost",
          title="Messages at RabbitMQ whose headers break decoders")  # fmt: skip
def header_bombs(context: Context) -> None:
    node = context.rabbit("dc1")
    t = context.traffic(context.sites())
    plain = context.plain_pika(node.url, rate=200).start()
    t.flows(context.messages // 10)
    thrown = 0
    for name, table in BOMBS.items():
        throw_bomb(node.url, "", context.plain_topic, table)
        if throw_bomb(node.url, EXCHANGE, context.topic, table):
            thrown += 1
            context.event(f"a bomb: {name}")
            t.flows(context.messages // 50)
    context.stake(thrown, "bombs that the broker let through")
    wait_for(lambda: rejected(t) >= thrown, lambda: f"all are set aside; {t.consumer.errors()}")
    t.finish(context.messages)
    broken = [row for row in t.rows(t.consumer, "disconnected") if row.reason != "closed"]
    context.expect(not broken, "no connection ended")
    context.control(plain.finish())


@scenario("repair-flood", 49, promises="P5 P7", messages=3_000,
          title="A stranger asks again and again for all that a producer ever sent; live traffic goes on")  # fmt: skip
def repair_flood(context: Context) -> None:
    # What strangers may have of this machine; the default is meant for groups that lack something.
    options = {"max_repair_bytes_per_second": 1 << 20}
    t = context.traffic(context.sites(), size=1_000, producing={"options": options})
    t.flows(context.messages // 10)
    epoch = t.rows(t.producer, "opened")[-1].epoch
    address = producer_address(t.producer.config["producer"])
    numbers, asked = itertools.count(1), 0
    before, began = t.delivered(), time.monotonic()
    with Stranger.at(context.some_url()) as stranger:
        while (spent := time.monotonic() - began) < _FLOOD_S:  # the fault itself
            if asked > spent * _REQUESTS_PER_S:
                time.sleep(0.001)
                continue
            for frame in encode_state(_asking(context, address, epoch or 1, next(numbers))):
                stranger.flood(address, frame)
                asked += 1
    live = t.delivered() - before
    answered = sum_of(row for row in t.rows(t.producer, "repaired") if row.group == "stranger")
    context.stake(answered, "messages that the producer sent again to the stranger")
    context.event(f"{asked:,} requests; meanwhile {live:,} live messages were handed out")
    context.expect(live > context.messages // 10, "live traffic went on")
    t.finish(context.messages)


def _asking(context: Context, address: str, epoch: int, number: int) -> State:
    """A group that lacks everything."""
    span = (epoch, 1, context.messages)
    stream = StreamState(context.topic, 0, (epoch, 1), (epoch, 0), 0, [span], [span])
    return State(
        VERSION, "stranger", "stranger", number, 0, address, context.topic, "active",
        context.rng.randbytes(8), [stream],
    )  # fmt: skip
