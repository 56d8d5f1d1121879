"""Faults of the network under load, between mixed sites; afterwards everything must have arrived once and in order."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.errors import GapError
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.wire.address import group_queue
from tests.options import Size
from tests.runs.harness import App, run_in, wait_for, wait_until_reading
from tests.runs.paths import IMPATIENT, Paths, Traffic, paths_to, traffic


def test_all_packets_dropped(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """Nothing passes to or from any site; connections stay, new ones hang."""
    seconds = size(3, 30)
    with run_in(tmp_path / "run") as run:
        t = traffic(run, paths, unique, 1_000 * (seconds + 3))
        t.flows(500)
        for proxy in paths.of():
            proxy.stall()
        t.accepts(1_000 * (seconds - 1))
        stake = t.under_way
        assert stake > 500 * seconds, "the fault did not matter"
        for proxy in paths.of():
            proxy.heal()
        t.drained()


def test_one_site_isolated_then_healed(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """One site hangs, then the other, while traffic continues through the remaining one."""
    seconds = size(3, 20)
    with run_in(tmp_path / "run") as run:
        t = traffic(run, paths, unique, 1_000 * (2 * seconds + 2))
        t.flows(500)
        for site in ("dc1", "dc2"):
            for proxy in paths.of(site):
                proxy.stall()
            t.flows(1_000 * (seconds - 1))
            assert t.unconfirmed(site) > 500 * (seconds - 1), "the fault did not matter"
            for proxy in paths.of(site):
                proxy.heal()
            wait_for(lambda s=site: t.unconfirmed(s) < 500, 20, f"{site} catches up")
        t.drained()


def test_confirms_lost(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """Frames arrive, answers do not: everything is indeterminate, and sent again."""
    with run_in(tmp_path / "run") as run:
        t = traffic(run, paths, unique, size(5_000, 30_000), confirm_timeout=0.5)
        t.flows(500)
        for _ in range(size(2, 10)):
            for proxy in paths.producer.values():
                proxy.drop_from_broker()
            t.accepts(1_200)  # longer than confirm_timeout
            for site in paths.urls:
                assert t.unconfirmed(site) > 800, "the fault did not matter"
            for proxy in paths.producer.values():
                proxy.reset()
                proxy.heal()
            for site in paths.urls:
                wait_for(lambda s=site: t.unconfirmed(s) < 500, 20, f"{site} catches up")
        t.drained()
        for site in paths.urls:
            again = sum(r.last - r.first + 1 for r in t.rows(t.consumer, "duplicate") if r.site == site)
            assert again > 0, f"nothing was sent again to {site}"


def test_resets_in_mid_frame(
    tmp_path: Path, paths: Paths, unique: str, size: Size, seeded: random.Random
) -> None:
    with run_in(tmp_path / "run") as run:
        t = traffic(run, paths, unique, size(6_000, 40_000), size=1_000)
        t.flows(300)
        for number in range(size(16, 100)):
            proxy = paths.of()[number % 4]
            to_broker = proxy in paths.producer.values()
            where = seeded.randrange(1, 20_000 if to_broker else 60_000)
            if seeded.random() < 0.3:
                to_broker, where = not to_broker, seeded.randrange(1, 40)  # the acknowledgements
            proxy.reset_mid_frame(where, "to_broker" if to_broker else "from_broker")
            t.flows(100)
        for proxy in paths.of():
            proxy.heal()
        t.drained()
        for app in (t.producer, t.consumer):
            lost = {row.site for row in t.rows(app, "disconnected")}
            assert lost == {"dc1", "dc2"}, "no connection was reset"


@pytest.mark.full  # at small size: test_everything_at_once
def test_flapping(tmp_path: Path, paths: Paths, unique: str, seeded: random.Random) -> None:
    """Both sites alternate between up and down every second or so."""
    with run_in(tmp_path / "run") as run:
        times = 40
        t = traffic(run, paths, unique, 1_000 * (times + 3))
        t.flows(300)
        for number in range(times):
            down = paths.of("dc1") if number % 2 else paths.of("dc2")
            up = paths.of("dc2") if number % 2 else paths.of("dc1")
            for proxy in up:
                proxy.heal()
            for proxy in down:
                proxy.cut()
            t.accepts(seeded.randrange(700, 1_300))
        for proxy in paths.of():
            proxy.heal()
        t.drained()
        assert {row.site for row in t.rows(t.producer, "disconnected")} == {"dc1", "dc2"}


def test_a_slow_line(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """8 kbit/s to either site: batches take longer than confirm_timeout, and still arrive, one after the other."""
    with run_in(tmp_path / "run") as run:
        t = traffic(
            run, paths, unique, 1_500, rate=500, producing={"chunk": 20, "size": 60},
            heartbeat=10.0, connect_timeout=10.0, confirm_timeout=1.0,
        )  # fmt: skip
        t.flows(300)
        for proxy in paths.producer.values():
            proxy.limit(1_000.0)
        t.accepts(600)
        assert t.under_way > 300, "the fault did not matter"
        t.flows(size(60, 600), size(60, 600))
        for proxy in paths.producer.values():
            proxy.heal()
        t.drained()


def test_a_site_delayed_beyond_the_gap_timeout(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """Messages that arrive late from one site and at once from the other leave no gap."""
    gap_timeout = 1.0
    with run_in(tmp_path / "run") as run:
        t = traffic(
            run, paths, unique, size(5_000, 30_000), rate=1_000,
            consuming={"options": {"gap_timeout": gap_timeout}},
            heartbeat=10.0, confirm_timeout=20.0,
        )  # fmt: skip
        t.flows(300)
        for site in paths.urls:
            paths.consumer[site].delay(2 * gap_timeout, "from_broker")
            t.flows(1_500)
            late = run.queued(site, t.consumer.config["group"])
            assert late > 100, f"only {late} messages of {site} are late"
            paths.consumer[site].heal()
        t.drained()
        assert not t.rows(t.consumer, "declared")


def test_processes_stopped(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """Producer and consumer are suspended for longer than heartbeat, keepalive and gap timeout, and continue."""
    with run_in(tmp_path / "run") as run:
        t = traffic(
            run, paths, unique, size(4_000, 20_000), consuming={"options": {"gap_timeout": 2.0}},
        )  # fmt: skip
        for number in range(size(2, 8)):
            t.flows(500)
            app = (t.consumer, t.producer)[number % 2]
            app.signal(signal.SIGSTOP)
            time.sleep(3.5)  # the fault itself: heartbeats of 1 s end connections after 2 or 3
            app.signal(signal.SIGCONT)
        t.drained()
        assert t.rows(t.consumer, "disconnected"), "the consumer lost no connection"
        assert t.rows(t.producer, "disconnected"), "the producer lost no connection"
        assert not t.rows(t.consumer, "declared")


def test_one_site_down_for_the_whole_run(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """confirm="any": published without the other site, which gets everything when it returns."""
    messages = size(3_000, 30_000)
    with run_in(tmp_path / "run") as run:
        producer = run.producer(
            "till", paths.sites(paths.producer), unique, [unique], messages,
            rate=2_000, chunk=50, linger=True, options={"confirm": "any"},
        )  # fmt: skip
        consumer = run.consumer(unique, paths.sites(paths.consumer), [unique])
        t = Traffic(run, producer, consumer, messages)
        consumer.start()
        t.reads()
        for proxy in paths.of("dc1"):
            proxy.cut()
        producer.start()
        wait_for(lambda: t.delivered() >= messages, 30, "everything comes through the site that is left")
        assert t.unconfirmed("dc1") == messages, "the other site had something"
        # The producer receives a confirm, and journals it, after the consumer has had the message.
        wait_for(
            lambda: sum(row.last - row.first + 1 for row in t.rows(producer, "published")) == messages,
            30, "one site is enough",
        )  # fmt: skip
        assert t.unconfirmed("dc1") == messages, "not published without the other site"
        for proxy in paths.of("dc1"):
            proxy.heal()
        wait_for(lambda: t.unconfirmed("dc1") == 0, 30, "the site that returns gets everything")
        producer.stop()
        t.drained()


@pytest.mark.parametrize("on_gap", ["raise", "skip"])
def test_only_the_delayed_site_has_a_message(
    on_gap: str, tmp_path: Path, rabbit: RabbitNode, paths: Paths, unique: str
) -> None:
    """A gap that the other site fills too late for gap_timeout: filled in place if it was not passed yet, otherwise
    late.

    The consumer requests nothing from its producer and does not wait for it, so that only the sites can fill the gap.
    """
    sites = {
        way: [
            Site(name, url, **{**options, "heartbeat": 10.0}) for name, url, options in paths.sites(proxies)
        ]
        for way, proxies in (("out", paths.producer), ("in", paths.consumer))
    }
    late: list[bytes] = []

    def arrive() -> Consumer:
        return Consumer(
            unique, sites["in"], topics=[unique], inbox=tmp_path / "inbox.db", gap_timeout=0.5,
            on_gap=on_gap, on_late=lambda message: late.append(message.body),  # type: ignore[arg-type]
            repair_delay=3_600.0, repair_timeout=0.001,
        )  # fmt: skip

    with Producer("till", sites["out"], outbox=tmp_path / "outbox.db", groups={unique: [unique]}) as producer:
        with arrive() as consumer:
            wait_until_reading(consumer)
            producer.publish(unique, b"1").wait(timeout=120)
            take(consumer, b"1")
        producer.publish(unique, b"2").wait(timeout=120)
        with contextlib.closing(pika.BlockingConnection(pika.URLParameters(rabbit.url))) as connection:
            connection.channel().queue_purge(group_queue(unique, 0, unique))
        producer.publish(unique, b"3").wait(timeout=120)
        paths.consumer["dc2"].stall("from_broker")
        with arrive() as consumer:
            if on_gap == "raise":
                with pytest.raises(GapError) as raised:
                    consumer.get(timeout=120)
                assert (raised.value.gap.first, raised.value.gap.last) == (2, 2)
                paths.consumer["dc2"].heal()
                take(consumer, b"2")
                take(consumer, b"3")
                assert not consumer.accept(raised.value.gap), "it was filled"
                assert late == []
            else:
                take(consumer, b"3")
                paths.consumer["dc2"].heal()
                wait_for(lambda: consumer.get(timeout=0.1) or late, 20, "the late one is reported")
                assert late == [b"2"]
            producer.publish(unique, b"4").wait(timeout=120)
            take(consumer, b"4")


def take(consumer: Consumer, body: bytes) -> None:
    """The next message must be this one. A gap that is raised again meanwhile is waited for."""
    while True:
        with contextlib.suppress(GapError):
            message = consumer.get(timeout=120)
            assert message is not None
            assert message.body == body
            message.ack(durable=True)
            return


def test_a_consumer_dies_without_a_goodbye(tmp_path: Path, paths: Paths, unique: str, size: Size) -> None:
    """Its machine is gone without the brokers' knowledge: they keep its lock and its messages until heartbeats fail."""
    with run_in(tmp_path / "run") as run:
        t = traffic(run, paths, unique, size(4_000, 20_000), consuming={"delay": 0.0005})
        t.flows(300)
        for proxy in paths.consumer.values():
            proxy.stall()
        t.consumer.kill()
        direct = [(name, url, IMPATIENT) for name, url in paths.urls.items()]
        t.consumer.start(sites=direct)
        t.flows(500)
        first = {row.boot for row in t.rows(t.consumer, "opened")}
        assert len(first) == 2

        def reads_both() -> bool:
            latest = t.rows(t.consumer, "opened")[-1].boot
            found = {row.site for row in t.rows(t.consumer, "connected") if row.boot == latest}
            return found == set(paths.urls)

        wait_for(reads_both, 20, "the lock of the one that died is given up")
        t.drained()


def test_everything_at_once(
    tmp_path: Path,
    rabbit: RabbitNode,
    make_mosquitto: Callable[..., Mosquitto],
    unique: str,
    size: Size,
    seeded: random.Random,
) -> None:
    """Faults on all paths, killed and stopped processes, and a site that loses its state, in any order."""
    mosquitto, steps = make_mosquitto(name="dc2"), size(15, 300)
    with paths_to(rabbit, mosquitto) as paths, run_in(tmp_path / "run") as run:
        t = traffic(
            run, paths, unique, 400 * steps, rate=800, producing={"options": {"max_batch_messages": 20}},
            consuming={"delay": 0.0002, "options": {"max_inbox_bytes": 1 << 16}}, prefetch=8,
        )  # fmt: skip
        t.flows(200)

        def restart(app: App) -> None:
            app.kill()
            app.start()

        def stop_for_a_while(app: App) -> None:
            app.signal(signal.SIGSTOP)
            time.sleep(seeded.uniform(0.1, 3.0))
            app.signal(signal.SIGCONT)

        def forget() -> None:
            mosquitto.kill()
            mosquitto.start()

        for _ in range(steps):
            path = seeded.choice(paths.of())
            faults: dict[str, Callable[..., object]] = {
                "cut": path.cut, "reset": path.reset, "stall": path.stall, "half open": path.half_open,
                "confirms lost": path.drop_from_broker,
                "delay": lambda p=path: p.delay(seeded.uniform(0.0, 1.0)),
                "slow": lambda p=path: p.limit(seeded.choice((500, 5_000, 50_000))),
                "mid-frame": lambda p=path: p.reset_mid_frame(seeded.randrange(1, 5_000)),
                "producer": lambda: restart(t.producer), "consumer": lambda: restart(t.consumer),
                "stop": lambda: stop_for_a_while(t.consumer), "forget": forget,
            }  # fmt: skip
            name = seeded.choice(list(faults))
            print(f"{time.time():.3f} {name} at path {paths.of().index(path)}, {t.delivered()} delivered")
            faults[name]()
            if t.producer.running:
                time.sleep(seeded.uniform(0.0, 0.6))  # the instant is random
            for healed in paths.of():
                if seeded.random() < 0.3:
                    healed.reset()
                    healed.heal()
        for path in paths.of():
            path.reset()
            path.heal()
        if not t.producer.running:
            t.producer.start()
        t.drained()
