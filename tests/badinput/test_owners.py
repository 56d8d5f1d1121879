"""The owners of an outbox, an inbox and a group: one at a time, and never a child process after fork()."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, Site
from reliamsg.errors import GroupBusy, InboxLocked, OutboxLocked, StoreError
from reliamsg.lab import Mosquitto, RabbitNode, TcpProxy
from tests.badinput.tools import Clients, bodies, journalled, site, states, take, wait_connected
from tests.children import run_child
from tests.patience import wait_for

OTHER_PROCESS = """
import json, sys
from reliamsg import Consumer, Producer, Site
given = json.loads(sys.argv[1])
sites = [Site(name, url) for name, url in given["sites"]]
try:
    if given["kind"] == "producer":
        Producer("p", sites, outbox=given["path"])
    else:
        Consumer(given["group"], sites, topics=["t"], inbox=given["path"])
except Exception as error:
    print(type(error).__name__, error)
"""


def elsewhere(kind: str, path: Path, sites: list[Site], group: str) -> str:
    """The error of another process that opens `path`."""
    given = {"kind": kind, "path": str(path), "sites": [(s.name, s.url) for s in sites], "group": group}
    found = run_child([sys.executable, "-c", OTHER_PROCESS, json.dumps(given)], text=True, check=True)
    return found.stdout


def test_a_second_process_on_the_same_files(clients: Clients, sites: list[Site], tmp_path: Path) -> None:
    consumer = clients.consumer(sites)
    producer = clients.producer(sites)
    wait_connected(consumer)
    epoch = producer.status().epoch
    link = tmp_path / "link.db"
    link.symlink_to(clients.outbox)
    for path in (clients.outbox, link):
        assert elsewhere("producer", path, sites, "").startswith("OutboxLocked")
        with pytest.raises(OutboxLocked, match="open in another process"):
            clients.producer(sites, outbox=path)
    assert elsewhere("consumer", clients.inbox, sites, clients.group).startswith("InboxLocked")
    with pytest.raises(InboxLocked, match="open in another process"):
        clients.consumer(sites)
    # The owners are not affected.
    producer.publish(clients.topic, b"still mine").wait(timeout=120)
    assert producer.status().epoch == epoch
    assert bodies(take(consumer, 1)) == [b"still mine"]
    producer.close()
    consumer.close()
    assert elsewhere("producer", clients.outbox, [site("x", "mqtt://127.0.0.1:1")], "") == ""


def busy_sites(consumer: Consumer) -> list[str]:
    return [name for name, state in states(consumer).items() if state == "busy"]


def test_a_second_inbox_for_a_group(
    clients: Clients, sites: list[Site], rabbit: RabbitNode, tmp_path: Path
) -> None:
    """At AMQP sites: it fails after `takeover_timeout`, and the first continues to read."""
    here = sites[:1]
    first = clients.consumer(here)
    wait_connected(first)
    producer = clients.producer(here)
    second = clients.consumer(here, inbox=tmp_path / "second.db", takeover_timeout=1.0)
    wait_for(lambda: busy_sites(second) == ["dc1"], "it says so meanwhile")
    assert second.get(0) is None
    with pytest.raises(GroupBusy, match=f"{clients.group}.*dc1"):
        second.get(60)
    with pytest.raises(GroupBusy):
        second.get(0)
    assert "another" in second.status().error
    second.close()
    producer.publish_many(clients.topic, [b"1", b"2"]).wait(timeout=120)
    assert bodies(take(first, 2)) == [b"1", b"2"]
    assert states(first) == {"dc1": "connected"}


def test_a_site_returns_while_a_second_inbox_waits(
    clients: Clients, rabbit: RabbitNode, tmp_path: Path, make_proxy: Callable[[int], TcpProxy]
) -> None:
    """Whichever reaches the returning site first: the current reader continues to read, alone, and gets that
    site too."""
    hosts = [f"{clients.topic}-{number}" for number in (1, 2)]
    for host in hosts:
        rabbit.ctl("add_vhost", host)
        rabbit.ctl("set_permissions", "-p", host, "guest", ".*", ".*", ".*")
    proxy = make_proxy(rabbit.port)
    urls = [rabbit.url, proxy.url(rabbit.url)]
    sites = [
        site(f"dc{number}", url.replace("%2F", host))
        for number, url, host in zip((1, 2), urls, hosts, strict=True)
    ]
    proxy.cut()
    first = clients.consumer(sites, takeover_timeout=60.0)
    wait_for(lambda: states(first) == {"dc1": "connected", "dc2": "unreachable"}, "the first reads dc1")
    seconds = [
        clients.consumer(sites, inbox=tmp_path / f"second{number}.db", takeover_timeout=60.0)
        for number in range(3)
    ]
    for second in seconds:
        wait_for(lambda c=second: busy_sites(c) == ["dc1"], "the others wait")
    producer = clients.producer(sites)
    number = 0
    for _ in range(4):
        proxy.heal()
        wait_connected(producer)
        sent = [b"%d" % n for n in range(number, number + 50)]
        number += 50
        producer.publish_many(clients.topic, sent).wait(timeout=120)
        assert bodies(take(first, 50)) == sent
        wait_connected(first)
        for second in seconds:
            assert second.get(0.05) is None
            assert not second.status().streams, "nothing was taken in"
        proxy.cut()
        wait_for(lambda: states(first)["dc2"] == "unreachable", "cut")


def test_a_standby_takes_over(clients: Clients, sites: list[Site], tmp_path: Path) -> None:
    """If the first exits within `takeover_timeout`, the second continues where it stopped. Messages that the first had
    stored come from the producer, as long as it holds them; they are also in the first's own inbox, unknown to it."""
    here = sites[:1]
    first = clients.consumer(here)
    wait_connected(first)
    producer = clients.producer(here)
    producer.publish_many(clients.topic, [b"1", b"2"]).wait(timeout=120)
    for message in take(first, 2, ack=False):
        message.ack(durable=True)
    second = clients.consumer(here, inbox=tmp_path / "second.db", takeover_timeout=60.0)
    wait_for(lambda: busy_sites(second) == ["dc1"], "it waits")
    producer.publish_many(clients.topic, [b"3", b"4"]).wait(timeout=120)
    wait_for(lambda: first.status().inbox_bytes and not first.status().sites["dc1"].pending, "taken in")
    assert second.get(0) is None
    first.close()
    wait_connected(second)
    producer.publish(clients.topic, b"5").wait(timeout=120)
    assert bodies(take(second, 3)) == [b"3", b"4", b"5"]
    second.close()
    assert bodies(take(clients.consumer(here), 2)) == [b"3", b"4"]


FORK = """
import gc, json, os, sys, time
from reliamsg import Consumer, Producer, Site
from reliamsg.errors import ForkedError, InboxLocked, OutboxLocked
given = json.loads(sys.argv[1])
topic = given["topic"]
sites = [Site(name, url, backoff_min=0.05) for name, url in given["sites"]]
consumer = Consumer(topic, sites, topics=[topic], inbox="inbox.db")
producer = Producer("p", sites, outbox="outbox.db", groups={topic: [topic]})
def connected():
    return all(s.state == "connected" for c in (consumer, producer) for s in c.status().sites.values())
deadline = time.monotonic() + 60
while not connected() and time.monotonic() < deadline: time.sleep(0.01)
receipt = producer.publish(topic, b"1")
receipt.wait(timeout=120)
message = consumer.get(60)
assert message.body == b"1"
def process():
    with message.process(): pass
child = os.fork()
if child == 0:
    calls = [
        lambda: producer.publish(topic, b"x"), lambda: producer.publish_nowait(topic, b"x", key="k"),
        lambda: producer.publish_many(topic, [b"x"]), lambda: producer.flush(5), producer.pending, producer.status,
        producer.close, lambda: receipt.wait(60), lambda: receipt.done, lambda: receipt.sites,
        lambda: receipt.add_done_callback(print),
        lambda: consumer.get(5), lambda: next(iter(consumer)), lambda: consumer.run(print),
        lambda: next(consumer.batches(1, 1.0)), consumer.status, consumer.close, consumer.dead_letters,
        message.ack, lambda: message.ack(durable=True), message.reject, process,
    ]
    for number, call in enumerate(calls):
        try: call()
        except ForkedError as error: assert "fork" in str(error) or "parent" in str(error), error
        else: print("call", number, "was not refused", flush=True); os._exit(1)
    repr(producer), repr(consumer), repr(receipt), repr(message)
    # A producer and a consumer of one's own are what a child is told to open.
    mine = Producer("child", sites, outbox="child.db")
    mine.publish(topic, b"from the child").wait(timeout=120)
    mine.close()
    for kind, locked in ((lambda: Producer("p", sites, outbox="outbox.db"), OutboxLocked),
                         (lambda: Consumer(topic, sites, topics=[topic], inbox="inbox.db"), InboxLocked)):
        try: kind()
        except locked: pass
        else: print("the parent's file was given away"); os._exit(1)
    del producer, consumer, receipt, message, calls, connected, process
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
message.ack(durable=True)
# The parent has everything still: the locks, the connections, and its place.
producer.publish(topic, b"2").wait(timeout=120)
got = sorted(consumer.get(60).body for _ in range(2))
assert got == [b"2", b"from the child"], got
print("connected" if connected() else "not connected")
assert producer.close().nothing
assert consumer.close().clean
"""


def test_use_after_fork(clients: Clients, sites: list[Site], tmp_path: Path) -> None:
    given: dict[str, Any] = {"topic": clients.topic, "sites": [(s.name, s.url) for s in sites]}
    found = run_child([sys.executable, "-c", FORK, json.dumps(given)], cwd=tmp_path, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout == "connected\n", found.stderr
    assert "Traceback" not in found.stderr
    for path in (tmp_path / "outbox.db", tmp_path / "inbox.db"):
        ends = [row.reason for row in journalled(path, "disconnected") if row.reason != "closed"]
        assert ends == [], "the child's end did not cut the parent off"


def test_mqtt_sessions_are_the_groups(clients: Clients, shared_mosquitto: Mosquitto, tmp_path: Path) -> None:
    """File names do not keep groups apart: an inbox belongs to one group."""
    here = [site("dc1", shared_mosquitto.url)]
    clients.consumer(here).close()
    with pytest.raises(StoreError, match="belongs to group"):
        clients.consumer(here, group="another")
