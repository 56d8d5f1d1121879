"""Every decoder of a file, an argument or a name: functions of bytes, and the errors by which each may refuse."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from reliamsg import JournalExport, Site
from reliamsg.audit.expect import parse_expect
from reliamsg.checker import Chain, check, read_chain
from reliamsg.checker.applog import read_applog
from reliamsg.checker.segments import check_segment, claims_to_be_segment, owner_by_path
from reliamsg.cli.options import KeysType
from reliamsg.config import is_remote
from reliamsg.errors import ConfigError, InboxWriteError, OutboxWriteError, StoreError
from reliamsg.export.target import open_target
from reliamsg.message import Stream
from reliamsg.store.inbox import Inbox
from reliamsg.store.inbox_rows import Batch, EpochRow
from reliamsg.store.inbox_view import list_streams, read_dead_letters, summarize_inbox
from reliamsg.store.outbox import Outbox
from reliamsg.store.outbox_view import inspect_outbox, list_batches
from reliamsg.store.segment import Name, SegmentError, decode, digest_of, parse_name
from tests.fuzz import seeds
from tests.fuzz.target import Target, edited, scratch

__all__ = ["FILES"]


def written(name: str, raw: bytes) -> Path:
    """A file with these bytes, alone in a directory."""
    path = scratch() / name
    for suffix in ("-wal", "-shm", ".lock"):
        path.with_name(name + suffix).unlink(missing_ok=True)
    path.write_bytes(raw)
    return path


# -- journals -------------------------------------------------------------------------------------------------


def read_segment(raw: bytes) -> None:
    """A segment under a name that matches its bytes; its content is judged, and can be written again."""
    header, rows = decode(raw)
    name = Name(header.boot, header.first_lsn, digest_of(raw))
    path = f"role={header.role}/client=x/date=2026-01-01/{name}"
    if parse_name(str(name)) == name:
        assert claims_to_be_segment(path, raw[:4096])
        found = check_segment(str(name), raw)
        assert (found.header, found.rows) == (header, rows)
    text = check([Chain(header.role, header.client, "a.db", rows)]).text()
    assert text


def read_rows_alone(raw: bytes) -> None:
    """Rows of a journal in a segment whose header is right: a line each."""
    lines = raw.split(b"\n")[:-1]
    if not lines:
        return
    try:
        first = msgspec.json.decode(lines[0])
        boot, lsn = str(first["boot"]), int(first["lsn"])
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return
    header = {
        "format": "reliamsg.journal", "version": 1, "role": "group" if len(lines) % 2 else "producer",
        "client": "c", "boot": boot, "first_lsn": lsn, "last_lsn": lsn + len(lines) - 1, "rows": len(lines),
        "parent": None,
    }  # fmt: skip
    read_segment(msgspec.json.encode(header) + b"\n" + raw)


def rows_alone() -> list[bytes]:
    return [segment.partition(b"\n")[2] for segment in seeds.segments()]


def read_log(raw: bytes) -> None:
    """An application's own log, and its judgement."""
    log = read_applog(written("app.ndjson", raw))
    assert check([], [log]).text()


def read_name(raw: bytes) -> None:
    """The path of a file among segments: an exported name leads back to its client."""
    path = raw.decode(errors="surrogateescape")
    claims_to_be_segment(path, raw)
    owner = owner_by_path(path)
    assert owner is None or owner[0] in ("producer", "group")
    name = parse_name(path.rpartition("/")[2])
    assert name is None or str(name) == path.rpartition("/")[2]


# -- databases ------------------------------------------------------------------------------------------------


def read_outbox(raw: bytes) -> None:
    """A damaged outbox: inspectors and its owner get its content, or an error that says that it is damaged."""
    path = written("outbox.db", edited(seeds.outbox_file(), raw))
    for look in (inspect_outbox, lambda p: list_batches(p, 100), lambda p: check([read_chain(p)])):
        try:
            look(path)
        except StoreError:
            continue
    outbox = Outbox(path, "p", 6_000_000, 0, "c" * 16)
    try:
        outbox.site_cursors(), outbox.published(), outbox.bounds(), outbox.held(), outbox.totals()
        outbox.members(), outbox.removed(), outbox.gated()
        for stream in outbox.streams.values():
            outbox.chain(stream.id), outbox.oldest(stream.id)
        outbox.page(0, None, LIMIT)
    finally:
        outbox.close()


def read_inbox(raw: bytes) -> None:
    """The same for an inbox."""
    path = written("inbox.db", edited(seeds.inbox_file(), raw))
    for look in (
        summarize_inbox,
        lambda p: list_streams(p, -1),
        read_dead_letters,
        lambda p: check([read_chain(p)]),
    ):
        try:
            look(path)
        except StoreError:
            continue
    inbox = Inbox(path, "billing")
    try:
        for saved in inbox.load():
            for epoch in saved.epochs:
                inbox.page(saved.stream, epoch.epoch, 1, LIMIT)
        inbox.late(0, 100)
        inbox.commit(
            Batch(epochs=[EpochRow(Stream("p", "orders"), 10, 77, None, 30, 60, [], None, True)]), 2, 2
        )
    finally:
        inbox.close()


def read_any_file(raw: bytes) -> None:
    """Arbitrary bytes in place of a database."""
    path = written("any.db", raw)
    for look in (inspect_outbox, summarize_inbox, read_chain):
        try:
            look(path)
        except StoreError:
            continue
        raise AssertionError("it was taken for one of ours")
    Outbox(path, "p", 6_000_000, 0, "c" * 16).close()


LIMIT = 1 << 20
PASSWORD = "s3cret"


# -- settings -------------------------------------------------------------------------------------------------


def read_keys(raw: bytes) -> None:
    """A file of keys: a key ring, or an error that shows no secret."""
    path = written("keys", raw)
    path.chmod(0o600)
    try:
        ring = KeysType().convert(str(path), None, None)
    except click.BadParameter as error:
        said = error.format_message()
        secrets = [
            words[1] for line in raw.split(b"\n") if len(words := line.split()) > 1 and len(words[1]) > 15
        ]
        assert not any(secret.decode(errors="replace") in said for secret in secrets)
        return
    assert ring.signs


def read_expectations(raw: bytes) -> None:
    """A JSON file of expected clients."""
    found = parse_expect([str(written("expect.json", raw))])
    assert all(isinstance(name, str) for name in found.producers)


def read_site_url(raw: bytes) -> None:
    """A broker's URL: a site, or an error that does not show the URL."""
    url = raw.decode(errors="replace")
    try:
        site = Site("dc1", url)
    except ConfigError as error:
        if PASSWORD in str(error):
            raise AssertionError("an error shows a password") from None
        raise
    assert site.endpoints
    assert PASSWORD not in repr(site) or PASSWORD in site.vhost + "".join(map(str, site.endpoints))


def read_target_url(raw: bytes) -> None:
    """A journal's target, which is not opened."""
    url = raw.decode(errors="replace")
    settings = JournalExport(url)
    if is_remote(url) and url.count(PASSWORD) == 1 and f"//u:{PASSWORD}@" in url:
        assert PASSWORD not in settings.shown_target + repr(settings)
    assert open_target(url).shown


def _settings() -> list[bytes]:
    return [b"# keys\n2026-a " + b"4b" * 16 + b"\nold " + b"61" * 20 + b"\n", b"a 00\n"]


def _urls() -> list[bytes]:
    return [
        b"amqps://user:s3cret@a.example:5671,b.example,[::1]:99/%2Fv",
        b"mqtt://localhost:1883",
        b"mqtts://u:s3cret@h/",
    ]


def _targets() -> list[bytes]:
    return [
        b"memory://u:s3cret@x/y?k=1",
        b"file:///tmp/a%20b",
        b"/var/spool/journals",
        b"memory://x/y",
        b"local://host/p",
        b"zip::memory://a",
    ]


def _expectations() -> list[bytes]:
    return [b'{"producers": ["a"], "groups": {"orders": ["billing", "audit"]}}', b"[" * 3000]


def _json_bombs(good: list[bytes]) -> list[bytes]:
    """Those, and values nested so deep that recursive decoders give up."""
    deep = b"[" * 3000
    return [*good, b'{"format":"reliamsg.journal","x":' + deep, good[0].replace(b'"boot"', b'"x":' + deep, 1)]


FILES = (
    Target("segment", read_segment, (SegmentError,), lambda: _json_bombs(seeds.segments())),
    Target("journal-rows", read_rows_alone, (SegmentError,), rows_alone),
    Target("application-log", read_log, (), lambda: _json_bombs(seeds.applogs())),
    Target("segment-path", read_name, (), seeds.names_of_files),
    # A byte in its head makes a file one of a later SQLite version, which may only be read.
    Target("outbox-file", read_outbox, (StoreError, OutboxWriteError), seeds.edits),
    Target("inbox-file", read_inbox, (StoreError, InboxWriteError), seeds.edits),
    Target("any-file", read_any_file, (StoreError,), lambda: [b"SQLite format 3\x00", b"x" * 100]),
    Target("keys-file", read_keys, (), _settings),
    Target("expect-file", read_expectations, (ConfigError,), _expectations),
    Target("site-url", read_site_url, (ConfigError,), _urls),
    Target("journal-url", read_target_url, (ConfigError,), _targets),
)
