"""``reliamsg journal``: exports journals, prints them, verifies that they are complete, and ends them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from reliamsg.cli.audit import execute
from reliamsg.cli.options import KeysType, journal_key_option, journal_keys_options, json_option
from reliamsg.cli.status import SEE_EXIT_CODES, Failure, Status, counted, one_line
from reliamsg.config import is_remote
from reliamsg.files import irregular
from reliamsg.terminal import say, say_json
from reliamsg.trust import make_trust

if TYPE_CHECKING:
    from reliamsg.checker.journals import Chain, Found
    from reliamsg.export.target import Target
    from reliamsg.keys import KeyRing
    from reliamsg.store.journal import JournalRow

__all__ = ["journal"]


@click.group()
def journal() -> None:
    """Export, print, verify and end journals, the evidence for an audit."""


@journal.command(epilog=SEE_EXIT_CODES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--to", "target", metavar="TARGET", required=True, help="A directory or an fsspec URL.")
@journal_key_option
@json_option
def export(files: tuple[str, ...], target: str, journal_key: KeyRing | None, as_json: bool) -> int:
    """Export the remaining journals of files that no client has open.

    FILE is an outbox or inbox. Exported rows are deleted from the file. Stops at the first FILE that can't be exported;
    run it again to continue. --journal-key is for files of one client.
    """
    from reliamsg.export.offline import export_file

    for file in files:
        _check_file(file)
        segments = export_file(file, target, key=journal_key)
        if as_json:
            say_json({"file": file, "segments": segments})
        else:
            say(f"{file}: {counted(segments, 'segment')}")
    return Status.OK


@journal.command(epilog=SEE_EXIT_CODES)
@click.argument("file", metavar="FILE")
@click.option(
    "--to", "target", metavar="TARGET", help="Export the rest of the journal to a directory or an fsspec URL."
)
@click.option("--abandon", is_flag=True, help="Retire FILE even if it holds messages, or was not closed.")
@journal_key_option
@json_option
def retire(file: str, target: str | None, abandon: bool, journal_key: KeyRing | None, as_json: bool) -> int:
    """End the journal of a client that will never run again.

    FILE is an outbox or inbox that no client has open. A last row says that it was retired. After that, no client can
    open it. Refuses an outbox with messages that are not confirmed or that a named group has not settled, an inbox with
    messages that its application has not settled, and a file that was not closed, unless --abandon is given; the row
    records that.
    """
    from reliamsg.export.retire import NotRetired, retire_file

    _check_file(file)
    try:
        retired = retire_file(file, target, abandon=abandon, key=journal_key)
    except NotRetired as error:
        raise Failure(Status.INCOMPLETE, f"{error} (--abandon retires it nevertheless)") from None
    if as_json:
        say_json({"file": file, **asdict(retired)})
        return Status.OK
    pending = f", with {counted(retired.pending, 'abandoned message')}" if retired.pending else ""
    exported = f"; {counted(retired.segments, 'segment')}" if target is not None else ""
    say(f"{file}: retired{pending}{exported}")
    return Status.OK


@journal.command(
    "compact",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def compact(arguments: tuple[str, ...]) -> None:
    """Write checkpoints, which stand for segments that may then be archived or deleted.

    Requires pyarrow, which the extra `audit` installs.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise Failure(Status.UNAVAILABLE, "a compaction needs pyarrow: pip install 'reliamsg[audit]'")
    execute("reliamsg.audit.compact", arguments)


@journal.command(epilog=SEE_EXIT_CODES)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--kind", "kinds", multiple=True, help="Only rows of this kind. Can be repeated.")
@click.option("--client", help="Only rows of this producer or group.")
def cat(paths: tuple[str, ...], kinds: tuple[str, ...], client: str | None) -> int:
    """Print the rows of journals, one JSON object per line.

    PATH is an outbox or inbox (even while its owner runs), a segment, a checkpoint, a directory or an fsspec URL. Of a
    checkpoint whose segments are gone, rows that continued each other are printed as one. Files are read in the order
    of their names. Damaged files are reported on standard error; rows of a damaged segment are not printed.
    """
    encode = msgspec.json.Encoder().encode
    damaged = 0
    with _reading():
        for source in (each for path in paths for each in _sources(path)):
            try:
                role, name, rows, problem = _rows(*source)
            except _Damaged as error:
                role, name, rows, problem = "", "", [], str(error)
            if problem:
                say(f"reliamsg: {one_line(problem)}", err=True)
                damaged += 1
            if client is not None and name != client:
                continue
            for row in rows:
                if not kinds or row.kind in kinds:
                    say_json(encode(_as_dict(role, name, row)), flush=False)
    if damaged:
        raise Failure(Status.DATA, f"{counted(damaged, 'file')} could not be used")
    return Status.OK


@journal.command(epilog=SEE_EXIT_CODES)
@click.argument("path", metavar="PATH")
@journal_keys_options
@click.option(
    "--checkpoint-keys",
    type=KeysType(),
    help="A file of the auditor's keys, one per line: ID SECRET. Checkpoints that none of them signed count as damaged."
    "  [default: signatures of checkpoints are not checked]",
)
@json_option
def verify(
    path: str,
    journal_keys: str | None,
    unsigned_before: tuple[str, ...],
    checkpoint_keys: KeyRing | None,
    as_json: bool,
) -> int:
    """Verify that journals are complete and unchanged, and with --journal-keys, that their clients wrote them.

    PATH is an outbox or inbox (even while its owner runs), a segment, a checkpoint, a directory or an fsspec URL.
    Segments that a checkpoint covers are not read. The exit code is 2 if rows are missing, a file is damaged, a journal
    is not closed, or there are no journals.
    """
    from reliamsg.checker.journals import collect_path, merge_copies

    trust = make_trust(journal_keys, unsigned_before)
    _check_there(path)
    with _reading():
        found = collect_path(path, trust, checkpoint_keys)
    found = replace(
        found,
        chains=merge_copies(found.chains),
        problems=[*found.problems, *(f"no journal of {role} {name}" for role, name in sorted(found.emptied))],
    )
    sound = bool(found.chains) and not found.problems and all(chain.sound for chain in found.chains)
    if as_json:
        say_json(
            {
                "sound": sound,
                "chains": [_chain_as_dict(chain) for chain in found.chains],
                "problems": found.problems,
                "duplicated": found.duplicated,
                "signatures_checked": trust is not None,
                "checkpoints": found.checkpoints,
                "checkpoint_signatures_checked": checkpoint_keys is not None,
            }
        )
    else:
        say(*_lines(found))
        if trust is not None:
            say("signatures were checked")
        elif any(chain.segments for chain in found.chains):  # files have no signatures
            say("signatures were not checked (--journal-keys)")
        if found.checkpoints:
            checked = "not checked" if checkpoint_keys is None else "checked"
            say(f"checkpoints: {found.checkpoints}, their signatures {checked}")
    return Status.OK if sound else Status.UNKNOWN


class _Damaged(Exception):
    """An unusable file; the message tells which and why."""


def _check_there(path: str) -> None:
    if not is_remote(path) and not Path(path).exists():
        raise Failure(Status.NO_INPUT, f"{path}: no such file or directory")


def _check_file(path: str) -> None:
    _check_there(path)
    if Path(path).is_dir():
        raise Failure(Status.NO_INPUT, f"{path}: a directory; name an outbox or inbox")


@contextmanager
def _reading() -> Iterator[None]:
    """What can't be read is no input."""
    from reliamsg.errors import JournalTargetError

    try:
        yield
    except JournalTargetError as error:
        raise Failure(Status.NO_INPUT, str(error)) from None


def _sources(path: str) -> Iterator[tuple[str, bytes | _Damaged | None]]:
    """Files by name: segments and checkpoints with their content, outboxes and inboxes with None, unreadable files with
    the error."""
    from reliamsg.checker.checkpoints import claims_to_be_checkpoint
    from reliamsg.checker.journals import is_other_database
    from reliamsg.checker.segments import claims_to_be_segment
    from reliamsg.errors import JournalTargetError
    from reliamsg.export.target import SUFFIX, DirectoryTarget, is_checkpoint_name, open_target

    _check_there(path)
    parent, _, name = path.rpartition("/")
    if path.endswith(SUFFIX) or is_checkpoint_name(name):
        yield path, open_target(parent or ("/" if path.startswith("/") else ".")).read(name)
        return
    place = open_target(path)
    if isinstance(place, DirectoryTarget):
        root = Path(place.shown)
        if not root.is_dir():
            yield place.shown, None
            return
        for file in sorted(root.rglob("*.db")):
            if file.is_file() and not file.is_symlink() and not is_other_database(file):
                yield str(file), None
        for odd, what in irregular(root, (".db",)):
            yield odd, _Damaged(f"{odd}: not a file: {what}")
    top = place.shown.rstrip("/")
    names = [name for name in place.paths(heads=True) if not name.endswith(".json")]
    unneeded = _unneeded(place, top, names)
    for name in names:
        full = f"{top}/{name}"
        if full in unneeded:
            continue
        try:
            data = place.read(name)
        except JournalTargetError as error:
            if not isinstance(place, DirectoryTarget):
                raise
            yield full, _Damaged(str(error))
            continue
        if claims_to_be_checkpoint(full) or (name.endswith(SUFFIX) and claims_to_be_segment(full, data)):
            yield full, data


def _unneeded(place: Target, top: str, names: Sequence[str]) -> set[str]:
    """Paths of checkpoints whose segments are there, and of segments that other checkpoints list."""
    from reliamsg.checker.checkpoints import check_checkpoint, claims_to_be_checkpoint
    from reliamsg.checker.segments import owner_by_path
    from reliamsg.errors import JournalTargetError
    from reliamsg.store.segment import SegmentError, parse_name

    segments: dict[tuple[tuple[str, str] | None, str], list[str]] = {}
    found = []
    for path in (f"{top}/{name}" for name in names):
        segment = parse_name(path.rpartition("/")[2])
        if segment is not None:
            segments.setdefault((owner_by_path(path), segment.digest), []).append(path)
        elif claims_to_be_checkpoint(path):
            try:
                found.append(check_checkpoint(path, place.read(path.removeprefix(f"{top}/"))))
            except (JournalTargetError, SegmentError):
                continue  # reported when it is its turn
    unneeded: set[str] = set()
    listed: set[tuple[tuple[str, str], str]] = set()
    for each in sorted(found, key=lambda each: -each.last_lsn):
        own = {((each.role, each.client), digest) for digest in each.digests}
        if own <= segments.keys() or own <= listed:
            unneeded.add(each.path)
            continue
        listed |= own
        unneeded.update(path for digest in own for path in segments.get(digest, ()))
    return unneeded


def _rows(path: str, data: bytes | _Damaged | None) -> tuple[str, str, Sequence[JournalRow], str]:
    """The role, client and rows of a file, and the error if it is only readable in part."""
    from reliamsg.checker.checkpoints import check_checkpoint, claims_to_be_checkpoint
    from reliamsg.checker.journals import read_chain
    from reliamsg.checker.segments import check_segment
    from reliamsg.errors import StoreCorrupt
    from reliamsg.store.segment import SegmentError

    if isinstance(data, _Damaged):
        raise data
    try:
        if data is None:
            chain = read_chain(path)
            unread = next((text for text in chain.broken if "can't be read" in text), "")
            return chain.role, chain.client, chain.rows, f"{path}: {unread}" if unread else ""
        if claims_to_be_checkpoint(path):
            covered = check_checkpoint(path, data)
            return covered.role, covered.client, covered.rows, ""
        segment = check_segment(path, data)
    except SegmentError as error:
        raise _Damaged(f"{path}: {error}") from None
    except StoreCorrupt as error:
        raise _Damaged(str(error)) from None
    return segment.header.role, segment.header.client, segment.rows, ""


def _as_dict(role: str, client: str, row: JournalRow) -> dict[str, Any]:
    from reliamsg.store.segment import row_as_dict

    return {"role": role, "client": client, **row_as_dict(row)}


def _chain_as_dict(chain: Chain) -> dict[str, Any]:
    return {
        "role": chain.role,
        "client": chain.client,
        "source": chain.source,
        "boots": len(chain.boots),
        "segments": chain.segments,
        "rows": chain.row_count,
        "first_us": chain.rows[0].wall_us if chain.rows else None,
        "last_us": max((row.wall_last_us for row in chain.rows), default=None),
        "sound": chain.sound,
        "problems": _problems(chain),
    }


def _problems(chain: Chain) -> list[str]:
    if chain.broken or chain.finished:
        return list(chain.broken)
    return ["it ends without being closed"]


def _lines(found: Found) -> Iterator[str]:
    for chain in found.chains:
        said = _chain_as_dict(chain)
        state = "sound" if chain.sound else "broken" if chain.broken else "not closed"
        span = ""
        if chain.rows:
            span = f", {_time(said['first_us'])} to {_time(said['last_us'])}"
        yield (
            f"{chain.role} {chain.client}: {state}; boots {said['boots']}, segments {said['segments']},"
            f" rows {said['rows']:,}{span} ({chain.source})"
        )
        yield from (f"  {problem}" for problem in said["problems"])
    yield from found.problems
    if not found.chains:
        yield "there are no journals"
    if found.duplicated:
        yield f"segments found more than once: {found.duplicated}"


def _time(wall_us: int) -> str:
    """Format a time in UTC, to the second; in µs if it is out of range."""
    try:
        return datetime.fromtimestamp(wall_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{wall_us} µs"
