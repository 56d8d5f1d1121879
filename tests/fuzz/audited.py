"""The audit's reader of segments: it says the same of every file as the plain checker's, whatever the file contains.

Each input is turned into several files: unchanged, and with headers that claim any number of rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from reliamsg.audit.segment import read_segment
from reliamsg.checker.segments import check_segment
from reliamsg.store.segment import Name, SegmentError, digest_of
from tests.fuzz import seeds
from tests.fuzz.target import Target

__all__ = ["AUDITED", "compare"]

CLAIMS = (0, 1, 2**31 - 3, 2**31 - 1, 2**31, 2**63 - 1, -1)
"""The number of rows that a header may claim."""


def made_of(raw: bytes) -> Iterator[bytes]:
    """Segments, most of them corrupted."""
    yield raw
    first, _, rest = raw.partition(b"\n")
    try:
        header = msgspec.json.decode(first)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    if not isinstance(header, dict):
        return
    lines = rest.split(b"\n")
    for claim in (len(lines) - 1, *CLAIMS):
        yield msgspec.json.encode(header | {"rows": claim}) + b"\n" + rest


def name_of(raw: bytes) -> str:
    """The name that matches these bytes, and the content of their header if a name can contain it."""
    found = re.search(rb'"boot":"([0-9a-f]{16})","first_lsn":([0-9]{1,18})[,}]', raw.partition(b"\n")[0])
    boot, lsn = (found[1].decode(), int(found[2])) if found else ("0" * 16, 1)
    return str(Name(boot, lsn, digest_of(raw)))


def compare(*inputs: bytes) -> None:
    """The audit and the checker must say the same of every file, in the same words."""
    files = [(name_of(data), data) for raw in inputs for data in dict.fromkeys(made_of(raw))]
    files += [(str(Name("0" * 16, 10**19 - 1, digest_of(raw))), raw) for raw in inputs]
    for name, data in files:
        try:
            expected: tuple[str | None, int] = None, len(check_segment(name, data).rows)
        except SegmentError as error:
            expected = _without_detail(str(error)), 0
        found = read_segment(name, data)
        assert found is not None  # its name is that of a segment
        assert (found.problem, len(found.lines or ())) == expected, data[:2_000]


def _without_detail(problem: str) -> str:
    """The checker also says what is wrong with a line."""
    for words in ("a row can't be read", "its header is damaged"):
        if problem.startswith(words):
            return words
    return problem


def read_segments_of_journals(raw: bytes) -> None:
    compare(raw)


AUDITED = (Target("audit-segments", read_segments_of_journals, (), seeds.segments),)
"""The audit's own reader of segments."""
