"""Mutations of bytes, of JSON, of segments, of files and of directories."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.spoilt.edits import CLIENTS, Case, missing_rows, named, spread
from tests.spoilt.effects import COMPLETE, UNKNOWN, Effect
from tests.spoilt.reader import Client, Id, Journals, Message, Row, Segment, messages_of, sha

__all__ = ["CASES"]

_EDITED = "edited or damaged: its content does not match the hash in its name"
_PLACES = {"first": 0, "middle": None, "last": -1}


def _at(client: Client, where: str) -> Segment:
    number = _PLACES[where]
    return client.segments[len(client.segments) // 2 if number is None else number]


def useless(journals: Journals, client: Client, gone: list[Segment], *lines: str) -> Effect:
    """The effect of segments of a client that are of no use any more, `lines` about them, and everything that they had
    is missing."""
    client.broken = True
    for segment in gone:
        segment.usable = False
    broken = [*lines, *missing_rows(gone, client)]
    effect = Effect(UNKNOWN, broken=broken, unjudged=True)
    enqueued = journals.about("enqueued", role="producer")
    if client.role == "group":
        missing = enqueued - journals.about("delivered", "redelivered", name=client.name)
        unseen = missing & _said_to_be_settled(journals, client)
        effect.open |= missing - unseen
        effect.unnamed |= unseen
    else:
        effect.open |= enqueued - journals.about("published", role="producer")
        effect.found |= {
            ("unproven", group.name, "", message)
            for group in journals.groups
            for message in journals.about("delivered", "redelivered", name=group.name) - enqueued
        }
    return effect


def _said_to_be_settled(journals: Journals, group: Client) -> set[Message]:
    """What a producer was told that the group had settled, beyond everything that the group delivered."""
    reached: dict[str, tuple[int, int]] = {}
    for row in group.of("delivered", "redelivered"):
        reached[row["producer"]] = max(reached.get(row["producer"], (0, 0)), (row["epoch"], row["last"]))
    return {
        message
        for producer in journals.producers
        for row in producer.of("consumed")
        if row["group"] == group.name
        for message in messages_of(row)
        if message[1:] > reached.get(producer.name, (0, 0))
    }


# -- bytes ---------------------------------------------------------------------------------------------------


def _flip(data: bytes) -> bytes:
    at = data.index(b'"wall_us":') + 12
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _without_its_end(data: bytes) -> bytes:
    return data[: data.rindex(b"\n", 0, -1) + 4]


def _without_a_row(data: bytes) -> bytes:
    return data[: data.rindex(b"\n", 0, -1) + 1]


def _complete_rows(number: int) -> Callable[[Segment], str]:
    def line(segment: Segment) -> str:
        rows = len(segment.rows)
        return f"cut: it has {rows + number} complete rows instead of {rows}"

    return line


def _says(line: str) -> Callable[[Segment], str]:
    return lambda _: line


_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], Callable[[Segment], str]]] = {
    "a bit is flipped": (_flip, _says(_EDITED)),
    "cut within a row": (_without_its_end, _complete_rows(-1)),
    "cut between rows": (_without_a_row, _complete_rows(-1)),
    "cut to nothing": (lambda _: b"", _says(_EDITED)),
    "only NUL bytes": (lambda data: bytes(len(data)), _says(_EDITED)),
    "rubbish behind the last row": (lambda data: data + b"rubbish", _complete_rows(0)),
    "a row more": (lambda data: data + data[data.rindex(b"\n", 0, -1) + 1 :], _complete_rows(1)),
    "blanks between fields": (lambda data: data.replace(b'":', b'": '), _says(_EDITED)),
    "lines end as on other systems": (lambda data: data.replace(b"\n", b"\r\n"), _says(_EDITED)),
}


def _damaged(client: Id, where: str, what: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        segment = _at(own, where)
        change, line = _DAMAGE[what]
        name = segment.name
        segment.kept = segment.path
        segment.data = change(segment.data)
        return useless(journals, own, [segment], f"{name}: {line(segment)}")

    return Case(
        f"bytes: {what} in the {where} segment of {named(client)}", mutate, clients=frozenset({client})
    )


def _recoded(client: Id, what: str, change: Callable[[str], str]) -> Case:
    """The same rows in other bytes, under names that match them."""

    def mutate(journals: Journals) -> Effect:
        own, parent = journals.client(*client), None
        for segment in own.segments:
            segment.header["parent"] = parent
            lines = [json.dumps(segment.header), *map(json.dumps, segment.rows)]
            segment.data = "".join(change(line) + "\n" for line in lines).encode()
            parent = segment.digest
        return Effect(COMPLETE)

    return Case(f"bytes: {what}, of {named(client)}", mutate, clients=frozenset({client}))


def _otherwise_ordered(line: str) -> str:
    return json.dumps(dict(reversed(json.loads(line).items())))


def _with_more(line: str) -> str:
    return json.dumps(json.loads(line) | {"colour": {"of": ["the", 1.5, None]}})


_CODINGS: dict[str, Callable[[str], str]] = {
    "blanks between all fields": lambda line: line.replace(",", " ,\t"),
    "fields in another order": _otherwise_ordered,
    "a field that nobody knows": _with_more,
    "letters as escapes": lambda line: line.replace("orders", "\\u006frders").replace("dc1", "\\u0064c1"),
    "carriage returns before newlines": lambda line: f"{line}\r",
}


# -- JSON ----------------------------------------------------------------------------------------------------


def _first_row(client: Client, kind: str) -> tuple[Segment, Row]:
    return next((segment, row) for segment in client.segments for row in segment.rows if row["kind"] == kind)


def _unreadable(client: Id, kind: str, name: str, value: str) -> Case:
    """A row has a value that no client writes; names and chain match it."""

    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        spoilt, row = _first_row(own, kind)
        parent = None
        for segment in own.segments:
            segment.encode(parent)
            if segment is spoilt:
                text = json.dumps(row, separators=(",", ":"))
                other = re.sub(
                    rf'("{name}":)("[^"]*"|\{{[^}}]*\}}|\d+)', lambda found: found[1] + value, text, count=1
                )
                if other == text:
                    other = f'{text[:-1]},"{name}":{value}}}'
                segment.data = segment.data.replace(text.encode(), other.encode())
            parent = segment.digest
        name_of = spoilt.name
        return useless(journals, own, [spoilt], f"{name_of}: ")

    return Case(
        f"JSON: {name} is {value[:40]} in {kind} of {named(client)}", mutate, clients=frozenset({client})
    )


_VALUES: dict[str, tuple[str, ...]] = {
    "first": (
        '"1"',
        "1.0",
        "9223372036854775808",
        "null",
        "true",
        "[1]",
        "NaN",
        "1e2",
        "-9223372036854775809",
    ),
    "epoch": ('"3100"', "3100.0", "Infinity", "{}"),
    "part": ("2147483648", '"0"', "-2147483649"),
    "incarnation": ('"0x1f"', '" 1f"', '""', "7", '"11112222333344445"'),
    "latency": ('{"abc":1}', '{"9":-1}', '{"9":4294967296}', '{"1":"1"}', '{"1":1.5}', '{"-1":1}', "[]"),
    "digest": ("5", '"g"', '"0x1"'),
    "lsn": ("0", '"1"', "1.0"),
    "kind": ("5", "null"),
    "topic": ("5", "{}"),
    "detail": ("[]", '"x"', '{"n":18446744073709551616}', '{"n":NaN}'),
}


def _header(client: Id, name: str, value: object, line: str) -> Case:
    """The header of the middle segment says something else; its name matches."""

    def mutate(journals: Journals) -> Effect:
        own, parent = journals.client(*client), None
        spoilt = _at(own, "middle")
        boot, first, rows = spoilt.header["boot"], spoilt.header["first_lsn"], len(spoilt.rows)
        for segment in own.segments:
            segment.encode(parent)
            if segment is spoilt:
                top = json.dumps(segment.header | {name: value}, separators=(",", ":")).encode()
                segment.data = top + segment.data[segment.data.index(b"\n") :]
                segment.kept = f"{segment.directory}/{boot}-{first:019}-{sha(segment.data)}.ndjson"
            parent = segment.digest
        file = spoilt.kept.rpartition("/")[2]
        return useless(journals, own, [spoilt], f"{file}: {line.format(rows=rows)}")

    return Case(
        f"JSON: header's {name} is {value!r:.40} of {named(client)}", mutate, clients=frozenset({client})
    )


_HEADERS: tuple[tuple[str, object, str], ...] = (
    ("version", 3, "written by a newer version (format 3): upgrade reliamsg"),
    ("version", "2", "written by a newer version (format 2): upgrade reliamsg"),
    ("format", "reliamsg", "not a journal segment: the first line is not a header"),
    ("rows", 999_999_999_999, "{rows} complete rows instead of 999999999999"),
    ("rows", "12", "its header is damaged"),
    ("first_lsn", -(2**63), "its rows do not match its header"),
    ("last_lsn", 2**63 - 1, "its rows do not match its header"),
    ("last_lsn", 2**63, "its rows do not match its header"),
    ("boot", "0" * 16, ""),
    ("role", "reader", "its header is damaged"),
    ("parent", 5, "its header is damaged"),
    ("client", "somebody", "misplaced: it is among those of"),
)


def _harmless_value(client: Id, what: str, change: Callable[[Row], None]) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        for row in own.rows:
            change(row)
        own.chain()
        return Effect(COMPLETE)

    return Case(f"JSON: {what}, in all rows of {named(client)}", mutate, clients=frozenset({client}))


def _without_latency(row: Row) -> None:
    row.pop("latency", None)


def _huge_latency(row: Row) -> None:
    if "latency" in row:
        row["latency"] = {"999999999": 2**32 - 1}


def _strange_reason(row: Row) -> None:
    if row["kind"] in ("delivered", "acknowledged", "enqueued", "confirmed"):
        row["reason"] = "\u0000\u202e<script>"


def _more_detail(row: Row) -> None:
    row["detail"] = (row.get("detail") or {}) | {"colour": [{"deep": [[[[1.5]]]]}, 2**64 - 1, -(2**63)]}


def _other_mono(row: Row) -> None:
    row["mono_us"] = 5


_HARMLESS_VALUES: dict[str, Callable[[Row], None]] = {
    "no latency": _without_latency,
    "a latency of ages": _huge_latency,
    "a reason that nobody knows": _strange_reason,
    "details that nobody knows": _more_detail,
    "a monotonic clock that stands still": _other_mono,
}


# -- segments ------------------------------------------------------------------------------------------------


def _removed(client: Id, where: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        segment = _at(own, where)
        own.segments.remove(segment)
        effect = useless(journals, own, [segment])
        if where == "last":
            effect.unclosed = ["a journal ends without being closed"]
        return effect

    return Case(f"segments: the {where} one of {named(client)} is gone", mutate, clients=frozenset({client}))


def _doubled(client: Id, where: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        segment = _at(journals.client(*client), "middle")
        journals.others[where.format(path=segment.path, name=segment.name)] = segment.data
        return Effect(COMPLETE, duplicated=1)

    return Case(f"segments: one of {named(client)} also at {where}", mutate, clients=frozenset({client}))


def _elsewhere(client: Id, where: str) -> Case:
    """Its header and its name say whose it is."""

    def mutate(journals: Journals) -> Effect:
        for segment in journals.client(*client).segments:
            segment.kept = where.format(name=segment.name)
        return Effect(COMPLETE)

    return Case(f"segments: those of {named(client)} are at {where}", mutate, clients=frozenset({client}))


def _misplaced(client: Id, other: Id) -> Case:
    def mutate(journals: Journals) -> Effect:
        segment = _at(journals.client(*client), "middle")
        directory = journals.client(*other).segments[0].directory
        journals.others[f"{directory}/{segment.name}"] = segment.data
        line = (
            f"{segment.name}: misplaced: it is among those of {named(other)}, but belongs to {named(client)}"
        )
        return useless(journals, journals.client(*other), [], line)

    return Case(
        f"segments: one of {named(client)} among those of {named(other)}",
        mutate,
        clients=frozenset({client, other}),
    )


def _renamed(client: Id, what: str, name: str, line: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.client(*client)
        segment = _at(own, "middle")
        boot, first, digest = segment.name.removesuffix(".ndjson").split("-")
        called = name.format(boot=boot, first=first, digest=digest, next=f"{int(first) + 1:019}")
        segment.kept = f"{segment.directory}/{called}"
        lines = (f"{called}: {line}",) if line else ()
        return useless(journals, own, [segment], *lines)

    return Case(f"files: {what}, of {named(client)}", mutate, clients=frozenset({client}))


_NAMES: dict[str, tuple[str, str]] = {
    "a segment without a proper name": (
        "segment.ndjson", "its name is not that of a segment, so its content can't be verified",
    ),
    "a name with nineteen nines": (
        f"{{boot}}-{'9' * 19}-{{digest}}.ndjson", "renamed: its name and its header name different boots or rows",
    ),
    "a name with the next row": (
        "{boot}-{next}-{digest}.ndjson", "renamed: its name and its header name different boots or rows",
    ),
    "a name with twenty digits": (
        "{boot}-0{first}-{digest}.ndjson", "its name is not that of a segment, so its content can't be verified",
    ),
    "a name with another boot": (
        f"{'0' * 16}-{{first}}-{{digest}}.ndjson", "renamed: its name and its header name different boots or rows",
    ),
    "a name with another digest": (f"{{boot}}-{{first}}-{'0' * 64}.ndjson", _EDITED),
    "a name with capitals": (
        "{boot}-{first}-0{digest}.ndjson", "its name is not that of a segment, so its content can't be verified",
    ),
    "a name of 255 bytes": (
        f"{'n' * 248}.ndjson", "its name is not that of a segment, so its content can't be verified",
    ),
    "compressed, which no client does": ("{boot}-{first}-{digest}.ndjson.gz", ""),
    "not yet renamed": (".{boot}-{first}-{digest}.ndjson.tmp", ""),
}  # fmt: skip


# -- files and directories -----------------------------------------------------------------------------------


def _beside(what: str, path: str, data: bytes) -> Case:
    def mutate(journals: Journals) -> Effect:
        journals.others[path] = data
        return Effect(COMPLETE)

    return Case(f"files: {what} beside the segments", mutate, clients=frozenset())


_BESIDE: dict[str, tuple[str, bytes]] = {
    "a text": ("README.txt", b"journals"),
    "a file that was left behind": ("role=group/client=archive/.tmp-1", b"{"),
    "a client's settings": ("role=group/client=archive/settings.json", b"{}"),
    "a checksum": ("SHA256SUMS", b"0" * 64),
    "an archive": ("role=producer/client=east/date=2026-01-01/old.tar", bytes(512)),
    "an empty file without a name of ours": ("notes", b""),
    "an application's log": (
        "app.ndjson", b'{"op":"opened","producer":"","group":"archive","wall_us":1}\n',
    ),
    "a log that was cut": ("torn.ndjson", b'{"op":"opened","prod'),
}  # fmt: skip


def _nobodys(what: str, path: str, data: bytes, line: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        journals.others[path] = data
        return Effect(UNKNOWN, broken=[line])

    return Case(f"files: {what}", mutate, clients=frozenset())


_NOBODYS: dict[str, tuple[str, bytes, str]] = {
    "another program's log": (
        "other.ndjson", b'{"level":"info"}\n',
        "other.ndjson: neither a journal's segment nor an application's log",
    ),
    "an empty segment of nobody": (
        f"{'0' * 16}-{1:019}-{'0' * 64}.ndjson", b"", f"{'0' * 64}.ndjson: {_EDITED}",
    ),
    "a text among a client's segments": (
        "role=group/client=archive/date=2026-01-01/notes.ndjson", b"hello\n",
        "notes.ndjson: not a journal segment: the first line is not a header",
    ),
    "an empty file among a client's segments": (
        "role=producer/client=east/empty.ndjson", b"",
        "empty.ndjson: not a journal segment: the first line is not a header",
    ),
    "a segment of a client that left nothing else": (
        f"role=producer/client=north/{'0' * 16}-{1:019}-{'0' * 64}.ndjson", b"{}\n",
        f"producer north: {'0' * 16}-{1:019}-{'0' * 64}.ndjson: {_EDITED}",
    ),
}  # fmt: skip


def _irregular(what: str, make: Callable[[Path], object], line: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        journals.odd.append(make)
        return Effect(UNKNOWN, broken=[line])

    return Case(f"files: {what}", mutate, clients=frozenset())


def _with_a_pipe_alone(directory: Path) -> None:
    (directory / "role=producer/client=north").mkdir()
    os.mkfifo(directory / "role=producer/client=north/x.ndjson")


def _link(name: str, to: str) -> Callable[[Path], object]:
    return lambda directory: os.symlink(to, directory / name)


_IRREGULAR: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link that leads nowhere": (_link("lost.ndjson", "nowhere"), "lost.ndjson: not a file: a symbolic link"),
    "a link that leads to itself": (_link("self.ndjson", "self.ndjson"), "self.ndjson: not a file: a symbolic link"),
    "a link to a device": (_link("null.ndjson", "/dev/null"), "null.ndjson: not a file: a symbolic link"),
    "a link among a client's segments": (
        _link("role=group/client=archive/more.ndjson", "nowhere"),
        "(group archive): more.ndjson: not a file: a symbolic link, which is not followed",
    ),
    "a named pipe as a head": (
        lambda directory: os.mkfifo(directory / f"role=group/client=archive/head-{'1' * 16}.json"),
        f"(group archive): head-{'1' * 16}.json: not a file: a named pipe",
    ),
    "a named pipe of a client that left nothing else": (
        _with_a_pipe_alone,
        "producer north: x.ndjson: not a file: a named pipe",
    ),
    "a named pipe": (lambda directory: os.mkfifo(directory / "pipe.ndjson"), "pipe.ndjson: not a file: a named pipe"),
}  # fmt: skip


def _directories(what: str, make: Callable[[Path], object]) -> Case:
    def mutate(journals: Journals) -> Effect:
        journals.odd.append(make)
        return Effect(COMPLETE)

    return Case(f"directories: {what}", mutate, clients=frozenset())


def _made(path: str) -> Callable[[Path], object]:
    return lambda directory: (directory / path).mkdir(parents=True, exist_ok=True)


_DIRECTORIES: dict[str, Callable[[Path], object]] = {
    "an empty one": _made("empty"),
    "one that is named as a segment": _made("dir.ndjson"),
    "one of a day without rows": _made("role=group/client=archive/date=2020-01-01"),
    "one of a role that there is not": _made("role=reader/client=x"),
    "a link to an empty one": lambda directory: os.symlink("/var/empty", directory / "link"),
}


def _emptied(client: Id) -> Case:
    """Nothing of a client is left but its directory."""

    def mutate(journals: Journals) -> Effect:
        own = journals.clients.pop(client)
        journals.odd.append(_made(own.directory))
        effect = Effect(UNKNOWN, missing=[f"no journal of {named(client)}"], unjudged=True)
        enqueued = journals.about("enqueued", role="producer")
        effect.open |= enqueued - journals.about("published", role="producer")
        effect.streams = len(journals.about("enqueued", "delivered")) and 2
        return effect

    return Case(f"directories: that of {named(client)} is emptied", mutate, clients=frozenset(CLIENTS))


def _left_empty() -> Case:
    """Of a client that nobody names."""

    def mutate(journals: Journals) -> Effect:
        journals.odd.append(_made("role=producer/client=north/date=2020-01-01"))
        return Effect(UNKNOWN, missing=["no journal of producer north"])

    return Case("directories: that of a client that nobody names is empty", mutate, clients=frozenset())


def _renamed_directory(client: Id) -> Case:
    def mutate(journals: Journals) -> Effect:
        own = journals.clients.pop(client)
        lines = []
        for segment in own.segments:
            path = segment.path.replace(f"client={own.name}", "client=north")
            journals.others[path] = segment.data
            lines.append(
                f"{segment.name}: misplaced: it is among those of {own.role} north, but belongs to {named(client)}"
            )
        effect = Effect(UNKNOWN, missing=[f"no journal of {named(client)}"], broken=lines, unjudged=True)
        enqueued = journals.about("enqueued", role="producer")
        effect.open |= enqueued - journals.about("published", role="producer")
        return effect

    return Case(f"directories: that of {named(client)} has another name", mutate, clients=frozenset(CLIENTS))


def _other_date(client: Id) -> Case:
    def mutate(journals: Journals) -> Effect:
        for segment in journals.client(*client).segments:
            segment.directory = re.sub(r"date=.*", "date=1999-12-31", segment.directory)
        return Effect(COMPLETE)

    return Case(
        f"directories: the day of {named(client)} has another name", mutate, clients=frozenset({client})
    )


def _everything_gone() -> Case:
    def mutate(journals: Journals) -> Effect:
        journals.clients.clear()
        return Effect(UNKNOWN, missing=["there are no journals"], streams=0)

    return Case("directories: all are gone", mutate)


def _role_gone(role: str) -> Case:
    def mutate(journals: Journals) -> Effect:
        gone = [each for each in journals.clients.values() if each.role == role]
        for each in gone:
            del journals.clients[each.id]
        missing = [f"no journal of {role} {each.name}" for each in gone]
        return Effect(UNKNOWN, missing=missing, unjudged=True)

    return Case(f"directories: that of all {role}s is gone", mutate)


def _cases() -> Iterator[Case]:
    of_all: list[Callable[[Id], Case]] = [
        *(partial(_damaged, where=where, what="a bit is flipped") for where in _PLACES),
        *(partial(_damaged, where="middle", what=what) for what in list(_DAMAGE)[1:]),
        *(partial(_recoded, what=what, change=change) for what, change in _CODINGS.items()),
        *(partial(_harmless_value, what=what, change=of_row) for what, of_row in _HARMLESS_VALUES.items()),
        *(partial(_removed, where=where) for where in _PLACES),
        *(partial(_doubled, where=where) for where in ("copy/{path}", "{name}")),
        *(partial(_elsewhere, where=where) for where in ("{name}", "a/b/c/{name}")),
        _other_date, _emptied, _renamed_directory,
    ]  # fmt: skip
    yield from spread(*(map(make, CLIENTS) for make in of_all))
    for number, (name, values) in enumerate(_VALUES.items()):
        client = CLIENTS[number % len(CLIENTS)]
        kind = "enqueued" if client[0] == "producer" else "delivered"
        for at, value in enumerate(values):
            yield replace(_unreadable(client, kind, name, value), full=at % 3 > 0)
    for number, (name, other, line) in enumerate(_HEADERS):
        yield replace(_header(("group", "archive"), name, other, line), full=number % 2 > 0)
    yield from spread(
        _misplaced(one, other) for one, other in zip(CLIENTS, (*CLIENTS[1:], CLIENTS[0]), strict=True)
    )
    for what, (name, line) in _NAMES.items():
        yield _renamed(("producer", "west"), what, name, line)
    for what, (path, data) in _BESIDE.items():
        yield _beside(what, path, data)
    for what, (path, data, line) in _NOBODYS.items():
        yield _nobodys(what, path, data, line)
    for what, (make, line) in _IRREGULAR.items():
        yield _irregular(what, make, line)
    for what, make in _DIRECTORIES.items():
        yield _directories(what, make)
    yield _left_empty()
    yield _everything_gone()
    yield _role_gone("producer")
    yield _role_gone("group")


CASES = list(_cases())
