"""The baseline at AMQP sites: plain pika, used as its documentation recommends.

Persistent messages, durable queues, publisher confirms if requested, manual acknowledgements, and reconnects until it
is told to finish. It runs in threads; faults of brokers affect it like any other client.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time

import pika
import pika.exceptions

from reliamsg.lab.chaos.result import Baseline
from reliamsg.lab.chaos.waiting import wait_for

__all__ = ["PikaConsumer", "PikaPair", "PikaPublisher"]

_RETRY = (pika.exceptions.AMQPError, OSError)


def _connect(url: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = 2
    return pika.BlockingConnection(parameters)


class PikaPublisher(threading.Thread):
    """Publishes 1, 2, … to a durable queue until it is told to finish; with `confirms`, waits for each confirm."""

    def __init__(self, url: str, queue: str, *, confirms: bool, rate: float) -> None:
        super().__init__(daemon=True)
        self.url: str = url
        self.queue: str = queue
        self.confirms: bool = confirms
        self.rate: float = rate
        self.accepted: list[int] = []
        self.finish: threading.Event = threading.Event()

    def run(self) -> None:
        """Publish."""
        number, started = 1, time.monotonic()
        while not self.finish.is_set():
            try:
                connection = _connect(self.url)
            except _RETRY:
                self.finish.wait(0.2)
                continue
            with contextlib.suppress(*_RETRY):
                channel = connection.channel()
                channel.queue_declare(self.queue, durable=True)
                if self.confirms:
                    channel.confirm_delivery()
                while not self.finish.is_set():
                    channel.basic_publish(
                        "", self.queue, str(number).encode(), pika.BasicProperties(delivery_mode=2)
                    )
                    self.accepted.append(number)
                    number += 1
                    ahead = number / self.rate - (time.monotonic() - started)
                    if ahead > 0.01:
                        connection.sleep(ahead)
                connection.close()


class PikaConsumer(threading.Thread):
    """Reads a durable queue with manual acknowledgements until it is told to finish."""

    def __init__(self, url: str, queue: str, *, delay: float) -> None:
        super().__init__(daemon=True)
        self.url: str = url
        self.queue: str = queue
        self.delay: float = delay
        self.received: list[int] = []
        self.latest: float = time.monotonic()
        self.finish: threading.Event = threading.Event()

    def run(self) -> None:
        """Consume."""
        while not self.finish.is_set():
            with contextlib.suppress(Exception):  # hostile headers make pika's decoder raise anything
                connection = _connect(self.url)
                channel = connection.channel()
                channel.queue_declare(self.queue, durable=True)
                channel.basic_qos(prefetch_count=100)
                for method, _, body in channel.consume(self.queue, inactivity_timeout=0.2):
                    if self.finish.is_set():
                        break
                    if method is None or body is None or method.delivery_tag is None:
                        continue  # nothing arrived in time
                    self.received.append(int(body))
                    self.latest = time.monotonic()
                    time.sleep(self.delay)
                    channel.basic_ack(method.delivery_tag)
                connection.close()
            self.finish.wait(0.2)

    def drain(self, quiet: float, deadline: float) -> None:
        """Consume without delay until nothing has arrived for `quiet` seconds, then stop."""
        self.delay = 0.0
        self.latest = time.monotonic()
        end = time.monotonic() + deadline
        while time.monotonic() < end and time.monotonic() - self.latest < quiet:
            self.finish.wait(0.1)
        self.finish.set()
        self.join(60)


class PikaPair:
    """A publisher and a consumer of one queue, by default with publisher confirms."""

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        rate: float,
        delay: float = 0.0,
        confirms: bool = True,
        reading: str = "",
    ) -> None:
        """`rate`: messages per second. `delay`: seconds that the consumer spends on each message. `reading`: the
        consumer's URL, if it is a different one."""
        self.publisher: PikaPublisher = PikaPublisher(url, queue, confirms=confirms, rate=rate)
        self.consumer: PikaConsumer = PikaConsumer(reading or url, queue, delay=delay)
        self._name = f"plain pika{', publisher confirms' if confirms else ''}"

    def start(self, *, consume: bool = True) -> PikaPair:
        """Start publishing, and with `consume` consuming too; returns when something is published."""
        self.publisher.start()
        if consume:
            self.consumer.start()
        wait_for(lambda: self.publisher.accepted, "plain pika publishes")
        return self

    def finish(self, quiet: float = 3.0) -> Baseline:
        """Stop publishing, and wait until nothing more arrives: the fate of the accepted messages."""
        self.publisher.finish.set()
        self.publisher.join(60)
        if not self.consumer.is_alive():
            self.consumer.start()
        self.consumer.drain(quiet, deadline=300.0)
        accepted = set(self.publisher.accepted)
        received = [number for number in self.consumer.received if number]  # rogue clients publish zeros
        return Baseline(
            self._name,
            len(accepted),
            len(accepted - set(received)),
            len(received) - len(set(received)),
            sum(later < earlier for earlier, later in itertools.pairwise(received)),
        )

    def end(self) -> None:
        """Tell both to stop, without waiting."""
        self.publisher.finish.set()
        self.consumer.finish.set()
