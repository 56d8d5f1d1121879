"""Faults of disks: 11 to 18 of the catalogue; 17 is among the runs with several faults."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from reliamsg.lab.chaos.context import Context
from reliamsg.lab.chaos.files import copy_database, restore_database
from reliamsg.lab.chaos.processes import App, Lines
from reliamsg.lab.chaos.scenario import scenario
from reliamsg.lab.chaos.traffic import Paths, Traffic, sum_of
from reliamsg.lab.chaos.waiting import wait_for
from reliamsg.lab.faults.disk import FsyncFaults, fill

_LOCKED_S = 7.0
"""Longer than SQLite is told to wait for another's lock."""
_SMALL = {"max_bytes": 200_000, "retain_bytes": 0, "max_batch_bytes": 10_000}
"""Options of a producer whose outbox fits on a small disk."""


def refused(t: Traffic) -> Lines:
    """Counts what publish() said that it did not store."""
    return Lines(t.producer.log, b'"outcome":"failed"')


def unnoted(t: Traffic) -> int:
    """How many messages were published whose acknowledgement is not on the disk, handed out or not."""
    return t.accepted() - sum_of(t.rows(t.consumer, "acknowledged"))


@scenario("disk-full", 11, promises="P1 P2 P7", messages=4_000, needs=("mosquitto", "root"),
          title="The disk of the outbox (1 MB) fills up, then that of the inbox")  # fmt: skip
def disk_full(context: Context) -> None:
    outer, inner = context.disk("outbox-disk", "1m"), context.disk("inbox-disk", "1m")
    t = context.traffic(
        context.sites(), rate=500, size=500,
        producing={"outbox": str(outer / "outbox.db"), "options": _SMALL},
        consuming={"inbox": str(inner / "inbox.db"), **context.slow()},
    )  # fmt: skip
    t.flows(context.messages // 40)
    failed = refused(t)
    filler = fill(outer)
    context.event("the outbox's disk is full")
    wait_for(lambda: failed() > 50, "publishing is refused")
    context.stake(failed(), "publishes refused, of which none may be half done")
    filler.unlink()
    context.event("there is room again")
    t.flows(context.messages // 40)
    filler = fill(inner)
    context.event("the inbox's disk is full")
    reported = Lines(t.consumer.log.with_suffix(".stderr"), b"InboxWriteError")
    wait_for(reported, "the consumer says so")
    t.accepts(context.messages // 10)
    context.stake(t.under_way, "messages for which the inbox has no room")
    filler.unlink()
    context.event("there is room again")
    context.hurry()
    t.finish(context.messages)


def gone_dark(context: Context, paths: Paths) -> Traffic:
    """Traffic, and then no site can be reached: what is published from now on is in the outbox alone."""
    t = context.traffic(paths, rate=500)
    t.flows(context.messages // 10)
    for proxy in paths.of():
        proxy.cut()
    context.event("no site can be reached: what is published now is in the outbox alone")
    return t


def come_back(context: Context, t: Traffic, paths: Paths) -> None:
    """Go on after damage to the outbox: what is left of it comes, and what is not must be reported."""
    known = t.accepted()
    t.producer.start()
    paths.heal()
    context.event("the producer starts again, and all sites are back")
    t.accepts(context.messages // 10)
    t.producer.stop(60)
    last = max(numbers_accepted(t))
    wait_for(lambda: last in t.handed_out(), lambda: f"the last message comes; {t.consumer.errors()}", 60)
    gone = numbers_accepted(t) - set(t.handed_out())
    t.consumer.stop()
    context.event(f"{len(gone)} of {known} messages that were accepted before are gone")
    context.stake(len(gone), "messages gone with what the disk lost, to be reported")
    context.verdicts("violated", "lost")


def numbers_accepted(t: Traffic) -> set[int]:
    """The numbers for which publish() returned."""
    lines = t.producer.log.read_bytes().splitlines()
    return {int(line.partition(b'"n":')[2].partition(b",")[0]) for line in lines if b'"outcome":"ok"' in line}


@scenario("lying-fsync", 12, promises="P1 P9", messages=3_000,
          title="A disk that said fsynced forgets at a power loss: not survivable, to be reported")  # fmt: skip
def lying_fsync(context: Context) -> None:
    paths = context.proxied()
    t = gone_dark(context, paths)
    t.producer.signal(signal.SIGSTOP)
    copy = context.directory / "really-written"
    copy_database(t.producer.database, copy)
    t.producer.signal(signal.SIGCONT)
    context.event("from here on nothing that is fsynced reaches the disk")
    t.accepts(context.messages // 3)
    t.producer.kill()
    restore_database(copy, t.producer.database)
    context.event("power loss: SIGKILL, and the disk has what it really wrote")
    come_back(context, t, paths)


@scenario("failing-fsync", 13, promises="P1 P2", messages=3_000, needs=("mosquitto", "cc"),
          title="fsync of the outbox returns EIO, then that of the inbox: stop, never retry and go on")  # fmt: skip
def failing_fsync(context: Context) -> None:
    faults = FsyncFaults(context.directory)
    t = context.traffic(context.sites(), rate=500, start=False)
    for app in (t.producer, t.consumer):
        app.environment = faults.environment
    t.begin()
    for app, error in ((t.producer, "OutboxIndeterminate"), (t.consumer, "InboxIndeterminate")):
        t.flows(context.messages // 10)
        before = faults.failures()
        faults.fail(f"{app.database.name}-wal")
        context.event(f"fsync of {app.database.suffixes[0][1:]} fails")
        wait_for(lambda a=app, e=error: error_of(a, e), f"it is told with {error}")  # type: ignore[misc]
        if app is t.producer:
            invoked = Lines(app.log, b'"outcome":"invoked"')
            context.stake(invoked() - t.accepted(), "messages of which nobody knows whether they are stored")
        else:
            t.accepts(context.messages // 20)
            context.stake(unnoted(t), "messages whose acknowledgement was not on the disk")
        wait_for(lambda a=app: not a.running, "the application ends")  # type: ignore[misc]
        # SQLite itself tries once more when the file is closed, with what was safe before.
        context.expect(faults.failures() <= before + 2, "nothing was committed after the fsync that failed")
        faults.heal()
        app.start()
        context.event("the disk is well, and the process started again")
    t.finish(context.messages)


def error_of(app: App, error: str) -> bool:
    """Whether a process has said that it has this error."""
    return error in app.errors()


@scenario("truncated-wal", 14, promises="P1 P9", messages=3_000,
          title="Part of the outbox's write-ahead log is cut off: what is gone must be reported")  # fmt: skip
def truncated_wal(context: Context) -> None:
    paths = context.proxied()
    t = gone_dark(context, paths)
    wal = Path(f"{t.producer.database}-wal")
    t.accepts(context.messages // 3)
    t.producer.kill()
    size = wal.stat().st_size
    left = int(size * context.rng.uniform(0.2, 0.7))
    with wal.open("r+b") as file:
        file.truncate(left)
    context.event(f"SIGKILL; {size - left:,} of {size:,} bytes of the log are cut off")
    come_back(context, t, paths)


@scenario("flipped-bit", 15, promises="P5 P9", messages=2_000,
          title="A bit of the outbox flips, in a message, then in the file's head: never sent, said")  # fmt: skip
def flipped_bit(context: Context) -> None:
    paths = context.proxied()
    t = gone_dark(context, paths)
    t.accepts(context.messages // 3)
    t.producer.config["close"] = 0.1
    t.producer.stop(60)  # all is in the database now, and nothing in its log
    copy = context.directory / "undamaged"
    copy_database(t.producer.database, copy)
    data = t.producer.database.read_bytes()
    message = f"{t.producer.config['producer']}:{max(numbers_accepted(t)) - 10}:".encode()
    for where, what in ((data.index(message), "a message"), (5, "the database's head")):
        damaged = bytearray(data)
        damaged[where] ^= 1 << context.rng.randrange(8)
        t.producer.database.write_bytes(damaged)
        # It publishes nothing new, and its journal is not that of the file that is put back.
        t.producer.start(last=0, journal=str(context.directory / "damaged"))
        paths.heal()
        context.event(f"a bit of {what} has flipped, and all sites are back")
        wait_for(lambda: not t.producer.running, "the producer stops")
        context.expect(error_of(t.producer, "StoreCorrupt"), "it says that its outbox is damaged")
        context.stake(t.under_way, "messages in the damaged outbox")
        restore_database(copy, t.producer.database)
    context.event("the bits are put back")
    t.producer.start(last=max(numbers_accepted(t)) + context.messages // 10, close=10.0)
    t.drained()


@scenario("read-only-disk", 16, promises="P1 P2", messages=3_000, needs=("mosquitto", "cc"),
          title="The disk of the inbox turns read-only, as after an error, then that of the outbox")  # fmt: skip
def read_only_disk(context: Context) -> None:
    t = context.traffic(context.sites(), rate=500, start=False)
    disks = []
    for app, name in ((t.producer, "outbox-disk"), (t.consumer, "inbox-disk")):
        place = context.directory / name
        place.mkdir()
        disks.append(FsyncFaults(place))
        app.environment = disks[-1].environment
    outer, inner = disks
    t.begin()
    t.flows(context.messages // 10)
    inner.read_only()
    context.event("the inbox can't be written any more")
    wait_for(lambda: error_of(t.consumer, "InboxWriteError"), "the consumer says so")
    t.accepts(context.messages // 20)
    context.stake(unnoted(t), "messages whose acknowledgement was not on the disk")
    inner.heal()
    context.event("it can be written again")
    t.flows(context.messages // 20)
    failed = refused(t)
    outer.read_only()
    context.event("the outbox can't be written any more")
    wait_for(lambda: failed() > 50, "publishing is refused")
    context.stake(failed(), "publishes refused, of which none may be half done")
    outer.heal()
    context.event("it can be written again")
    t.finish(context.messages)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold a database's write lock, as an administrator's tool might."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("PRAGMA busy_timeout = 5000")
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@scenario("locked-database", 18, promises="P1 P2", messages=4_000,
          title="Somebody else locks the outbox for longer than SQLite waits, then the inbox")  # fmt: skip
def locked_database(context: Context) -> None:
    t = context.traffic(context.sites(), rate=500)
    for app in (t.producer, t.consumer):
        t.flows(context.messages // 20)
        with locked(app.database):
            context.event(f"{app.database.suffixes[0][1:]} is locked")
            time.sleep(_LOCKED_S)  # the fault itself
            context.stake(t.accepted() - t.delivered() + refused(t)(), "messages held up by the lock")
        context.event("the lock is gone")
    t.finish(context.messages)
