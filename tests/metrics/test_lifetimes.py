"""What a collector shows while clients come and go."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import tomllib
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from reliamsg import ClosedError, ConfigError, OutboxLocked, Producer, aio
from reliamsg.metrics.catalogue import CONSUMER_SITE_STATES, METRICS, PRODUCER_SITE_STATES
from reliamsg.metrics.readings import OTHER, OUTCOMES, QUARANTINE_REASONS, RESULTS
from reliamsg.prometheus import Collector
from reliamsg.runtime.observation import JournalListeners, observed
from reliamsg.testing import MemoryNetwork
from tests.children import run_child
from tests.docs.blocks import ROOT
from tests.metrics.tools import Scraper, consumer, producer
from tests.patience import patient, wait_for

WAIT = patient(20)


@pytest.fixture
def network() -> Iterator[MemoryNetwork]:
    with MemoryNetwork("dc1", "dc2") as network:
        yield network


def test_counters_of_a_closed_client_stay(network: MemoryNetwork, tmp_path: Path) -> None:
    scrape = Scraper()
    for opening in (1, 2, 3):
        sender = producer(network, tmp_path / "outbox.db")
        scrape.collector.observe(sender)
        sender.publish_many("orders", [b"x"] * 5).wait(WAIT)
        sender.close()
        found = scrape()
        assert found("enqueued_total") == found("policy_met_total") == 5 * opening
        assert found("published_total", site="dc1", result="confirmed") == 5 * opening
        assert ("reliamsg_outbox_messages", ()) not in found.samples  # nobody knows


def test_a_forgotten_client_is_released_and_its_counters_stay(tmp_path: Path) -> None:
    scrape = Scraper()

    def use() -> weakref.ref[Producer]:
        with MemoryNetwork("dc1") as network, producer(network, tmp_path / "outbox.db") as sender:
            scrape.collector.observe(sender)
            sender.publish("orders", b"x").wait(WAIT)
            return weakref.ref(sender)

    used = [use() for _ in range(3)]

    def kept() -> int:
        gc.collect()
        scrape()
        return sum(each() is not None for each in used) + len(scrape.collector._clients._clients)

    wait_for(lambda: kept() == 0, "nothing is kept but sums")  # threads that end may still refer to a client
    assert scrape()("enqueued_total") == 3


def test_clients_are_added_up(network: MemoryNetwork, tmp_path: Path) -> None:
    with (
        producer(network, tmp_path / "1.db") as one,
        producer(network, tmp_path / "2.db", producer_id="q") as two,
    ):
        scrape = Scraper(one, two)
        one.publish("orders", b"x")
        two.publish("orders", b"y")
        found = scrape()
        assert found("enqueued_total") == found("producers", state="running") == 2
        assert found("outbox_limit_bytes") == 2 * 1024**3


def test_of_two_producers_with_one_identity_one_has_failed(network: MemoryNetwork, tmp_path: Path) -> None:
    with producer(network, tmp_path / "1.db") as one, producer(network, tmp_path / "2.db") as two:
        scrape = Scraper(one, two)
        found = scrape.until(lambda s: s("producers", state="failed") == 1, "the older one is fenced")
        assert found("producers", state="running") == 1


def test_names_tell_clients_apart(network: MemoryNetwork, tmp_path: Path) -> None:
    with (
        producer(network, tmp_path / "1.db") as one,
        producer(network, tmp_path / "2.db", producer_id="q") as two,
    ):
        scrape = Scraper(one)
        scrape.collector.observe(two, name="second")
        two.publish("orders", b"y")
        assert scrape()("enqueued_total") == 0
        assert scrape()("enqueued_total", client="second") == 1
        with pytest.raises(ConfigError, match="observed already"):
            scrape.collector.observe(one, name="second")
        with pytest.raises(ConfigError, match="name"):
            scrape.collector.observe(one, name="a\nb")


def test_observing_twice_counts_once(network: MemoryNetwork, tmp_path: Path) -> None:
    with producer(network, tmp_path / "1.db") as sender:
        scrape = Scraper(sender, sender)
        scrape.collector.observe(sender)
        sender.publish("orders", b"x")
        assert scrape()("enqueued_total") == 1


def test_two_collectors_of_one_client_count_alike(network: MemoryNetwork, tmp_path: Path) -> None:
    with producer(network, tmp_path / "1.db") as sender:
        first = Scraper(sender)
        sender.publish("orders", b"x")
        second = Scraper(sender)
        sender.publish("orders", b"y")
        assert (first()("enqueued_total"), second()("enqueued_total")) == (2, 1)


def test_a_registry_takes_one_collector(network: MemoryNetwork) -> None:
    scrape = Scraper()
    with pytest.raises(ValueError, match="Duplicated"):
        Collector(registry=scrape.registry)


def test_what_is_no_open_client_is_refused(network: MemoryNetwork, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a producer or consumer of reliamsg: int"):
        Scraper(3)
    sender = producer(network, tmp_path / "1.db")
    sender.close()
    with pytest.raises(ClosedError):
        Scraper(sender)


def test_a_standby_without_inbox_is_counted_once_it_has_it(network: MemoryNetwork, tmp_path: Path) -> None:
    options = {"standby": True, "takeover_timeout": 1.0}
    with producer(network, tmp_path / "outbox.db") as sender:
        first = consumer(network, tmp_path / "inbox.db", **options)
        second = consumer(network, tmp_path / "inbox.db", **options)
        scrape = Scraper(second)
        assert scrape()("consumers", state="standby") == 1
        first.close()
        with second:
            sender.publish("orders", b"x")
            message = second.get(WAIT)
            assert message is not None
            message.ack(durable=True)
            found = scrape()
            assert found("consumers", state="active") == found("acknowledged_total") == 1


def test_clients_of_an_event_loop(network: MemoryNetwork, tmp_path: Path) -> None:
    scrape = Scraper()

    async def main() -> None:
        sender = aio.Producer("p", network.sites, outbox=tmp_path / "o.db", groups={"orders": ["g"]})
        with pytest.raises(ClosedError):
            scrape.collector.observe(sender)
        reader = aio.Consumer("g", network.sites, topics=["orders"], inbox=tmp_path / "i.db")
        async with sender, reader:
            scrape.collector.observe(sender, reader)
            await sender.publish("orders", b"x")
            message = await reader.get(WAIT)
            assert message is not None
            await reader.acknowledge(message)
            found = await asyncio.to_thread(scrape)  # Prometheus asks on another thread
            assert (
                found("enqueued_total")
                == found("acknowledged_total")
                == found("producers", state="running")
                == 1
            )

    asyncio.run(main())
    assert scrape()("enqueued_total") == 1


def test_scrapes_while_clients_are_opened_and_closed(network: MemoryNetwork, tmp_path: Path) -> None:
    """Counters never go backwards, whatever happens between."""
    scrape = Scraper()
    threads, rounds = 3, 6

    def opened(number: int) -> Producer | None:
        try:
            return producer(network, tmp_path / f"{number}.db", producer_id=f"p{number}")
        except OutboxLocked:  # a scrape looks at the one before, which is closed as garbage after that
            return None

    def use(number: int) -> None:
        for each in range(rounds):
            sender = wait_for(partial(opened, number), "the outbox is free")
            scrape.collector.observe(sender)
            sender.publish_many("orders", [b"x"] * 3)
            if each % 2:
                sender.close(0.0)
            del sender  # else it is closed as garbage

    running = [threading.Thread(target=use, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    before = 0.0
    while any(thread.is_alive() for thread in running):
        now = scrape().samples.get(("reliamsg_enqueued_total", ()), 0.0)  # nothing before the first client
        assert now >= before
        before = now
    for thread in running:
        thread.join()
    gc.collect()
    assert scrape()("enqueued_total") == 3 * threads * rounds


def test_labels_have_values_of_the_configuration_only(network: MemoryNetwork, tmp_path: Path) -> None:
    """However many producers, topics, streams, keys and errors there are."""
    groups = {topic: ["billing"] for topic in ("orders", *(f"topic-{n}" for n in range(20)))}
    with (
        producer(network, tmp_path / "1.db", groups=groups) as sender,
        producer(network, tmp_path / "2.db", producer_id="elsewhere") as other,
        consumer(network, tmp_path / "inbox.db") as reader,
    ):
        scrape = Scraper(sender, reader)
        network["dc1"].inject("orders", b"strange")
        for number, topic in enumerate(groups):
            sender.publish(topic, b"x", key=f"key-{number}")
        other.publish("orders", b"y").wait(WAIT)
        for _ in range(2):
            message = reader.get(WAIT)
            assert message is not None
            message.reject(f"reason {message.producer}")
        network["dc1"].cut()
        found = scrape.until(
            lambda s: s("dead_lettered_total") == 2 and s("rejected_total", site="dc1") == 1,
            "all is journalled",
        )
    allowed = {
        "site": {"dc1", "dc2"},
        "result": set(RESULTS),
        "outcome": set(OUTCOMES),
        "reason": {*QUARANTINE_REASONS, OTHER, "lost", "removed"},
        "role": {"producer", "consumer"},
        "state": {
            *PRODUCER_SITE_STATES, *CONSUMER_SITE_STATES, "running", "failed", "starting", "active", "standby",
            "in_memory", "gap", "held", "failing", "halted",
        },
    }  # fmt: skip
    labels = found.labels()
    assert {name for name, _ in labels} == {*allowed, "le", "version"}
    assert {pair for pair in labels if pair[0] in allowed} <= {
        (n, v) for n, values in allowed.items() for v in values
    }


def test_every_metric_of_the_catalogue_has_a_value(network: MemoryNetwork, tmp_path: Path) -> None:
    with producer(network, tmp_path / "o.db") as sender, consumer(network, tmp_path / "i.db") as reader:
        found = Scraper(sender, reader)()
    assert {metric.prometheus_name for metric in METRICS.values()} <= set(found.types)
    for metric in METRICS.values():
        suffix = {"counter": "_total", "gauge": "", "histogram": "_count"}[metric.kind]
        assert any(name == metric.prometheus_name + suffix for name, _ in found.samples), metric.name
        assert found.types[metric.prometheus_name] == metric.kind


def test_a_child_process_counts_for_itself(network: MemoryNetwork, tmp_path: Path) -> None:
    with producer(network, tmp_path / "o.db") as sender:
        scrape = Scraper(sender)
        sender.publish("orders", b"x").wait(WAIT)
        assert scrape()("enqueued_total") == 1
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = (
                    0 if not any(name.startswith("reliamsg_enqueued") for name, _ in scrape().samples) else 2
                )
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert scrape()("enqueued_total") == 1


def test_a_listener_that_raises_stops_nothing(
    network: MemoryNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(entries: object) -> None:
        raise ZeroDivisionError

    with producer(network, tmp_path / "o.db") as sender:
        found = observed(sender)
        assert isinstance(found.listeners, JournalListeners)
        found.listen(broken)
        scrape = Scraper(sender)
        for _ in range(2):
            sender.publish("orders", b"x").wait(WAIT)
        wait_for(lambda: scrape()("policy_met_total") == 2, "the producer goes on, and so do other listeners")
    assert [record.message for record in caplog.records if record.exc_info] == [
        "a listener to the journal raised, and is not called any more"
    ]


def test_the_page_describes_every_metric() -> None:
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `reliamsg_")]
    for metric in METRICS.values():
        name = metric.prometheus_name + ("_total" if metric.kind == "counter" else "")
        row = next((line for line in rows if f"`{name}`" in line.split("|")[1]), "")
        assert metric.kind in row, name
        assert all(f"`{label}`" in row for label in metric.labels), name


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("otel", "opentelemetry", "otel")],
)
def test_a_package_that_is_missing_is_named(module: str, package: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"try:\n    import reliamsg.{module}\nexcept ImportError as error:\n    print(error)"
    )
    done = run_child([sys.executable, "-c", code], text=True, check=True)
    assert f"pip install 'reliamsg[{extra}]'" in done.stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]


def test_metrics_load_no_client() -> None:
    """A program with a producer alone does not load consumers, and neither loads asyncio for its sake."""
    code = "import sys, reliamsg.prometheus, reliamsg.otel; print(*sys.modules)"
    loaded = set(run_child([sys.executable, "-c", code], text=True, check=True).stdout.split())
    assert not loaded & {"reliamsg.aio", "reliamsg.consumer", "reliamsg.producer", "pika", "paho"}
