"""``reliamsg audit show``: the ranges and findings of one stream, from an audit's tables. Needs no Spark."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from reliamsg.audit.incidents import stream_name
from reliamsg.audit.kinds import KINDS
from reliamsg.audit.program import NO_INPUT, UNAVAILABLE, fail, run_command
from reliamsg.audit.spans import LAST
from reliamsg.terminal import printable, say, say_json

__all__ = ["StreamNotFound", "main", "read_stream"]

StreamName = tuple[str, str, int]
_EPILOG = """\b
Exit codes:
  0    the stream's ranges are printed, whatever their fates
  64   wrong arguments
  66   there is no audit's output, or no such stream in it
  69   pyarrow is missing
  74   the tables can't be read
"""
_NAMES = ["producer", "topic", "part"]
_WORDS = {
    "declared_gap": "declared as a gap", "before_join": "from before it joined", "never_joined": "never joined",
    "joined_unheard": "joined behind it, unannounced", "settled_unseen": "settled, but in no journal",
    "dead": "moved to the dead letters", "enqueued": "published",
}  # fmt: skip


class StreamNotFound(LookupError):
    """No stream has this name."""


def read_stream(directory: str, name: str) -> dict[str, Any]:
    """The ranges and findings of a stream, as plain data. `directory`: an audit's output; `name`: as
    ``reliamsg inbox ls`` lists streams, ``PRODUCER/TOPIC``, with ``~PARTITION`` unless that is 0.

    Raises :class:`FileNotFoundError` if there is no finished audit's output, :class:`StreamNotFound`, :class:`OSError`
    if the tables can't be read, and :class:`ImportError` without pyarrow.
    """
    place = Path(directory)
    if not place.is_dir():
        raise FileNotFoundError(f"{directory}: no such directory")
    if not (place / "verdict.json").exists():
        raise FileNotFoundError(
            f"{directory}: holds no verdict.json: name the directory that an audit wrote (--out)"
        )
    for table in ("ranges", "findings"):
        if not (place / table).is_dir():
            raise FileNotFoundError(f"{directory}: lacks the table {table}")
    streams = _matching(place, name)
    stream = streams[0]
    ranges = [_range(row) for row in _rows(place / "ranges", stream)]
    findings = [_finding(row) for row in _rows(place / "findings", stream)]
    ranges = _joined(ranges)
    findings.sort(key=lambda each: (each.get("epoch") or 0, each.get("first") or 0, each["kind"]))
    producer, topic, part = stream
    return {
        "stream": stream_name(stream), "producer": producer, "topic": topic, "partition": part, "ranges": ranges,
        "findings": findings,
    }  # fmt: skip


def _matching(place: Path, name: str) -> list[StreamName]:
    """The stream of that name. Names may contain slashes, so several ways to divide it are possible."""
    from pyarrow import compute

    wanted: Any = None
    for producer, topic, part in _candidates(name):
        one = (
            (compute.field("producer") == producer)
            & (compute.field("topic") == topic)
            & (compute.field("part") == part)
        )
        wanted = one if wanted is None else wanted | one
    found = _streams(place, wanted) if wanted is not None else []
    if not found:
        # A name as it is printed: with escapes for what is not visible.
        every = _streams(place, None)
        found = [each for each in every if printable(stream_name(each)) == printable(name)]
        if not found:
            near = difflib.get_close_matches(
                name, [printable(stream_name(each)) for each in every[:10_000]], 3
            )
            hint = f"; similar: {', '.join(near)}" if near else ""
            raise StreamNotFound(
                f"no stream {name} in {place}: name it PRODUCER/TOPIC or PRODUCER/TOPIC~PARTITION{hint}"
            )
    if len(found) > 1:
        raise StreamNotFound(
            f"{name} can be {len(found)} streams, which differ in where the producer's name ends"
        )
    return found


def _candidates(name: str) -> Iterator[StreamName]:
    whole, tilde, digits = name.rpartition("~")
    parts = [(name, 0)]
    if tilde and digits.isascii() and digits.isdigit() and int(digits) < 2**31:
        parts.append((whole, int(digits)))
    for text, part in parts:
        at = text.find("/")
        while at >= 0:
            yield text[:at], text[at + 1 :], part
            at = text.find("/", at + 1)


def _streams(place: Path, condition: Any) -> list[StreamName]:
    """The streams with ranges or findings that meet a condition, sorted."""
    found: set[StreamName] = set()
    for table in ("ranges", "findings"):
        for batch in _table(place / table).to_batches(columns=_NAMES, filter=condition):
            rows = zip(*(batch.column(name).to_pylist() for name in _NAMES), strict=True)
            found.update((producer, topic, part) for producer, topic, part in rows if producer is not None)
    return sorted(found)


def _rows(path: Path, stream: StreamName) -> Iterator[dict[str, Any]]:
    from pyarrow import compute

    condition: Any = None
    for name, value in zip(_NAMES, stream, strict=True):
        one = compute.field(name) == value
        condition = one if condition is None else condition & one
    for batch in _table(path).to_batches(filter=condition):
        yield from batch.to_pylist()


def _table(path: Path) -> Any:
    import pyarrow
    from pyarrow import dataset

    try:
        return dataset.dataset(str(path), format="parquet")
    except pyarrow.ArrowException as error:
        raise OSError(f"{path}: {error}") from error


def _range(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table ``ranges``; of an unknown end, `last` is None."""
    last = None if row["last"] is None or row["last"] >= LAST else row["last"]
    return {
        "group": row["grp"] or "", "epoch": row["epoch"], "first": row["first"], "last": last, "fate": row["fate"],
        "why": row["why"] or "", "place": row["place"] or "", "hop": row["hop"] or "", "sites": row["sites"] or [],
        **{name: bool(row[name]) for name in ("accounted", "unacknowledged", "late")},
    }  # fmt: skip


def _joined(ranges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorted, and adjoining ranges with one fate as one: the table's end wherever a row about their messages does."""
    found: list[dict[str, Any]] = []
    for each in sorted(ranges, key=lambda each: (each["epoch"], each["group"], each["first"])):
        before = found[-1] if found else None
        if (
            before is not None
            and before["last"] is not None
            and before["last"] + 1 == each["first"]
            and {**before, "first": 0, "last": 0} == {**each, "first": 0, "last": 0}
        ):
            before["last"] = each["last"]
        else:
            found.append(each)
    return found


def _finding(row: dict[str, Any]) -> dict[str, Any]:
    found = {"kind": row["kind"], "severity": KINDS[row["kind"]][0] if row["kind"] in KINDS else "unknown"}
    for name, value in (
        ("group", row["grp"]), ("site", row["site"]), ("epoch", row["epoch"]), ("first", row["first"]),
        ("last", None if row["last"] is not None and row["last"] >= LAST else row["last"]), ("text", row["text"]),
    ):  # fmt: skip
        if value is not None:
            found[name] = value
    return found


# -- the command --------------------------------------------------------------------------------------------


@click.command(
    "show",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "RELIAMSG_AUDIT_SHOW"},
)
@click.argument("directory", metavar="DIR")
@click.argument("stream", metavar="STREAM")
@click.option("--json", "as_json", is_flag=True, help="Print one object instead of lines.")
def _command(directory: str, stream: str, as_json: bool) -> int:
    """Show what became of every message of STREAM, range by range, as the audit found that wrote DIR (--out).

    STREAM is PRODUCER/TOPIC, or PRODUCER/TOPIC~PARTITION.
    """
    found = read_stream(directory, stream)
    if as_json:
        say_json(found)
    else:
        say(*_lines(found))
    return 0


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"stream {found['stream']}"
    epoch = None
    width = max((len(printable(_who(each))) for each in found["ranges"]), default=0)
    for each in found["ranges"]:
        if each["epoch"] != epoch:
            epoch = each["epoch"]
            yield f"epoch {epoch}"
        span = _span(each["first"], each["last"])
        yield f"  {_who(each):<{min(width, 40)}}  {span:<24}  {_said(each)}"
    if not found["ranges"]:
        yield "no ranges"
    if found["findings"]:
        yield "findings"
    for each in found["findings"]:
        at = [f"{name} {each[name]}" for name in ("group", "site") if name in each]
        if "first" in each:
            at.append(f"{_span(each['first'], each.get('last'))} of epoch {each.get('epoch')}")
        elif "epoch" in each:
            at.append(f"epoch {each['epoch']}")
        kind = each["kind"]
        meaning = KINDS[kind][1] if kind in KINDS else ""
        more = f": {each['text']}" if each.get("text") else ""
        yield f"  {each['severity']}: {kind.replace('_', ' ')} ({', '.join(at)}): {meaning}{more}"


def _who(each: dict[str, Any]) -> str:
    return f"group {each['group']}" if each["group"] else "producer"


def _span(first: int, last: int | None) -> str:
    if last is None:
        return f"{first:,} to the end"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _said(each: dict[str, Any]) -> str:
    fate: str = each["fate"]
    said = _WORDS.get(fate, fate.replace("_", " "))
    if each["hop"]:
        sites = f" at {', '.join(each['sites'])}" if each["sites"] else ""
        said += f"; last hop: {each['hop']}{sites}"
    if each["why"]:
        said += f": {each['why']}"
    extra = [name for name in ("late", "unacknowledged") if each[name]]
    return said + (f" ({', '.join(extra)})" if extra else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: ``sys.argv``) and return its exit code."""
    try:
        return run_command(_command, "reliamsg audit show", arguments)
    except StreamNotFound as error:
        return fail(str(error), NO_INPUT)
    except ImportError:
        return fail("this needs pyarrow: pip install 'reliamsg[audit]'", UNAVAILABLE)


if __name__ == "__main__":
    sys.exit(main())
