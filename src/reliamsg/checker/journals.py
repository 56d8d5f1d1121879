"""Clients' journals, read from files and segments.

A chain is one history of a client's file: the rows of its boots in order, from segments and from the file itself. A
chain is sound if no row is missing (`lsn` counts from 1 without a hole), each boot begins with ``opened``, and the last
boot ended with ``closed``.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

from reliamsg.checker.checkpoints import (
    UNVERIFIED,
    Choice,
    Covered,
    End,
    check_checkpoint,
    choose,
    claims_to_be_checkpoint,
)
from reliamsg.checker.lineage import Piece, lines, misfits, rows_of
from reliamsg.checker.segments import Sound, check_head, check_segment, claims_to_be_segment, owner_by_path
from reliamsg.checker.signatures import FOREIGN_KEY, NOT_SIGNED, WRONG
from reliamsg.checker.spans import Spans
from reliamsg.errors import JournalTargetError, StoreCorrupt
from reliamsg.export.target import SUFFIX, DirectoryTarget, Target, is_checkpoint_name, open_target
from reliamsg.files import empty_directories, irregular, read_regular, special_kind
from reliamsg.keys import KeyRing
from reliamsg.store.database import reading
from reliamsg.store.head import Head, boot_of_head
from reliamsg.store.journal import JournalRow, read_journal
from reliamsg.store.segment import Name, SegmentError, parse_name
from reliamsg.trust import Trust

__all__ = [
    "FOREVER_US", "Boot", "Chain", "Found", "Role", "collect", "collect_path", "find_journals", "is_other_database",
    "mark_abandoned", "merge_copies", "read_chain",
]  # fmt: skip

Role = Literal["producer", "group"]

_ROLE: dict[int, Role] = {0x524D4F31: "producer", 0x524D4931: "group"}
FOREVER_US = 2**63 - 1
"""Later than every time, in µs since 1970."""
_HEAD_BYTES = 4096
"""Longer than any segment's first line: a client's name has at most 255 bytes."""


@dataclass(frozen=True)
class Boot:
    """One opening of a file."""

    name: str
    opened: dict[str, Any]
    """The detail of its ``opened`` row."""
    rows: Sequence[JournalRow]
    end: End | None = None
    """The end of those rows that a checkpoint covers, of which the last may have become part of others."""

    @property
    def last_lsn(self) -> int:
        """The number of its last row."""
        return max(self.rows[-1].lsn, 0 if self.end is None else self.end.last_lsn)

    @property
    def begun_us(self) -> int:
        """The time at which its last row began."""
        if self.end is not None and self.end.last_lsn > self.rows[-1].lsn:
            return self.end.begun_us
        return self.rows[-1].wall_us

    @property
    def changed_us(self) -> int:
        """The latest time in any row."""
        times = (max(row.wall_us, row.wall_last_us) for row in self.rows)
        return max(0 if self.end is None else self.end.changed_us, *times)

    @cached_property
    def closed(self) -> bool:
        """Whether no row can follow in it: it was closed, or its file retired."""
        return any(row.kind in ("closed", "retired") for row in self.rows)


@dataclass(frozen=True)
class Chain:
    """One history of a client's journal."""

    role: Role
    client: str
    source: str
    rows: Sequence[JournalRow]
    problems: tuple[str, ...] = ()
    """Why rows may be missing, as found when they were read."""
    to_the_end: bool = True
    """Whether the client's file itself was read, so that there are no further rows. If only segments were read, later
    rows may still be in the file."""
    segments: int = 0
    """The number of segments that it was read from."""
    further: tuple[str, ...] = ()
    """Why rows may be missing, as was found by comparing it with others."""
    heads: tuple[Head, ...] = ()
    """What the client stated while it was idle, in order: heads that name one of the segments, or one of the boots. The
    last may name a row that is not there (yet)."""
    old_lsn: int = 0
    """Rows up to this one are of version 1 of the format."""
    digests: tuple[str, ...] = ()
    """Of its segments, in order."""
    continues: bool = False
    """Whether a head of the client names a later row of this chain, or a boot that no piece has."""
    gone: bool = False
    """Whether its client was declared as retired, and the journals bear it out: no row can follow."""
    covered: Covered | None = None
    """The checkpoint with which it begins."""

    @cached_property
    def boots(self) -> Sequence[Boot]:
        """The rows by opening, in order."""
        ends = {} if self.covered is None else self.covered.ends
        return [
            Boot(
                rows[0].boot, (rows[0].detail or {}) if rows[0].kind == "opened" else {}, rows,
                ends.get((rows[0].boot, rows[0].lsn)),
            )
            for rows in _split(self.rows)
        ]  # fmt: skip

    @property
    def row_count(self) -> int:
        """The number of rows, each that a checkpoint covers included."""
        if self.covered is None:
            return len(self.rows)
        return self.covered.last_lsn + sum(row.lsn > self.covered.last_lsn for row in self.rows)

    @cached_property
    def broken(self) -> Sequence[str]:
        """Why rows may be missing; empty if none is."""
        whole = 0 if self.covered is None else self.covered.last_lsn
        return [*self.problems, *_problems_of(self.rows, whole), *self.further]

    @property
    def retired(self) -> bool:
        """Whether its file was retired, or its client is gone: no row can follow."""
        return self.gone or (bool(self.rows) and self.rows[-1].kind == "retired")

    @property
    def head(self) -> Head | None:
        """The latest of its heads."""
        return self.heads[-1] if self.heads else None

    @property
    def finished(self) -> bool:
        """Whether no row can follow: the last boot was closed."""
        return bool(self.boots) and self.boots[-1].closed

    @property
    def end_unknown(self) -> bool:
        """Whether rows may follow that have not arrived."""
        return not (self.to_the_end or self.finished)

    @property
    def sound(self) -> bool:
        """Whether everything that happened is in the chain."""
        return not self.broken and self.finished

    def is_whole(self, boot: Boot) -> bool:
        """Whether a boot's journal is complete. Rows can grow, so one row may depend on later ones: a boot that
        continues in segments that have not arrived yet proves nothing."""
        return not self.broken and (not self.end_unknown or boot is not self.boots[-1])

    @cached_property
    def proven_us(self) -> int:
        """The time through which it is proven, in µs since 1970 by the client's clock, whatever may be missing before
        its end.

        A row counts from its beginning, and rows begin in the order of their numbers. So what follows the last row
        began after it, and everything that began by then is there. The last boot of a closed file is there to its end.
        Nothing follows in a retired file. A head states when nothing had followed its row.
        """
        if not self.boots:
            return 0
        if self.retired:
            return FOREVER_US
        last = self.boots[-1]
        tip = last.name, last.last_lsn
        idle = max((head.wall_us for head in self.heads if (head.boot, head.lsn) == tip), default=0)
        return max(idle, last.begun_us if self.end_unknown else last.changed_us)

    def reaches(self, wall_us: int | None) -> bool:
        """Whether everything that follows is later than that time, by the client's clock."""
        return wall_us is not None and self.proven_us >= wall_us


def _split(rows: Iterable[JournalRow]) -> list[list[JournalRow]]:
    """Rows in a row that have the same boot."""
    found: list[list[JournalRow]] = []
    for row in rows:
        if not found or found[-1][0].boot != row.boot:
            found.append([])
        found[-1].append(row)
    return found


def _problems_of(rows: Sequence[JournalRow], whole: int = 0) -> list[str]:
    """Rows that are missing or out of place, according to the rows themselves. Up to `whole`, none is missing."""
    if not rows:
        return ["it holds no row"]
    truncated, found = _truncated(rows)
    expected, boot = 1, None
    known: set[str] = set()
    for row in rows:
        if row.lsn <= whole:
            expected = row.lsn
        elif expected <= whole:
            expected = whole + 1
        if row.lsn > expected:
            missing = truncated.lacking(expected, row.lsn - 1)
            found += [f"rows {first} to {last} are missing" for first, last in missing]
        elif row.lsn < expected:
            found.append(f"row {row.lsn} comes after row {expected - 1}")
        expected = row.lsn + 1
        if row.boot != boot:
            if row.boot in known:
                found.append(f"boot {row.boot} continues at row {row.lsn}, after another one began")
            if row.kind != "opened":
                found.append(f"boot {row.boot} begins with {row.kind!r} at row {row.lsn}, not with 'opened'")
            known.add(row.boot)
            boot = row.boot
    return found


def _truncated(rows: Iterable[JournalRow]) -> tuple[Spans, list[str]]:
    """The rows that the client reports as discarded, and a line for each report."""
    truncated, found = Spans(), []
    for row in rows:
        if row.kind != "truncated":
            continue
        detail = row.detail or {}
        first, last, count = (detail.get(name) for name in ("first_lsn", "last_lsn", "rows"))
        if isinstance(first, int) and isinstance(last, int):
            truncated.add(first, last)
            found.append(f"rows {first} to {last} were discarded by the client: its target was unreachable")
        else:
            number = count if isinstance(count, int) else "some"
            found.append(f"{number} rows were discarded by the client: its file could not be written")
    return truncated, found


def read_chain(path: str | os.PathLike[str]) -> Chain:
    """Read the journal in an outbox or inbox. Does not change the file, whose owner may be running.

    The chain lacks rows that have left the file in segments; use :func:`collect` to have them joined. A file that can't
    be read to its end results in a broken chain with the rows up to there. Raises :class:`StoreCorrupt` if the file is
    neither an outbox nor an inbox.
    """
    return _chain(_read_file(path), [], [])


@dataclass(frozen=True)
class Found:
    """All journals below a directory or URL."""

    chains: Sequence[Chain] = ()
    problems: Sequence[str] = ()
    """A line for each unusable file whose client left nothing else."""
    duplicated: int = 0
    """Further copies of segments that were found already."""
    others: Sequence[str] = ()
    """Paths of files that end in ``.ndjson`` and are not segments."""
    checkpoints: int = 0
    """The number of valid checkpoints."""
    emptied: Set[tuple[str, str]] = frozenset()
    """Role and name of clients that have an empty directory, and no journal."""

    def not_signed_by(self, role: str, client: str) -> list[str]:
        """The lines about segments and heads of a client that it has not signed."""
        own = [
            line
            for chain in self.chains
            if (chain.role, chain.client) == (role, client)
            for line in chain.broken
        ]
        own += [line for line in self.problems if line.startswith(f"{role} {client}: ")]
        return [line for line in own if line.endswith((NOT_SIGNED, FOREIGN_KEY, WRONG))]


def collect(
    directory: str | os.PathLike[str], trust: Trust | None = None, checkpoint_keys: KeyRing | None = None
) -> Found:
    """Read every outbox and inbox (``*.db``), every segment and every checkpoint below `directory`. With
    `checkpoint_keys`, a checkpoint that none of them signed is damaged.

    Skips databases of other kinds. Does not follow symbolic links: they are problems, as is anything that is not a
    regular file. With `trust`, signatures are checked, and outboxes and inboxes are problems, since they have none.
    """
    root = Path(directory)
    collected = _Collected(trust, checkpoint_keys)
    # Files before segments: what leaves a running client's file meanwhile is then found twice, rather than never.
    for path in sorted(root.rglob("*.db")):
        if path.is_symlink() or not path.is_file() or is_other_database(path):
            continue
        try:
            collected.add_file(path)
        except StoreCorrupt as error:
            collected.problems.append(str(error))
    collected.add_segments(DirectoryTarget(root), root.as_posix())
    known = [*collected.problems, *(text for each in collected.clients.values() for text in each.damaged)]
    collected.problems += [
        f"{path}: not a file: {what}"
        for path, what in irregular(root, (SUFFIX, ".db", ".parquet"))
        if (not path.endswith(".parquet") or claims_to_be_checkpoint(path))
        and not any(os.path.basename(path) in text for text in known)
    ]
    empty = {owner_by_path(f"{os.path.abspath(each)}/") for each in empty_directories(root)}
    found = collected.found()
    owners = {(chain.role, chain.client) for chain in found.chains}
    return replace(found, emptied={owner for owner in empty if owner is not None} - owners)


def collect_path(
    path: str | os.PathLike[str], trust: Trust | None = None, checkpoint_keys: KeyRing | None = None
) -> Found:
    """What :func:`collect` finds in a directory; or the segments and checkpoints below an fsspec URL; or the journal of
    one file.

    Raises :class:`JournalTargetError` if it can't be read, :class:`ConfigError` if there is no package for a URL,
    and :class:`StoreCorrupt` for a file that is neither a segment nor an outbox or inbox.
    """
    text = os.fspath(path)
    collected = _Collected(trust, checkpoint_keys)
    parent, _, name = text.rpartition("/")
    if text.endswith(SUFFIX) or is_checkpoint_name(name):
        place = open_target(parent or ("/" if text.startswith("/") else "."))
        add = collected.add_segment if text.endswith(SUFFIX) else collected.add_checkpoint
        add(f"{parent}/{name}" if parent else name, place.read(name))
        return collected.found()
    place = open_target(path)
    if not isinstance(place, DirectoryTarget):
        collected.add_segments(place, place.shown.rstrip("/"))
    elif Path(place.shown).is_dir():
        return collect(place.shown, trust, checkpoint_keys)
    else:
        collected.add_file(place.shown)
    return collected.found()


def find_journals(directory: str | os.PathLike[str]) -> tuple[Sequence[Chain], Sequence[str]]:
    """The chains that :func:`collect` finds, and a line for each unusable file."""
    found = collect(directory)
    return found.chains, found.problems


@dataclass(frozen=True)
class _File:
    """The content of an outbox or inbox."""

    role: Role
    client: str
    piece: Piece
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Client:
    """Everything that was found of one client."""

    files: list[_File] = field(default_factory=list)
    segments: dict[str, Piece] = field(default_factory=dict)
    """By digest."""
    damaged: list[str] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    unsigned: list[Sound] = field(default_factory=list)
    """Unsigned segments, of which an operator may accept some."""
    unsigned_heads: list[tuple[str, Head]] = field(default_factory=list)
    """With their paths."""
    checkpoints: list[Covered] = field(default_factory=list)
    choice: list[Choice] = field(default_factory=list)
    """One at most: which of its checkpoints is used."""

    def chains(self, role: Role, name: str) -> list[Chain]:
        """Its chains: several if its file was copied or restored at some time."""
        used = self.choice[0].used if self.choice else None
        beginning = [] if used is None else [_piece_of(used)]
        own = self.files if used is None else list(_behind(used, self.files))
        files = {id(file.piece): file for file in own}
        every = lines([*beginning, *self.segments.values(), *(file.piece for file in own)])
        boots = {row.boot for line in every for piece in line for row in piece.rows}
        found = []
        for number, line in enumerate(every):
            last = files.get(id(line[-1])) or _File(role, name, line[-1])
            problems = [
                problem for piece in line[:-1] if id(piece) in files for problem in files[id(piece)].problems
            ]
            chain = _chain(last, line[:-1], problems, alone=len(every) == 1)
            # It is unknown to which chain the rows of damaged segments belong.
            damaged = (
                list(dict.fromkeys(self.damaged))
                if number == 0
                else ["segments of this client are damaged"] * bool(self.damaged)
            )
            heads = _heads_of(line, self.heads)
            found.append(
                replace(
                    chain,
                    further=(*chain.further, *damaged),
                    heads=heads,
                    digests=tuple(piece.digest for piece in line if piece.digest is not None),
                    continues=_continues(line, self.heads, boots),
                )
            )
        return found


def _piece_of(used: Covered) -> Piece:
    return Piece(used.path, used.digests[-1], None, 1, used.rows, used.old_lsn, used)


def _behind(used: Covered, files: Iterable[_File]) -> Iterator[_File]:
    """What files hold behind a checkpoint. Not their rows that it covers, and not copies that end before it."""
    for file in files:
        piece = file.piece
        if piece.first_lsn > used.last_lsn:
            yield file
            continue
        covered = [row for row in piece.rows if row.lsn <= used.last_lsn]
        rest = [row for row in piece.rows if row.lsn > used.last_lsn]
        problems = file.problems
        if not all(_is_covered(used, row) for row in covered):
            problems = (
                *problems,
                f"it forks off before the end of {used.name}, so its rows can't be compared",
            )
        elif covered and not rest and covered[-1].lsn < used.last_lsn:
            continue
        yield replace(
            file,
            piece=replace(piece, parent=used.digests[-1], first_lsn=used.last_lsn + 1, rows=rest),
            problems=problems,
        )


def _is_covered(used: Covered, row: JournalRow) -> bool:
    return any(
        boot == row.boot and first <= row.lsn <= end.last_lsn for (boot, first), end in used.ends.items()
    )


class _Collected:
    """The findings so far."""

    def __init__(self, trust: Trust | None = None, checkpoint_keys: KeyRing | None = None) -> None:
        self._trust = trust
        self._keys = checkpoint_keys
        self._checkpoints = 0
        self.clients: dict[tuple[Role, str], _Client] = {}
        self.problems: list[str] = []
        self._duplicated = 0
        self._others: list[str] = []

    def add_file(self, path: str | os.PathLike[str]) -> None:
        """Add an outbox or inbox. Raises :class:`StoreCorrupt` if it is neither."""
        file = _read_file(path)
        if self._trust is not None:
            self.problems.append(f"{path}: {NOT_SIGNED}: only exported journals are")
        else:
            self._client(file.role, file.client).files.append(file)

    def add_segments(self, place: Target, root: str) -> None:
        """Add all segments at a target; `root` is shown before their paths."""
        paths = list(place.paths(heads=True))
        for path in paths:
            full = f"{root}/{path}"
            if is_checkpoint_name(path.rpartition("/")[2]) and claims_to_be_checkpoint(full):
                try:
                    self.add_checkpoint(full, place.read(path))
                except (JournalTargetError, OSError) as error:
                    self._add_damaged(full, f"it can't be read: {error}")
        unread = self._choose([f"{root}/{path}" for path in paths])
        for path in paths:
            full = f"{root}/{path}"
            if full in unread or is_checkpoint_name(path.rpartition("/")[2]):
                continue
            is_head = boot_of_head(path.rpartition("/")[2]) is not None
            try:
                if isinstance(place, DirectoryTarget) and (what := special_kind(os.lstat(full).st_mode)):
                    self._add_damaged(full, f"not a file: {what}")
                    continue
                data = place.read(path) if is_head else _segment_bytes(place, path, full)
            except (JournalTargetError, OSError) as error:
                self._add_damaged(full, f"it can't be read: {error}")
                continue
            if data is None:
                self._others.append(full)
            elif is_head:
                self._add_head(full, data)
            else:
                self.add_segment(full, data)

    def add_checkpoint(self, path: str, data: bytes) -> None:
        """Add a checkpoint, damaged or not."""
        try:
            found = check_checkpoint(path, data, self._keys)
            if self._keys is None and self._trust is not None:
                raise SegmentError(UNVERIFIED)
        except SegmentError as error:
            self._add_damaged(path, str(error))
        else:
            self._checkpoints += 1
            self._client(cast(Role, found.role), found.client).checkpoints.append(found)

    def _choose(self, paths: Iterable[str]) -> set[str]:
        """Choose each client's checkpoint; returns the paths of segments that are not read."""
        segments: dict[tuple[str, str], list[tuple[str, Name]]] = {}
        for path in paths:
            owner, name = owner_by_path(path), parse_name(path.rpartition("/")[2])
            if owner is not None and name is not None:
                segments.setdefault(owner, []).append((path, name))
        unread: set[str] = set()
        for owner, client in self.clients.items():
            choice = choose(client.checkpoints, segments.get(owner, []))
            client.choice[:] = [choice]
            client.damaged.extend(choice.problems)
            self._duplicated += choice.duplicated
            unread |= choice.unread
        return unread

    def _add_head(self, path: str, data: bytes) -> None:
        try:
            head, signed = check_head(path, data, self._trust)
        except SegmentError as error:
            self._add_damaged(path, str(error))
            return
        client = self._client(head.role, head.client)
        if signed or self._trust is None:
            client.heads.append(head)
        else:
            client.unsigned_heads.append((path, head))

    def add_segment(self, path: str, data: bytes) -> None:
        """Add a segment, damaged or not."""
        try:
            segment = check_segment(path, data, self._trust)
        except SegmentError as error:
            self._add_damaged(path, str(error))
            return
        if segment.signed or self._trust is None:
            self._add_sound(segment)
        else:
            self._client(segment.header.role, segment.header.client).unsigned.append(segment)

    def _add_sound(self, segment: Sound) -> None:
        header = segment.header
        client = self._client(header.role, header.client)
        known = client.segments
        used = client.choice[0].used if client.choice else None
        if segment.digest in known or (used is not None and segment.digest in used.digests):
            self._duplicated += 1
        elif used is not None and header.first_lsn <= used.last_lsn:
            # Those in the client's directory were compared before.
            self._add_damaged(
                segment.path,
                f"it forks off before the end of {used.name}, and is not in the client's directory, so its rows"
                " aren't compared",
            )
        else:
            known[segment.digest] = Piece(
                segment.path,
                segment.digest,
                header.parent,
                header.first_lsn,
                segment.rows,
                header.last_lsn if header.version < 2 else 0,
            )

    def _judge_unsigned(self, role: Role, name: str, client: _Client) -> None:
        """Add the unsigned segments that an operator accepts: those that he names, and all before them."""
        parents = {segment.digest: segment.header.parent for segment in client.unsigned}
        parents |= {digest: piece.parent for digest, piece in client.segments.items()}
        accepted: set[str] = set()
        for named in self._trust.accepts_unsigned(role, name) if self._trust is not None else ():
            digest: str | None = named
            while digest is not None and digest in parents and digest not in accepted:
                accepted.add(digest)
                digest = parents[digest]
        for segment in client.unsigned:
            if segment.digest in accepted:
                self._add_sound(segment)
            else:
                self._add_damaged(segment.path, NOT_SIGNED)
        known = {segment.digest for segment in client.unsigned} & accepted
        for path, head in client.unsigned_heads:
            if head.digest not in known:  # others are remnants, and state nothing
                self._add_damaged(path, NOT_SIGNED)

    def found(self) -> Found:
        """The chains of all clients."""
        for (role, name), client in list(self.clients.items()):
            self._judge_unsigned(role, name, client)
        chains: list[Chain] = []
        problems = list(self.problems)
        for client in self.clients.values():
            if client.checkpoints and not client.choice:
                client.choice.append(choose(client.checkpoints, []))
        for (role, name), client in sorted(self.clients.items()):
            own = client.chains(role, name)
            chains += own
            if not own:
                alone = [
                    f"head-{head.boot}.json: there is no segment of this client" for head in client.heads
                ]
                problems += [f"{role} {name}: {line}" for line in (*client.damaged, *dict.fromkeys(alone))]
        return Found(chains, problems, self._duplicated, self._others, self._checkpoints)

    def _client(self, role: Role, name: str) -> _Client:
        return self.clients.setdefault((role, name), _Client())

    def _add_damaged(self, path: str, why: str) -> None:
        """A segment that can't be used; its directories name its client."""
        owner = owner_by_path(path)
        if owner is None:
            self.problems.append(f"{path}: {why}")
        else:
            own = self._client(cast(Role, owner[0]), owner[1])
            own.damaged.append(f"{path.rpartition('/')[2]}: {why}")


def _heads_of(line: Sequence[Piece], heads: Iterable[Head]) -> tuple[Head, ...]:
    """The heads of a client that belong to this line."""
    digests = {digest for piece in line for digest in piece.digests}
    boots = {boot for piece in line for boot in piece.boots}
    own = {head for head in heads if head.digest in digests or head.boot in boots}
    return tuple(sorted(own, key=lambda head: (head.lsn, head.wall_us, head.boot)))


def _continues(line: Sequence[Piece], heads: Iterable[Head], known: Set[str]) -> bool:
    """Whether a head names a later row of this line, or a boot that is not among those `known` of the client."""
    boots = {row.boot for piece in line for row in piece.rows}
    end = max((piece.last_lsn for piece in line), default=0)
    return any(head.boot not in known or (head.boot in boots and head.lsn > end) for head in heads)


def _read_file(path: str | os.PathLike[str]) -> _File:
    rows: list[JournalRow] = []
    problems: list[str] = []
    with reading(path) as connection:
        # In one transaction: a running owner removes rows together with noting that they were exported.
        connection.execute("BEGIN")
        role = _ROLE[connection.execute("PRAGMA application_id").fetchone()[0]]
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        try:
            # One by one, so that rows before damage in the middle are not lost.
            for row in read_journal(connection):
                rows.append(row)
        except (sqlite3.Error, ValueError) as error:
            problems.append(f"it can't be read beyond row {rows[-1].lsn if rows else 0}: {error}")
    if not all(isinstance(value, str) for value in meta.values()):
        raise StoreCorrupt(f"{path}: not a usable outbox or inbox: its metadata is damaged")
    try:
        first = int(meta.get("journal_exported_lsn", "0")) + 1
    except ValueError:
        first = 1
        problems.append("it does not record how much of its journal was exported")
    if rows and first == 1:
        first = rows[0].lsn
    v2_lsn = meta.get("journal_v2_lsn", "")
    old_lsn = int(v2_lsn) - 1 if v2_lsn.isdecimal() else rows[-1].lsn if rows else 0
    piece = Piece(str(path), None, meta.get("journal_parent"), first, rows, old_lsn=old_lsn)
    return _File(role, meta.get("owner", ""), piece, tuple(problems))


def _segment_bytes(place: Target, path: str, full: str) -> bytes | None:
    """The bytes of a file that is, or should be, a segment; None for other files, of which little is read."""
    if isinstance(place, DirectoryTarget):
        head = read_regular(full, _HEAD_BYTES).partition(b"\n")[0]
        return place.read(path) if claims_to_be_segment(full, head) else None
    data = place.read(path)
    return data if claims_to_be_segment(full, data) else None


def _chain(end_of_line: _File, before: list[Piece], problems: list[str], alone: bool = True) -> Chain:
    """The chain of a line of pieces that ends with that file. `alone`: the client has no other line."""
    last = end_of_line.piece
    line = [*before, last]
    rows = rows_of(line)
    source = last.source
    if last.digest is not None:
        directory = source.rpartition("/date=")[0] or source.rpartition("/")[0]
        source = directory if alone else f"{directory} up to {source.rpartition('/')[2]}"
    end = rows[-1].lsn if rows else 0
    chain = Chain(
        end_of_line.role, end_of_line.client, source, rows, (*problems, *end_of_line.problems, *misfits(line)),
        to_the_end=last.digest is None, segments=sum(len(piece.digests) for piece in line),
        old_lsn=max(piece.old_lsn for piece in line), covered=line[0].covered,
    )  # fmt: skip
    if last.covered is None and last.last_lsn > end:
        chain = replace(chain, further=(f"rows {end + 1} to {last.last_lsn} are missing",))
    return chain


def merge_copies(chains: Iterable[Chain]) -> list[Chain]:
    """The chains without those that are an older state of another one, such as a backup beside its original."""
    kept: list[Chain] = []
    for chain in sorted(chains, key=lambda c: (c.role, c.client, -c.row_count, not c.to_the_end)):
        if not any(_is_older_copy(chain, other) for other in kept):
            kept.append(chain)
    return kept


def mark_abandoned(chains: Iterable[Chain]) -> list[Chain]:
    """The chains, of which those of inboxes that took over from an inbox without a journal have a problem more."""
    chains = list(chains)
    known = {
        (chain.client, boot.opened.get("inbox"))
        for chain in chains if chain.role == "group" for boot in chain.boots
    }  # fmt: skip
    return [_with_abandoned(chain, known) if chain.role == "group" else chain for chain in chains]


def _with_abandoned(chain: Chain, known: set[tuple[str, Any]]) -> Chain:
    """`known`: group and name of every inbox with a journal."""
    abandoned = dict.fromkeys(
        f"inbox {before}, from which it took over, left no journal"
        for row in chain.rows
        if row.kind == "took_over"
        and isinstance(before := (row.detail or {}).get("from"), str)
        and before
        and (chain.client, before) not in known
    )
    fresh = [problem for problem in abandoned if problem not in chain.broken]
    return replace(chain, further=(*chain.further, *fresh)) if fresh else chain


def _is_older_copy(chain: Chain, other: Chain) -> bool:
    """Whether every row of `chain` is in `other`, unchanged or extended."""
    if (chain.role, chain.client) != (other.role, other.client) or not chain.rows:
        return False
    rows = {(row.boot, row.lsn): row for row in other.rows}
    return all(
        (twin := rows.get((row.boot, row.lsn))) is not None
        and (twin.kind, twin.first) == (row.kind, row.first)
        and twin.last >= row.last
        for row in chain.rows
    )


def is_other_database(path: Path) -> bool:
    """Whether a file is a readable SQLite database, but neither an outbox nor an inbox."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return False
    try:
        return connection.execute("PRAGMA application_id").fetchone()[0] not in _ROLE
    except sqlite3.Error:
        return False
    finally:
        connection.close()
