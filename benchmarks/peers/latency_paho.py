"""paho-mqtt: QoS 1 from publisher to broker to subscriber, each in a separate process with its own client.

``publish``: one client shared by `threads`, `publish()` without waiting for the acknowledgement. ``subscribe``: a
persistent session; prints a line when it is subscribed, and percentiles once as many messages have arrived as standard
input requests.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from benchmarks.measured import say
from benchmarks.paced import Arrivals, publish_paced

TOPIC = "latency"
INFLIGHT = 1_000


def connected(port: int, name: str) -> mqtt.Client:
    ready = threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
    client.max_inflight_messages_set(INFLIGHT)
    client.on_connect = lambda *_: ready.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    if not ready.wait(30):
        raise SystemExit("no connection")
    return client


def publish(port: int, threads: int, rate: float, warm_up: float, seconds: float, size: int) -> None:
    client = connected(port, "latency-publisher")
    confirmed = itertools.count(1)
    expected, done = round((warm_up + seconds) * rate), threading.Event()
    client.on_publish = lambda *_: done.set() if next(confirmed) == expected else None
    total, _ = publish_paced(
        lambda body: client.publish(TOPIC, body, 1), threads, rate, warm_up, seconds, size
    )
    if not done.wait(60):  # unacknowledged messages would be lost at the disconnect
        raise SystemExit("not all messages were acknowledged")
    say(rate, total)
    client.disconnect()
    client.loop_stop()


def subscribe(port: int, which: list[float]) -> None:
    arrivals, subscribed = Arrivals(), threading.Event()
    client = connected(port, "latency-subscriber")

    def on_message(client: Any, data: Any, message: mqtt.MQTTMessage) -> None:
        arrivals.came(bytes(message.payload))

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.subscribe(TOPIC, 1)
    if not subscribed.wait(30):
        raise SystemExit("not subscribed")
    print("ready", flush=True)
    count = int(sys.stdin.readline())
    arrivals.wait(count, 60)
    client.unsubscribe(TOPIC)
    client.disconnect()
    client.loop_stop()
    say(arrivals.percentiles([99])["p99"], count, percentiles=arrivals.percentiles(which))


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        port, threads, rate, warm_up, seconds, size = sys.argv[2:]
        publish(int(port), int(threads), float(rate), float(warm_up), float(seconds), int(size))
    else:
        subscribe(int(sys.argv[2]), json.loads(sys.argv[3]))
