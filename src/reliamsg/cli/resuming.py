"""``pub --resume``: continues a file where an earlier run stopped, however it stopped.

What was published is known to the outbox alone, which stores the messages durably. It numbers them from 1 in each epoch
of a stream, and its chain keeps the highest number of each epoch, with the incarnation of the opening that stored it.
The chain stays when the messages are gone, until later openings have stored more. So the number of lines that an
opening has stored is a sum over the chain.

A file beside the outbox, ``OUTBOX.resume``, has for each topic and input what the latest opening started from: its
incarnation, the position in the input, and the size and digest of the input. It is written before the opening publishes
its first line. Whenever the process dies, the position is then that of the file plus what the opening has stored; until
the file is replaced, that of the file before, plus what the opening before has stored.
"""

from __future__ import annotations

import hashlib
import os
import stat

import msgspec

from reliamsg.cli.lines import LineReader
from reliamsg.cli.resume_file import ResumeFile
from reliamsg.cli.signals import StopRequest
from reliamsg.cli.status import Failure, Status, counted

__all__ = ["Resumable"]

_CHUNK = 1024 * 1024


class _Start(msgspec.Struct, frozen=True):
    """What an opening of the outbox started from."""

    topic: str
    file: str
    size: int
    """The part of the input that the run publishes: what there was when it started."""
    sha256: str
    """Of this part."""
    lines: int
    """Lines that were published before."""
    offset: int
    """Where the next one starts."""
    incarnation: str | None = None
    """None if nothing was published since: the run has ended, and this is where."""
    epoch: int = 0
    """The epoch of the opening, unless it was renumbered later."""
    lsn: int = 0
    """The newest journal row then, not before that of the opening itself."""


class _Starts(msgspec.Struct, frozen=True):
    inputs: list[_Start]


class _Outbox(msgspec.Struct, frozen=True):
    """What the outbox says of a topic, as of one commit."""

    incarnation: str
    epoch: int
    lsn: int
    chain: list[tuple[int, str, int]]
    """Epoch, incarnation and highest number of each non-empty epoch, oldest first."""


class Resumable:
    """The position in an input. `descriptor` is open for reading `path`.

    Raises :class:`Failure` if it is not a regular file.
    """

    def __init__(self, descriptor: int, path: str, outbox: str, topic: str) -> None:
        self._lines = 0
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Failure(
                Status.USAGE,
                f"{path}: --resume needs a regular file, which can be read again from any position",
            )
        self._descriptor, self._path, self._topic = descriptor, path, topic
        self._outbox = outbox
        self._file = ResumeFile(outbox, _Starts)
        self._start = _Start(topic, os.path.realpath(path), 0, hashlib.sha256().hexdigest(), 0, 0)

    @property
    def result(self) -> dict[str, int]:
        """What to report: the number of lines that earlier runs have published, known from :meth:`begin` on."""
        return {"resumed_after": self._lines}

    def begin(self, stop: StopRequest) -> LineReader:
        """The lines that are not published yet, of what is in the input now. Call this once the producer is open, and
        before it publishes anything.

        Raises :class:`Failure` if the position can't be known for certain.
        """
        known = self._load()
        before = next((one for one in known if self._is_mine(one)), self._start)
        size = os.fstat(self._descriptor).st_size
        digest, sha256 = self._digests(before.size, size)
        if size < before.size or digest != before.sha256:
            raise Failure(
                Status.DATA,
                f"{self._path}: this is not the file of which {before.lines:,} or more lines were published: it was"
                " changed; if it is another one, give it another name",
            )
        found = self._read_outbox()
        lines, offset = before.lines, before.offset
        if before.incarnation is not None:
            stored = self._stored(before, found)
            offset = self._after(stored, offset, before.size)
            lines += stored
        offset = self._whole_line(lines, offset, size)
        self._start = _Start(
            self._topic, before.file, size, sha256, lines, offset, found.incarnation, found.epoch, found.lsn
        )
        self._save()
        self._lines = lines
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        return LineReader(self._descriptor, stop, size - offset, lines)

    def finish(self, accepted: int, everything: bool) -> None:
        """The run has ended in an orderly way, with this number of lines stored: note it, so that the outbox need not
        be asked again."""
        start = self._start
        offset = start.size if everything else self._after(accepted, start.offset, start.size)
        self._start = msgspec.structs.replace(
            start, lines=start.lines + accepted, offset=offset, incarnation=None, epoch=0, lsn=0
        )
        self._save()

    # -- the outbox -------------------------------------------------------------------------------------------

    def _read_outbox(self) -> _Outbox:
        from reliamsg.store.database import get_meta, reading

        with reading(self._outbox, "outbox") as connection:
            connection.execute("BEGIN")
            chain = connection.execute(
                "SELECT c.epoch, c.incarnation, c.last FROM chain AS c JOIN stream AS s ON s.id = c.stream_id"
                " WHERE s.topic = ? AND s.part = 0 ORDER BY c.epoch",
                (self._topic,),
            ).fetchall()
            lsn = connection.execute(
                "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0)"
            ).fetchone()[0]
            return _Outbox(
                get_meta(connection, "incarnation", ""), int(get_meta(connection, "epoch", "0")), lsn, chain
            )

    def _stored(self, start: _Start, found: _Outbox) -> int:
        """The number of lines that an opening has stored."""
        own = [(epoch, last) for epoch, incarnation, last in found.chain if incarnation == start.incarnation]
        others = [epoch for epoch, incarnation, _ in found.chain if incarnation != start.incarnation]
        if own:
            # The oldest epochs of a chain are forgotten in the end. Here, none was.
            known = own[0][0] == start.epoch or any(epoch < own[0][0] for epoch in others)
        else:
            known = self._was_open(start, found) and (
                not others or any(epoch < start.epoch for epoch in others)
            )
        if not known:
            raise Failure(
                Status.DATA,
                f"{self._path}: {start.lines:,} or more lines were published, but {self._outbox} can't tell how many:"
                " it is another file than then, an old copy, or has forgotten; see what arrived, and publish the rest"
                " as another file",
            )
        return sum(last for _, last in own)

    def _was_open(self, start: _Start, found: _Outbox) -> bool:
        """Whether this is the outbox of an opening that stored nothing, as far as its journal can tell: rows that were
        exported are not in it."""
        from reliamsg.store.database import reading

        with reading(self._outbox, "outbox") as connection:
            opened = connection.execute(
                "SELECT incarnation FROM journal WHERE kind = 'opened' AND lsn <= ? ORDER BY lsn DESC LIMIT 1",
                (start.lsn,),
            ).fetchone()
        return found.lsn > start.lsn and (opened is None or opened[0] == start.incarnation)

    # -- the input --------------------------------------------------------------------------------------------

    def _digests(self, part: int, size: int) -> tuple[str, str]:
        """The digests of the first `part` and of the first `size` bytes."""
        whole = hashlib.sha256()
        at, first = 0, whole.hexdigest()
        while data := os.pread(self._descriptor, min(_CHUNK, (part if at < part else size) - at), at):
            whole.update(data)
            at += len(data)
            if at == part:
                first = whole.hexdigest()
        return first, whole.hexdigest()

    def _after(self, lines: int, offset: int, size: int) -> int:
        """Where the line after `lines` lines from `offset` on starts."""
        left, at = lines, offset
        unfinished = False
        while left:
            data = os.pread(self._descriptor, min(_CHUNK, size - at), at)
            if not data:
                if left == 1 and unfinished:
                    break
                raise Failure(
                    Status.DATA, f"{self._path}: {counted(lines, 'line')} were published, more than it has"
                )
            ends = data.count(b"\n")
            if ends >= left:
                within = -1
                for _ in range(left):
                    within = data.index(b"\n", within + 1)
                return at + within + 1
            left -= ends
            unfinished = not data.endswith(b"\n")
            at += len(data)
        return at

    def _whole_line(self, lines: int, offset: int, size: int) -> int:
        """Skip the newline of the last published line if the line had none yet."""
        if not offset or offset == size or os.pread(self._descriptor, 1, offset - 1) == b"\n":
            return offset
        if os.pread(self._descriptor, 1, offset) == b"\n":
            return offset + 1
        raise Failure(
            Status.DATA,
            f"{self._path}: line {lines:,} was published without its end, which was written later; publish the rest as"
            " another file",
        )

    # -- the file beside the outbox -----------------------------------------------------------------------------

    def _is_mine(self, start: _Start) -> bool:
        return (start.topic, start.file) == (self._topic, self._start.file)

    def _load(self) -> list[_Start]:
        found = self._file.load()
        return [] if found is None else found.inputs

    def _save(self) -> None:
        others = [one for one in self._load() if not self._is_mine(one)]
        self._file.save(_Starts([*others, self._start]))
