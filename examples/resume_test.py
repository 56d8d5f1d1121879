"""The run that brokers fail: a subscriber leaves, its broker loses its state, the subscriber returns.

    python resume_test.py --lab mosquitto
    python resume_test.py dc1=mqtt://host1 dc2=amqp://host2

A; the subscriber leaves; B, C; dc1's broker is killed and loses its state; the subscriber returns; D, E; dc1 returns,
empty. A plain subscriber at one Mosquitto gets A alone. With two sites it gets A B C D E, once each and in order. With
--lab the brokers are started and killed here, and the plain client runs through the same faults; with URLs you are
asked to kill and restart your own.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from reliamsg import Consumer, Producer, Site
from reliamsg.lab import Broker, Mosquitto, RabbitNode
from reliamsg.lab.paho import PahoPublisher, PahoSubscriber

TOPIC = GROUP = "resume-test"
SECONDS = 60.0


def run(
    sites: list[Site], directory: Path, kill: Callable[[], object], restore: Callable[[], object]
) -> list[str]:
    """The messages that the subscriber received, in order."""

    def subscriber() -> Consumer:
        return Consumer(GROUP, sites, topics=[TOPIC], inbox=directory / "inbox.db")

    with Producer("station", sites, outbox=directory / "outbox.db", groups={TOPIC: [GROUP]}) as producer:
        with subscriber() as consumer:
            # MQTT brokers keep messages only for subscribers that they know: connect to both before A.
            wait(lambda: all(site.state == "connected" for site in consumer.status().sites.values()))
            producer.publish(TOPIC, b"A").wait(SECONDS)
            received = take(consumer, 1)
        for body in (b"B", b"C"):
            producer.publish(TOPIC, body).wait(SECONDS)
        kill()
        with subscriber() as consumer:
            receipts = [producer.publish(TOPIC, body) for body in (b"D", b"E")]
            received += take(consumer, 4)
            restore()
            for receipt in receipts:
                receipt.wait(SECONDS)  # dc1 has confirmed D and E too
            producer.publish(TOPIC, b"end").wait(SECONDS)
            received += take(consumer, 1)
    return received[:-1] if received[-1] == "end" else received


def take(consumer: Consumer, count: int) -> list[str]:
    """The next messages, acknowledged."""
    bodies: list[str] = []
    while len(bodies) < count:
        message = consumer.get(SECONDS)
        if message is None:
            sys.exit(f"nothing arrived for {SECONDS:g} s after {bodies}")
        with message.process():
            bodies.append(message.body.decode())
    return bodies


def run_plain(broker: Broker) -> list[str]:
    """The same with plain paho: QoS 1 and a persistent session at one broker."""
    received: list[str] = []

    def subscribe() -> PahoSubscriber:
        subscriber = PahoSubscriber(broker.url, "plain", TOPIC, lambda body: received.append(body.decode()))
        subscriber.wait_subscribed(SECONDS)
        return subscriber

    def publish(*bodies: str) -> None:
        publisher = PahoPublisher(broker.url, "plain-station")
        for body in bodies:
            publisher.publish(TOPIC, body.encode(), body)
        while publisher.unconfirmed:
            publisher.confirmed(1.0)
        publisher.close()

    subscriber = subscribe()
    publish("A")
    wait(lambda: bool(received))
    subscriber.close()
    publish("B", "C")
    broker.kill()
    broker.start()
    publish("D", "E")
    subscriber = subscribe()
    publish("end")
    wait(lambda: "end" in received)
    subscriber.close()
    return received[:-1]


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"timed out after {SECONDS:g} s")
        time.sleep(0.05)


def with_lab(kind: str, directory: Path) -> tuple[list[str], list[str]]:
    """Both runs, on brokers that are started and killed here."""
    with ExitStack() as stack:
        dc1, control = (stack.enter_context(Mosquitto(directory / name, name)) for name in ("dc1", "control"))
        place2 = directory / "dc2"
        dc2: Broker = Mosquitto(place2, "dc2") if kind == "mosquitto" else RabbitNode(place2, "dc2")
        stack.callback(dc2.kill)
        dc2.start()
        # Mosquitto without persistence, as it is installed: killing it loses everything that it held.
        sites = [Site("dc1", dc1.url, backoff_max=1.0), Site("dc2", dc2.url)]
        return run(sites, directory, dc1.kill, dc1.start), run_plain(control)


def main() -> int:
    parser = argparse.ArgumentParser(description="A; leave; B C; kill dc1; return; D E.")
    parser.add_argument("sites", nargs="*", metavar="NAME=URL")
    parser.add_argument(
        "--lab", choices=["mosquitto", "mixed"], help="start brokers here; mixed: dc2 is RabbitMQ"
    )
    options = parser.parse_args()
    if bool(options.lab) == bool(options.sites):
        parser.error("give either sites or --lab")
    with tempfile.TemporaryDirectory() as place:
        if options.lab:
            received, plain = with_lab(options.lab, Path(place))
            print(f"plain subscriber at one Mosquitto: {' '.join(plain)}")
        else:
            sites = [Site(*site.split("=", 1)) for site in options.sites]
            name = sites[0].name
            received = run(
                sites,
                Path(place),
                lambda: input(f"kill the broker of {name}, delete its data, press Enter: "),
                lambda: input(f"start the broker of {name} again, press Enter: "),
            )
    print(f"subscriber with two sites: {' '.join(received)}")
    return 0 if received == ["A", "B", "C", "D", "E"] else 1


if __name__ == "__main__":
    sys.exit(main())
