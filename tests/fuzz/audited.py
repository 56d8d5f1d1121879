"""The audit's readers of segments and heads: they say the same of every file as the plain checker's, whatever the file
contains.

Each input is turned into several files: unchanged, and with headers that claim any number of rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import msgspec

from reliamsg.audit.segment import StatedIdle, read_head, read_segment
from reliamsg.audit.signatures import signer_of
from reliamsg.checker.segments import check_head, check_segment
from reliamsg.checker.signatures import NOT_SIGNED, check_signature
from reliamsg.keys import KeyRing
from reliamsg.store.segment import Name, SegmentError, digest_of
from reliamsg.store.signing import sign_line
from reliamsg.trust import ClientKeys, Owner, Trust
from tests.fuzz import seeds
from tests.fuzz.target import Target

__all__ = ["AUDITED", "compare", "compare_heads"]

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


SECRET = b"the secret of clients whose journals are fuzzed"


def compare_signatures(*inputs: bytes) -> None:
    """The audit and the checker must say the same of every signature, in the same words."""
    for raw in inputs:
        line, _, body = raw.partition(b"\n")
        try:
            first = msgspec.json.decode(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(first, dict) or not isinstance(first.get("client"), str):
            continue
        owner = "producer", first["client"]
        signed = sign_line(line, body, KeyRing({"a": SECRET}, sign_with="a")) if len(line) > 2 else line
        for each in (line, signed, signed[:-1] + b" }", signed.replace(b'"a"', b'"b"')):
            for trust in (
                Trust(ClientKeys({owner: {"a": SECRET}})),
                Trust(ClientKeys({}), {owner: frozenset("0")}),
            ):
                _compare_signature(trust, owner, each, body)


def _compare_signature(trust: Trust, owner: Owner, line: bytes, body: bytes) -> None:
    first = msgspec.json.decode(line)
    found = signer_of(trust, *owner, first, line, body)
    try:
        expected = "signed" if check_signature(trust, *owner, line, body) else NOT_SIGNED
    except SegmentError as error:
        expected = str(error)
    assert (found.problem or ("signed" if found.mark else NOT_SIGNED)) == expected, line[:2_000]


def _without_detail(problem: str) -> str:
    """The checker also says what is wrong with a line."""
    for words in ("a row can't be read", "its header is damaged"):
        if problem.startswith(words):
            return words
    return problem


def read_segments_of_journals(raw: bytes) -> None:
    compare(raw)
    compare_signatures(raw)


def compare_heads(*inputs: bytes) -> None:
    """The audit and the checker must say the same of every head, in the same words."""
    for raw in inputs:
        line = raw.partition(b"\n")[0]
        summed = line + b'\n{"sha256":"%b"}\n' % hashlib.sha256(line).hexdigest().encode()
        boot = re.search(rb'"boot":"([0-9a-f]{16})"', line)
        name = f"head-{boot[1].decode() if boot else '0' * 16}.json"
        for path in (name, f"role=producer/client=p/{name}", f"role=group/client=a%2Fb/head-{'1' * 16}.json"):
            for data in (raw, summed):
                found = read_head(path, data)
                stated = msgspec.structs.asdict(found) if isinstance(found, StatedIdle) else found
                assert stated == _checked(path, data), data[:2_000]


def _checked(path: str, data: bytes) -> dict[str, object] | str:
    """The checker's reading of a head."""
    try:
        head, _ = check_head(path, data)
    except SegmentError as error:
        return str(error)
    found = msgspec.structs.asdict(head)
    del found["format"]
    return found


def read_heads_of_journals(raw: bytes) -> None:
    compare_heads(raw)


AUDITED = (
    Target("audit-segments", read_segments_of_journals, (), seeds.segments),
    Target("audit-heads", read_heads_of_journals, (), seeds.heads),
)
"""The audit's own readers of segments and heads."""
