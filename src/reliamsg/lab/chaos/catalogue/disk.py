"""Faults of disks: numbers 11 to 18 of the catalogue, except 17, which is in :mod:`.combined`."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.files import copy_database, restore_database
from reliamsg.lab.chaos.processes import App, LineCounter
from reliamsg.lab.chaos.registry import register
from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.traffic import Load, Paths, Traffic, message_count
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.faults.disk import DiskFaults, fill

_LOCKED_S = 7.0
"""Longer than the clients' SQLite timeout for locks."""
_SMALL = {"max_bytes": 200_000, "retain_bytes": 0, "max_batch_bytes": 10_000}
"""Options of a producer whose outbox fits on a small disk."""


def refused(t: Traffic) -> LineCounter:
    """Counts the messages that publish() reported as not stored."""
    return LineCounter(t.producer.log, b'"outcome":"failed"')


def unacknowledged(t: Traffic) -> int:
    """The number of published messages whose acknowledgement is not on disk, delivered or not."""
    return t.accepted() - message_count(t.rows(t.consumer, "acknowledged"))


@register(
    Scenario(
        "disk-full",
        "The disk of the outbox (1 MB) fills up, then that of the inbox",
        numbers=(11,), promises="P1 P2 P7", messages=4_000, needs=frozenset({"mosquitto", "root"}),
    )
)  # fmt: skip
def disk_full(context: Context) -> None:
    outer, inner = context.disk("outbox-disk", "1m"), context.disk("inbox-disk", "1m")
    load = Load(
        rate=500, size=500, producing={"outbox": str(outer / "outbox.db"), "options": _SMALL},
        consuming={"inbox": str(inner / "inbox.db"), **context.slow()},
    )  # fmt: skip
    t = context.traffic(context.sites(), load)
    t.flows(context.messages // 40)
    failed = refused(t)
    filler = fill(outer)
    context.event("the outbox's disk is full")
    wait_for(lambda: failed() > 50, "publishing is refused")
    context.stake(failed(), "publish() calls that failed, and must not be stored")
    filler.unlink()
    context.event("there is free space again")
    t.flows(context.messages // 40)
    filler = fill(inner)
    context.event("the inbox's disk is full")
    reported = LineCounter(t.consumer.log.with_suffix(".stderr"), b"InboxWriteError")
    wait_for(reported, "the consumer reports it")
    t.accepts(context.messages // 10)
    context.stake(t.under_way, "messages for which the inbox has no space")
    filler.unlink()
    context.event("there is free space again")
    context.hurry()
    t.finish(context.messages)


def isolated_traffic(context: Context, paths: Paths) -> Traffic:
    """Traffic, until no site can be reached: from now on, published messages are only in the outbox."""
    t = context.traffic(paths, Load(rate=500))
    t.flows(context.messages // 10)
    for proxy in paths.of():
        proxy.cut()
    context.event("no site can be reached: messages published now are only in the outbox")
    return t


def come_back(context: Context, t: Traffic, paths: Paths) -> None:
    """Continue after damage to the outbox: its remaining messages are delivered, and the others must be reported."""
    before = t.accepted()
    t.producer.start()
    paths.heal()
    context.event("the producer starts again, and all sites are back")
    t.accepts(context.messages // 10)
    t.producer.stop(60)
    last = max(numbers_accepted(t))
    wait_for(
        lambda: last in t.delivered_numbers(),
        lambda: f"the last message is delivered; {t.consumer.errors()}",
        60,
    )
    gone = numbers_accepted(t) - set(t.delivered_numbers())
    t.consumer.stop()
    context.event(f"{len(gone)} of {before} messages that were accepted before are gone")
    context.stake(len(gone), "messages that the disk lost, to be reported")
    context.record.expect_verdict("violated", "lost")


def numbers_accepted(t: Traffic) -> set[int]:
    """The numbers for which publish() returned."""
    lines = t.producer.log.read_bytes().splitlines()
    return {int(line.partition(b'"n":')[2].partition(b",")[0]) for line in lines if b'"outcome":"ok"' in line}


@register(
    Scenario(
        "lying-fsync",
        "A disk that ignored fsync loses data in a power failure: not survivable, to be reported",
        numbers=(12,), promises="P1 P9", messages=3_000,
    )
)  # fmt: skip
def lying_fsync(context: Context) -> None:
    paths = context.proxied()
    t = isolated_traffic(context, paths)
    t.producer.signal(signal.SIGSTOP)
    copy = context.directory / "really-written"
    copy_database(t.producer.database, copy)
    t.producer.signal(signal.SIGCONT)
    context.event("from here on, fsync does nothing")
    t.accepts(context.messages // 3)
    t.producer.kill()
    restore_database(copy, t.producer.database)
    context.event("power failure: SIGKILL, and the disk has only the data that it really wrote")
    come_back(context, t, paths)


@register(
    Scenario(
        "failing-fsync",
        "fsync of the outbox returns EIO, then that of the inbox: clients stop and never retry",
        numbers=(13,), promises="P1 P2", messages=3_000, needs=frozenset({"mosquitto", "cc"}),
    )
)  # fmt: skip
def failing_fsync(context: Context) -> None:
    faults = DiskFaults(context.directory)
    t = context.traffic(context.sites(), Load(rate=500), start=False)
    for app in (t.producer, t.consumer):
        app.add_environment(faults.environment)
    t.start()
    for app, error in ((t.producer, "OutboxIndeterminate"), (t.consumer, "InboxIndeterminate")):
        t.flows(context.messages // 10)
        before = faults.failures()
        faults.fail_fsync(f"{app.database.name}-wal")
        context.event(f"fsync of {app.database.suffixes[0][1:]} fails")
        wait_for(lambda a=app, e=error: error_of(a, e), f"the application gets {error}")  # type: ignore[misc]
        if app is t.producer:
            invoked = LineCounter(app.log, b'"outcome":"invoked"')
            context.stake(invoked() - t.accepted(), "messages that may be stored or not")
        else:
            t.accepts(context.messages // 20)
            context.stake(unacknowledged(t), "messages whose acknowledgement was not on disk")
        wait_for(lambda a=app: not a.running, "the application exits")  # type: ignore[misc]
        # SQLite itself syncs once more when the file is closed, with data that was safe before.
        context.expect(faults.failures() <= before + 2, "nothing was committed after the failed fsync")
        faults.heal()
        app.start()
        context.event("the disk works again, and the process is restarted")
    t.finish(context.messages)


def error_of(app: App, error: str) -> bool:
    """Whether an application has reported this error."""
    return error in app.errors()


@register(
    Scenario(
        "truncated-wal",
        "The outbox's write-ahead log is truncated: the loss must be reported",
        numbers=(14,), promises="P1 P9", messages=3_000,
    )
)  # fmt: skip
def truncated_wal(context: Context) -> None:
    paths = context.proxied()
    t = isolated_traffic(context, paths)
    wal = Path(f"{t.producer.database}-wal")
    t.accepts(context.messages // 3)
    t.producer.kill()
    size = wal.stat().st_size
    left = int(size * context.rng.uniform(0.2, 0.7))
    with wal.open("r+b") as file:
        file.truncate(left)
    context.event(f"SIGKILL; {size - left:,} of {size:,} bytes of the log are truncated")
    come_back(context, t, paths)


@register(
    Scenario(
        "flipped-bit",
        "A bit of the outbox flips, in a message, then in the file header: never sent, reported",
        numbers=(15,), promises="P5 P9", messages=2_000,
    )
)  # fmt: skip
def flipped_bit(context: Context) -> None:
    paths = context.proxied()
    t = isolated_traffic(context, paths)
    t.accepts(context.messages // 3)
    t.producer.configure(close=0.1)
    t.producer.stop(60)  # everything is in the database now, and nothing in its log
    copy = context.directory / "undamaged"
    copy_database(t.producer.database, copy)
    data = t.producer.database.read_bytes()
    message = f"{t.producer.config['producer']}:{max(numbers_accepted(t)) - 10}:".encode()
    for where, what in ((data.index(message), "a message"), (5, "the database's header")):
        damaged = bytearray(data)
        damaged[where] ^= 1 << context.rng.randrange(8)
        t.producer.database.write_bytes(damaged)
        # It publishes nothing new; its journal must not mix with that of the file that is restored.
        t.producer.start(last=0, journal=str(context.directory / "damaged"))
        paths.heal()
        context.event(f"a bit of {what} has flipped, and all sites are back")
        wait_for(lambda: not t.producer.running, "the producer stops")
        context.expect(error_of(t.producer, "StoreCorrupt"), "it reports that its outbox is damaged")
        context.stake(t.under_way, "messages in the damaged outbox")
        restore_database(copy, t.producer.database)
    context.event("the bits are restored")
    t.producer.start(last=max(numbers_accepted(t)) + context.messages // 10, close=10.0)
    t.drained()


@register(
    Scenario(
        "read-only-disk",
        "The disk of the inbox becomes read-only, as after an error, then that of the outbox",
        numbers=(16,), promises="P1 P2", messages=3_000, needs=frozenset({"mosquitto", "cc"}),
    )
)  # fmt: skip
def read_only_disk(context: Context) -> None:
    t = context.traffic(context.sites(), Load(rate=500), start=False)
    disks = []
    for app, name in ((t.producer, "outbox-disk"), (t.consumer, "inbox-disk")):
        place = context.directory / name
        place.mkdir()
        disks.append(DiskFaults(place))
        app.add_environment(disks[-1].environment)
    outer, inner = disks
    t.start()
    t.flows(context.messages // 10)
    inner.read_only()
    context.event("the inbox can't be written")
    wait_for(lambda: error_of(t.consumer, "InboxWriteError"), "the consumer reports it")
    t.accepts(context.messages // 20)
    context.stake(unacknowledged(t), "messages whose acknowledgement was not on disk")
    inner.heal()
    context.event("it can be written again")
    t.flows(context.messages // 20)
    failed = refused(t)
    outer.read_only()
    context.event("the outbox can't be written")
    wait_for(lambda: failed() > 50, "publishing is refused")
    context.stake(failed(), "publish() calls that failed, and must not be stored")
    outer.heal()
    context.event("it can be written again")
    t.finish(context.messages)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold a database's write lock, as another tool might."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA busy_timeout = 5000")
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@register(
    Scenario(
        "locked-database",
        "Another process locks the outbox for longer than SQLite waits, then the inbox",
        numbers=(18,), promises="P1 P2", messages=4_000,
    )
)  # fmt: skip
def locked_database(context: Context) -> None:
    t = context.traffic(context.sites(), Load(rate=500))
    for app in (t.producer, t.consumer):
        t.flows(context.messages // 20)
        with locked(app.database):
            context.event(f"{app.database.suffixes[0][1:]} is locked")
            time.sleep(_LOCKED_S)  # the fault itself
            context.stake(t.accepted() - t.delivered() + refused(t)(), "messages delayed by the lock")
        context.event("the lock is released")
    t.finish(context.messages)
