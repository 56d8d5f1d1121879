"""The publisher and the handler of a campaign's run: ``python -m reliamsg.lab.chaos.black_box_app CONFIG``.

They use only the public interface. They log in a format of their own what they requested and what they received, one
JSON object per line, with an fsync before they continue:

======== ============== ==========================================================================================
log      op             fields
======== ============== ==========================================================================================
publish  ``call``       ``topic n sum``: about to publish message number `n`
publish  ``returned``   ``topic n id``: publish() returned, or its receipt is durable; `id` is the message's identity
publish  ``refused``    ``topic n``: an error stated that nothing was stored
publish  ``removed``    ``topic n``: remove() was called for it
handle   ``got``        ``producer topic n sum id redelivered replayed``: the handler was entered
handle   ``gap``        ``producer topic epoch first last``: a gap was declared to the application, which skipped it
handle   ``before``     ``producer topic epoch first last``: on_error was told that these messages, before the place at
                        which the group joined the stream, had been published for it
handle   ``dead``       ``producer topic epoch first last``: this message is among the dead letters
handle   ``held``       ``gaps``: the gaps that hold streams now, by status(), each like a ``gap``; logged on changes
======== ============== ==========================================================================================

Every line has ``life``, a number that identifies the process. Message numbers increase within a producer and topic, and
are part of the body.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reliamsg.config import JournalExport, Site
from reliamsg.consumer.api import Consumer
from reliamsg.errors import (
    ConfirmTimeout,
    DeadLetterHalt,
    GapError,
    GapHeld,
    GroupBusy,
    InboxWriteError,
    JournalFull,
    OutboxFull,
    OutboxWriteError,
    QuarantineFull,
)
from reliamsg.keys import KeyRing
from reliamsg.message import Gap, Message
from reliamsg.policy import Quorum
from reliamsg.producer.api import Producer

EXIT_BUSY = 75
"""Exit code of a consumer whose group is in use; its supervisor starts it again (sysexits: temporary failure)."""
EXIT_QUARANTINE_FULL = 78
"""Exit code of a consumer whose quarantine is full; an operator has to enlarge it (sysexits: configuration)."""
EXIT_HALTED = 79
"""Exit code of a consumer that was to halt at a message that can't be handled. The next attempt succeeds, as after a
repair."""
QUICKLY, SLOWLY_PER_S = 1_000, 20
"""How many messages a publisher publishes at the full rate, and its rate afterwards, so that messages are under way
whenever a fault strikes, and small windows and slow groups are done soon after the last one."""
SPARE_GROUP = "spare"
"""A group that is added and removed again, and never reads."""


class Log:
    """An append-only file of JSON lines."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._life = time.time_ns()
        os.write(self._file, b"\n")  # ends an incomplete line that a killed process left

    def write(self, *lines: dict[str, Any]) -> None:
        """Append `lines`, and fsync."""
        data = b"".join(json.dumps({"life": self._life, **line}).encode() + b"\n" for line in lines)
        if os.write(self._file, data) != len(data):
            raise OSError("the application's log was not written in full")
        os.fsync(self._file)


def show(error: BaseException) -> None:
    """Callback for errors."""
    print(repr(error), file=sys.stderr, flush=True)


def digest(body: bytes) -> str:
    """The representation of a body in the logs."""
    return hashlib.sha256(body).hexdigest()[:16]


def site_list(config: dict[str, Any]) -> list[Site]:
    """The sites in `config`."""
    return [Site(name, url, **options) for name, url, options in config["sites"]]


def shared_options(config: dict[str, Any]) -> dict[str, Any]:
    """Keys and journal: arguments of both kinds of clients."""
    found = dict[str, Any]()
    if config["key"]:
        found["keys"] = KeyRing({"run": bytes.fromhex(config["key"])}, sign_with="run")
    if config["journal"] is not None:
        options = dict(config["journal"])
        if config["journal_key"]:
            options["key"] = KeyRing({"run": bytes.fromhex(config["journal_key"])}, sign_with="run")
        found["journal"] = JournalExport(options.pop("target"), **options)
    return found


# -- publishing ---------------------------------------------------------------------------------------------


def publish(config: dict[str, Any], stop: threading.Event) -> None:
    """Publish increasing numbers to random topics until the file `enough` exists, and create the file `ended`; create
    `settled` once everything is confirmed, and wait for SIGTERM."""
    options, how = dict(config["options"]), config["publishing"]
    if isinstance(options["confirm"], dict):
        options["confirm"] = Quorum(options["confirm"]["quorum"])
    log, rng = Log(config["log"]), random.Random(config["seed"])
    groups = dict.fromkeys(config["topics"], config["groups"])
    producer = Producer(
        config["producer"], site_list(config), outbox=config["outbox"], groups=groups,
        on_error=show, **options, **shared_options(config),
    )  # fmt: skip
    Path(config["ready"]).touch()
    number = highest(config["log"])
    while not stop.is_set() and not Path(config["enough"]).exists():
        topic = config["topics"][rng.randrange(len(config["topics"]))]
        numbers = range(number + 1, number + 1 + how["chunk"])
        number = numbers[-1]
        returned = list(publish_some(producer, log, topic, numbers, config["producer"], how))
        if how["removes"] and returned and rng.random() < 0.1:
            remove(producer, log, topic, returned)
        if how["regroups"] and rng.random() < 0.05:
            producer.add_group(topic, SPARE_GROUP)
            producer.remove_group(topic, SPARE_GROUP)
        stop.wait(how["chunk"] / (config["rate"] if number < QUICKLY else SLOWLY_PER_S))
    Path(config["ended"]).touch()
    if settle(producer, stop):
        Path(config["settled"]).touch()
    stop.wait()
    producer.close(timeout=5.0)


def settle(producer: Producer, stop: threading.Event) -> bool:
    """Wait until everything is confirmed as the policy requires; False if SIGTERM is received first."""
    reason = ""
    while not stop.is_set():
        try:
            producer.flush(timeout=1.0)
        except ConfirmTimeout as error:
            reason = str(error)
        else:
            return True
    print(f"not confirmed: {reason}; {producer.status()}", file=sys.stderr, flush=True)
    return False


def highest(path: str) -> int:
    """The highest number in the log."""
    return max((line["n"] for line in read(path) if line["op"] == "call"), default=0)


def read(path: str) -> Iterator[dict[str, Any]]:
    """The lines of a log. Incomplete lines, left by killed processes, are skipped."""
    for line in Path(path).read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def publish_some(
    producer: Producer, log: Log, topic: str, numbers: range, name: str, how: dict[str, Any]
) -> Iterator[tuple[int, Any]]:
    """Publish `numbers` with the method that was drawn; yields number and identity of each durable message."""
    bodies = [f"{name}:{topic}:{n}:".encode().ljust(how["size"], b".") for n in numbers]
    log.write(
        *(
            {"op": "call", "topic": topic, "n": n, "sum": digest(body)}
            for n, body in zip(numbers, bodies, strict=True)
        )
    )
    if how["way"] == "publish_many":
        try:
            many = producer.publish_many(topic, bodies)
            many.wait(timeout=300, until="durable")
        except (OutboxFull, OutboxWriteError, JournalFull):
            return  # some may have been stored: their calls are indeterminate
        done = list(zip(numbers, many.ids, strict=True))
    else:
        done = []
        receipts = []
        for n, body in zip(numbers, bodies, strict=True):
            try:
                receipts.append((n, getattr(producer, how["way"])(topic, body)))
            except (OutboxFull, OutboxWriteError, JournalFull):
                log.write({"op": "refused", "topic": topic, "n": n})
        for n, receipt in receipts:
            try:
                receipt.wait(timeout=300, until="durable")
            except OutboxWriteError:
                log.write({"op": "refused", "topic": topic, "n": n})
            else:
                done.append((n, receipt.id))
    log.write(*({"op": "returned", "topic": topic, "n": n, "id": list(id)} for n, id in done))
    yield from done


def remove(producer: Producer, log: Log, topic: str, returned: list[tuple[int, Any]]) -> None:
    """Remove a message. It may already be sent or delivered: it is neither owed nor an error."""
    n, id = returned[len(returned) // 2]
    log.write({"op": "removed", "topic": topic, "n": n})
    producer.remove(id)


# -- handling -----------------------------------------------------------------------------------------------


class Refused(Exception):
    """Raised by the handler at random."""


class Handler:
    """Logs every message before handling it."""

    def __init__(self, config: dict[str, Any], log: Log) -> None:
        self._log, self._hurry = log, Path(config["hurry"])
        self._delay, self._fails = config["handling"]["delay"], config["handling"]["fails"]
        self._rng = random.Random(config["seed"])

    def some(self, messages: Iterable[Message]) -> None:
        """Handle a list of messages."""
        messages = list(messages)
        self._log.write(*map(entry, messages))
        if not self._hurry.exists():
            time.sleep(self._delay * len(messages))
            if self._rng.random() < self._fails:
                raise Refused("the application can't handle this now")

    def one(self, message: Message) -> None:
        """Handle one message."""
        self.some([message])


def entry(message: Message) -> dict[str, Any]:
    """The log line of a message that was delivered."""
    name, topic, n, _ = message.body.split(b":", 3)
    return {
        "op": "got", "producer": name.decode(), "topic": topic.decode(), "n": int(n), "sum": digest(message.body),
        "id": list(message.id), "redelivered": message.redelivered, "replayed": message.replayed,
    }  # fmt: skip


def gap_entry(gap: Gap, op: str = "gap") -> dict[str, Any]:
    """The log line of a gap, which by default the application skips."""
    stream = gap.stream
    return {"op": op, "producer": stream.producer, "topic": stream.topic, "epoch": gap.epoch,
            "first": gap.first, "last": gap.last}  # fmt: skip


def note(error: BaseException, log: Log) -> None:
    """Callback for errors of consumers: logs gaps that were passed before they were known."""
    show(error)
    if isinstance(error, GapError) and not isinstance(error, GapHeld):
        log.write(gap_entry(error.gap, "before"))


def held_gaps(consumer: Consumer, patience: float) -> list[dict[str, Any]]:
    """The gaps that, by status(), still hold their streams after their timeout of `patience` seconds."""
    streams = consumer.status().streams.values()
    return [
        gap_entry(each.gap)
        for each in streams
        if each.gap is not None and (each.gap_held or each.gap_elapsed_s >= patience)
    ]


def dead_letter_entry(letter: Any) -> dict[str, Any]:
    """The log line of a dead letter."""
    return {"op": "dead", "producer": letter.stream.producer, "topic": letter.stream.topic, "epoch": letter.epoch,
            "first": letter.seq, "last": letter.seq}  # fmt: skip


def handle(config: dict[str, Any], stop: threading.Event) -> None:
    """Handle messages until SIGTERM, and skip every gap that the drawn policy leaves to the application."""
    options, how = dict(config["options"]), config["handling"]
    log = Log(config["log"])
    policy = options["on_gap"]
    if policy.startswith("call:"):

        def decide(gap: Gap) -> str:
            if policy == "call:wait" and gap.reason != "removed":  # removed messages can't be repaired
                return "wait"
            log.write(gap_entry(gap))
            return "skip"

        options["on_gap"] = decide
    consumer = Consumer(
        config["group"], site_list(config), topics=config["topics"], inbox=config["inbox"],
        on_late=lambda message: None, on_error=lambda error: note(error, log), **options, **shared_options(config),
    )  # fmt: skip
    Path(config["ready"]).touch()
    threading.Thread(
        target=stop_later, args=(stop, consumer, log, options["gap_timeout"]), daemon=True
    ).start()
    handler = Handler(config, log)
    try:
        while not stop.is_set():
            try:
                read_once(consumer, handler, how)
            except GapError as error:
                if consumer.accept(error.gap):
                    log.write(gap_entry(error.gap))
    except GroupBusy as error:
        show(error)
        sys.exit(EXIT_BUSY)
    except DeadLetterHalt as error:
        show(error)
        sys.exit(EXIT_HALTED)
    except QuarantineFull as error:
        show(error)
        sys.exit(EXIT_QUARANTINE_FULL)
    consumer.close(5.0)


def stop_later(stop: threading.Event, consumer: Consumer, log: Log, patience: float) -> None:
    """Stop the consumer when `stop` is set, and log dead letters and gaps that hold streams until then."""
    known, held = 0, list[dict[str, Any]]()
    while not stop.wait(1.0):
        try:
            letters = consumer.dead_letters()
        except InboxWriteError:
            continue  # they become durable when the disk has space again
        # At most 1,000 are listed, oldest first: more than any run makes.
        new = [letter for letter in letters if letter.id > known]
        log.write(*map(dead_letter_entry, new))
        known = max((letter.id for letter in new), default=known)
        if (now := held_gaps(consumer, patience)) != held:
            held = now
            log.write({"op": "held", "gaps": held})
    consumer.stop()


def read_once(consumer: Consumer, handler: Handler, how: dict[str, Any]) -> None:
    """Consume messages with the method that was drawn, until stop()."""
    if how["way"] == "single":
        consumer.run(handler.one, workers=how["workers"])
    elif how["way"] == "batch":
        consumer.run(handler.some, batch=how["batch"], workers=how["workers"])
    elif how["way"] == "batches":
        for messages in consumer.batches(how["batch"], 0.05):
            with contextlib.suppress(Refused):
                handler.some(messages)
            for message in messages:
                message.ack()
    elif how["way"] == "iterate":
        for message in consumer:
            with contextlib.suppress(Refused):
                handler.one(message)
            message.ack()
    else:
        while (message := consumer.get(timeout=None)) is not None:  # type: ignore[assignment]
            with contextlib.suppress(Refused):
                handler.one(message)
            with contextlib.suppress(InboxWriteError):  # acknowledged, and durable once there is space again
                message.ack(durable=True)


def main(config: dict[str, Any]) -> None:
    """Publish or handle messages until SIGTERM."""
    requested = False

    def notice(*_: object) -> None:
        nonlocal requested
        requested = True

    signal.signal(signal.SIGTERM, notice)
    stop = threading.Event()

    def look() -> None:  # setting an Event in a signal handler can deadlock
        while not requested:
            time.sleep(0.02)
        stop.set()

    threading.Thread(target=look, daemon=True).start()
    {"publish": publish, "handle": handle}[config["role"]](config, stop)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
