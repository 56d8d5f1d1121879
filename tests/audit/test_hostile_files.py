"""Irregular files among journals are reported by the audit, which reads the others."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyspark.sql import SparkSession

from reliamsg.audit.job import audit
from reliamsg.audit.segment import read_segment
from reliamsg.audit.sources import find, read_file
from reliamsg.checker import check_directory
from reliamsg.store.head import Head, encode_head, head_path
from reliamsg.store.segment import decode, encode
from tests.fuzz import seeds
from tests.fuzz.audited import compare
from tests.test_files import HOSTILE


def read(spark: SparkSession, journals: str | Path) -> dict[str, str | None]:
    """By file name, why the audit does not use it; None if it does."""
    found = find(spark, journals)
    problems: dict[str, str | None] = {
        os.path.basename(path): f"not a file: {what}" for path, what in found.odd
    }
    for file in found.files:
        each = read_segment(file.path, read_file(file.path.removeprefix("file:")))
        if each is not None:
            problems[file.name] = each.problem
    return problems


def test_the_audit_reads_the_rest(spark: SparkSession, tmp_path: Path) -> None:
    header, rows = decode(seeds.segments()[0])
    made = encode(header.role, header.client, rows, header.parent)
    path = tmp_path / "journals" / made.path
    path.parent.mkdir(parents=True)
    path.write_bytes(made.data)
    expected = {}
    for number, (make, said) in enumerate(HOSTILE.values()):
        name = f"{number}.ndjson"
        make(tmp_path / "journals" / name)
        expected[name] = said
    found = read(spark, tmp_path / "journals")
    assert found.pop(path.name) is None
    assert set(found) == set(expected)
    assert all(said in str(found[name]) for name, said in expected.items())
    broken = "\n".join(audit(spark, tmp_path / "journals")["evidence"]["broken"])
    assert all(f"{name}: not a file" in broken for name in expected)


def test_empty_files_are_named_wherever_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """In a path, in a URL, and in a pattern, which is read like a URL of another machine."""
    header, rows = decode(seeds.segments()[0])
    whole = encode(header.role, "a+ b%~", rows, header.parent)
    empty = encode(header.role, "a+ b%~", rows, "0" * 64)
    for made, data in ((whole, whole.data), (empty, b"")):
        path = tmp_path / "j" / made.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (path.parent / "notes.ndjson").write_bytes(b"")
    verdicts = []
    for journals in (tmp_path / "j", (tmp_path / "j").as_uri(), f"file:{tmp_path}/j*"):
        found = read(spark, str(journals))
        assert found.keys() == {whole.path.rpartition("/")[2], path.name, "notes.ndjson"}
        assert found[whole.path.rpartition("/")[2]] is None
        assert "its content does not match the hash in its name" in str(found[path.name])
        verdicts.append(audit(spark, str(journals)))
    for verdict in verdicts:
        broken = "\n".join(verdict["evidence"]["broken"])
        assert f"{path.name}: edited or damaged" in broken
        assert "notes.ndjson: " in broken
        assert verdict["rows"] == verdicts[0]["rows"] == len(rows)


def test_heads_are_read_wherever_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """A sound one is evidence; one that is damaged, empty or no regular file is named."""
    header, rows = decode(seeds.segments()[0])
    made = encode(header.role, header.client, rows, header.parent)
    head = Head(
        role=header.role, client=header.client, boot=header.boot, lsn=header.last_lsn, digest=made.digest, wall_us=2**60
    )  # fmt: skip
    path, own = tmp_path / "j" / made.path, tmp_path / "j" / head_path(head.role, head.client, head.boot)
    path.parent.mkdir(parents=True)
    path.write_bytes(made.data)
    own.write_bytes(encode_head(head))
    (own.parent / f"head-{'1' * 16}.json").write_bytes(b"")
    (own.parent / f"head-{'2' * 16}.json").write_bytes(encode_head(head).replace(b"}", b" }", 1))
    (own.parent / "settings.json").write_bytes(b"{}")
    for journals in (tmp_path / "j", (tmp_path / "j").as_uri(), f"file:{tmp_path}/j*"):
        broken = audit(spark, str(journals))["evidence"]["broken"]
        assert sorted(line.partition("head-")[2] for line in broken if "head-" in line) == [
            f"{'1' * 16}.json: not a journal's head",
            f"{'2' * 16}.json: edited or damaged: its content does not match its checksum",
        ]
        assert not any(head.boot in line or "settings" in line for line in broken)
    os.symlink(own, own.parent / f"head-{'3' * 16}.json")
    broken = audit(spark, tmp_path / "j")["evidence"]["broken"]
    assert any(f"head-{'3' * 16}.json: not a file: a symbolic link" in line for line in broken)
    plain = [str(each) for each in check_directory(tmp_path / "j").findings if each.kind == "broken"]
    assert any(f"head-{'3' * 16}.json" in line and "not a file: a symbolic link" in line for line in plain)


def test_a_directory_with_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.ndjson")
    assert read(spark, tmp_path) == {"x.ndjson": "not a file: a named pipe"}
    found = audit(spark, tmp_path)
    assert found["evidence"]["broken"] == [f"{tmp_path}/x.ndjson: not a file: a named pipe"]
    assert found["verdict"] == "unknown"


def with_first(field: bytes, said: bytes, rows: bytes) -> tuple[bytes, int]:
    """Replace the first field of this name by what is said, and count it."""
    return re.subn(rb'"%s":("[^"]*"|\d+)' % field, lambda _: said, rows, count=1)


def test_whatever_numbers_a_file_and_its_name_claim() -> None:
    """They terminate no audit, and the audit and the checker say the same of them. ``make fuzz`` tries more of them."""
    raw = seeds.segments()[0]
    inputs = [raw, b""]
    header, _, rows = raw.partition(b"\n")
    for field in (b"first_lsn", b"last_lsn"):
        for number in (b"-9223372036854775808", b"9223372036854775807", b"9" * 30):
            claim = re.sub(rb'"%s":\d+' % field, b'"%s":%s' % (field, number), header)
            inputs.append(claim + b"\n" + rows)
    inputs.append(header + b"\n" + re.sub(rb'"lsn":\d+', b'"lsn":-9223372036854775808', rows))
    for field, values in CLAIMS.items():
        for value in values:
            said = b'"%s":%s' % (field, value)
            claim, count = with_first(field, said, rows)
            if not count:  # into a row without such a field
                before, _, after = rows.rpartition(b"\n{")
                assert b'"%s":' % field not in after
                claim = b"%s\n{%s,%s" % (before, said, after)
            inputs.append(header + b"\n" + claim)
    compare(*inputs)


CLAIMS = {
    b"incarnation": (b'" -0x_1 "', b'"0x1"', b'"A"', b'""', b'"%s"' % (b"f" * 17), '"١"'.encode()),
    b"epoch": (
        b"9223372036854775807",
        b"9223372036854775808",
        b"1" + b"0" * 30,
        b"-1",
        b"1.5",
        b"1e3",
        b'"12"',
        b"null",
        b"true",
        b"[]",
        b" 7 ",
    ),
    b"part": (b"2147483647", b"2147483648", b"-1", b"-12345678901", b" 12345678901"),
    b"first": (b"-9223372036854775808", b"-9223372036854775809"),
    b"last": (b"4611686018427387904", b"18446744073709551616"),
    b"latency": (
        b'{"9":9223372036854775807}',
        b'{"9":9223372036854775808}',
        b'{"9":"2"}',
        b'{"abc":1}',
        b'{"-1":1}',
        b'{" 7":1}',
        b'{"1_0":1}',
        b'{"9999999999":1}',
        b"[]",
        b"5",
        b"null",
    ),
    b"topic": (b"5", b"null", b"{}", b'"\\u0061"'),
    b"detail": (
        b"5",
        b"[]",
        b'"x"',
        b'{"epoch":"x","part":null,"last":99999999999999999999}',
        b'{"known":[1,[{"a":-9223372036854775809}]]}',
        b'{"known":[1,[{"a":-9223372036854775808,"b":18446744073709551615}]]}',
        b'{"known":18446744073709551616}',
        b'{"known":1e400}',
        b'{"known":NaN}',
    ),
    b"digest": (b"5", b"null"),
}
"""Rows that one reader may accept and another may not."""
