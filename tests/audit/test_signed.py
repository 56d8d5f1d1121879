"""Signed journals: both programs recognize everything that a client has not written itself, in the same words."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from reliamsg import Consumer, JournalExport, KeyRing, Producer
from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.verdict import table
from reliamsg.checker import Expect, check_directory
from reliamsg.errors import ConfigError
from reliamsg.keys import read_key_ring
from reliamsg.store.head import Head, encode_head, head_path
from reliamsg.store.segment import Header, Segment, decode, encode, parse_name
from reliamsg.testing import MemoryNetwork
from reliamsg.trust import ClientKeys, Owner, Trust, make_trust, read_client_keys
from tests.audit.equality import shared
from tests.audit.local_spark import local_spark
from tests.audit.mutilated import rewritten
from tests.patience import patient
from tests.signed import key_of, keys_file, secret_of, trust_in

TILL, LEDGER, OTHER = ("producer", "till"), ("group", "ledger"), ("producer", "other")
EVERYONE = (TILL, LEDGER, OTHER)
LATER_US = 4_000_000_000_000_000
WRONG = "its signature is wrong: it was edited, or signed with another key"
FOREIGN = "signed with a key that its client does not have"
UNSIGNED = "not signed"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journals of two signing producers and a signing group, in several segments each."""
    place = tmp_path_factory.mktemp("signed")
    run(place, "a")
    return place / "journals"


def run(place: Path, key_id: str | None, *, first: bool = True, messages: int = 12) -> None:
    """Open all clients, exchange messages, and close them. They sign with this key, if any."""
    target = place / "journals"

    def export(owner: Owner) -> JournalExport:
        key = None if key_id is None else key_of(*owner, key_id)
        return JournalExport(target, interval=0.01, segment_rows=4, key=key)

    with MemoryNetwork("dc1") as network:
        producers = [
            Producer(
                owner[1], network.sites, outbox=place / f"{owner[1]}.db", groups={"sales": ["ledger"]},
                journal=export(owner),
            )
            for owner in (TILL, OTHER)
        ]  # fmt: skip
        consumer = Consumer(
            "ledger", network.sites, topics=["sales"], inbox=place / "ledger.db", journal=export(LEDGER)
        )
        for number in range(messages):
            for producer in producers:
                producer.publish("sales", b"%d" % number)
                message = consumer.get(timeout=patient(30))
                assert message is not None
                message.ack(durable=True)
        for producer in producers:
            producer.close()
        consumer.close()


@pytest.fixture
def journals(real: Path, tmp_path: Path) -> Path:
    shutil.copytree(real, tmp_path / "journals")
    return tmp_path / "journals"


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return trust_in(tmp_path / "keys", EVERYONE)


def of(journals: Path, owner: Owner) -> list[Path]:
    """A client's segments, in order."""
    found = (journals / f"role={owner[0]}" / f"client={owner[1]}").rglob("*.ndjson")
    return sorted(found, key=lambda path: int(path.name.split("-")[1]))


def judged(
    journals: Path, trust: Trust | None, *, drained: bool = True, state: Path | None = None
) -> dict[str, Any]:
    """The audit's verdict, with which the plain checker agrees."""
    rules: dict[str, Any] = {"drained": drained, "now_us": 2**60, "trust": trust}
    verdict = audit(local_spark(1), journals, state=state, expect=AuditExpect(**rules))
    report = check_directory(journals, Expect(**rules)).as_dict()
    by_audit, plainly = shared(verdict), shared(report)
    assert by_audit == plainly
    assert verdict["evidence"]["signatures_checked"] == report["evidence"]["signatures_checked"]
    assert verdict["evidence"]["signatures_checked"] == (trust is not None)
    return verdict


def broken(verdict: dict[str, Any], name: str) -> list[str]:
    """What is said of a file."""
    return [line.rpartition(f"{name}: ")[2] for line in verdict["evidence"]["broken"] if f"{name}: " in line]


def put(journals: Path, segment: Segment) -> Path:
    path = journals / segment.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(segment.data)
    return path


def again(path: Path, key: KeyRing | None, **changes: Any) -> Segment:
    """A segment with the same rows, encoded anew: other fields of the header, another key or none."""
    header, rows = decode(path.read_bytes())
    fields = {name: getattr(header, name) for name in ("role", "client", "parent")} | changes
    return encode(fields["role"], fields["client"], fields.get("rows", rows), fields["parent"], keys=key)


def rechained(journals: Path, owner: Owner, key: KeyRing | None, *, start: int = 0) -> list[Path]:
    """Replace a client's segments from one on: without its last row of messages, and chained and signed anew."""
    paths = of(journals, owner)
    parent = None if start == 0 else decode(paths[start].read_bytes())[0].parent
    found = []
    for path in paths[start:]:
        segment = again(path, key, parent=parent)
        path.unlink()
        found.append(put(journals, segment))
        parent = segment.digest
    return found


def test_what_clients_sign_is_sound(journals: Path, trust: Trust) -> None:
    assert all(len(of(journals, owner)) > 2 for owner in EVERYONE)
    verdict = judged(journals, trust)
    assert verdict["verdict"] == "complete"
    assert "signatures of journals: checked" in table(verdict)
    without = judged(journals, None)
    assert without["verdict"] == "complete"
    assert "signatures of journals: not checked" in table(without)


def test_segments_name_the_key_and_readers_without_keys_need_not_know(journals: Path) -> None:
    for owner in EVERYONE:
        for path in of(journals, owner):
            first = json.loads(path.read_bytes().partition(b"\n")[0])
            assert list(first)[-2:] == ["key", "signature"]
            assert (first["key"], len(first["signature"])) == ("a", 64)
            assert first["version"] == 2


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (key_of(*OTHER), WRONG),  # the id is the same
        (key_of(*OTHER, "b"), FOREIGN),
        (KeyRing({"a": b"\1" * 32}, sign_with="a"), WRONG),
        (None, UNSIGNED),
    ],
    ids=["another client's", "an unknown one", "an invented one", "none"],
)
@pytest.mark.parametrize("start", [0, 1])
def test_a_chain_that_somebody_else_made(
    journals: Path, trust: Trust, key: KeyRing | None, says: str, start: int
) -> None:
    """It is a valid chain, and nothing but the keys shows that its client did not write it."""
    made = rechained(journals, TILL, key, start=start)
    assert judged(journals, None)["verdict"] == "complete"
    verdict = judged(journals, trust)
    assert verdict["verdict"] == "unknown"
    for path in made:
        assert broken(verdict, path.name) == [says]


def without_signature(line: bytes) -> bytes:
    found = json.loads(line)
    del found["key"], found["signature"]
    return msgspec.json.encode(found)


def edited(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(line: bytes) -> bytes:
        assert line.count(old) == 1
        return line.replace(old, new)

    return change


def reordered(line: bytes) -> bytes:
    """The signature is not at the end of the line."""
    found = json.loads(line)
    return msgspec.json.encode({"signature": found.pop("signature"), **found})


def other_parent(line: bytes) -> bytes:
    parent = json.loads(line)["parent"]
    return line.replace(parent.encode(), parent[::-1].encode())


HEADERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "stripped": (without_signature, UNSIGNED),
    "no signature": (lambda line: line[: line.index(b',"signature"')] + b"}", WRONG),
    "no key": (edited(b'"key":"a",', b""), FOREIGN),
    "another key": (edited(b'"key":"a",', b'"key":"b",'), FOREIGN),
    "a key that is no text": (edited(b'"key":"a",', b'"key":["a"],'), FOREIGN),
    "a signature in capitals": (lambda line: line[:-66] + line[-66:].upper(), WRONG),
    "a short signature": (lambda line: line[:-3] + b'"}', WRONG),
    "signature elsewhere": (reordered, WRONG),
    "spaces": (lambda line: line.replace(b'"rows":', b'"rows": '), WRONG),
    "one field more": (lambda line: b'{"more":1,' + line[1:], WRONG),
    "another parent": (other_parent, WRONG),
}


@pytest.mark.parametrize("change", HEADERS)
def test_every_byte_of_a_header_is_signed(journals: Path, trust: Trust, change: str) -> None:
    path = of(journals, TILL)[-1]
    line, _, body = path.read_bytes().partition(b"\n")
    function, says = HEADERS[change]
    made = function(line)
    assert made != line
    path = rewritten(path, made + b"\n" + body)
    verdict = judged(journals, trust)
    assert broken(verdict, path.name) == [says]
    assert verdict["verdict"] == "unknown"


def test_rows_are_signed(journals: Path, trust: Trust) -> None:
    path = of(journals, LEDGER)[-1]
    data = path.read_bytes()
    line, _, body = data.partition(b"\n")
    changed = body.replace(b'"wall_us":1', b'"wall_us":2', 1)
    assert changed != body
    path = rewritten(path, line + b"\n" + changed)
    assert broken(judged(journals, trust), path.name) == [WRONG]


def test_segments_of_two_clients_are_not_exchanged(journals: Path, trust: Trust) -> None:
    """As they are, they are misplaced; with the other's name, their signatures are wrong, although the other client
    signed them."""
    mine, theirs = of(journals, TILL)[-1], of(journals, OTHER)[-1]
    moved = mine.parent / theirs.name
    shutil.copy(theirs, moved)
    header, rows = decode(mine.read_bytes())
    renamed = theirs.read_bytes().replace(b'"client":"other"', b'"client":"till"', 1)
    segment = encode("producer", "till", rows, header.parent)
    claimed = put(journals, Segment(segment.header, renamed, "", segment.path))
    claimed = rewritten(claimed, renamed)
    verdict = judged(journals, trust)
    assert broken(verdict, moved.name) == [
        "misplaced: it is among those of producer till, but belongs to producer other"
    ]
    said = broken(verdict, claimed.name)
    assert len(said) == 1
    assert said[0] in (WRONG, "renamed: its name and its header name different boots or rows")


@pytest.mark.parametrize(("key_id", "says"), [("a", WRONG), ("g", FOREIGN)])
def test_a_group_does_not_sign_as_the_producer_of_its_name(
    tmp_path: Path, journals: Path, key_id: str, says: str
) -> None:
    trust = trust_in(tmp_path / "keys", {**dict.fromkeys(EVERYONE, "a"), ("group", "till"): "a g"})
    path = of(journals, TILL)[-1]
    segment = again(path, key_of("group", "till", key_id))
    path.unlink()
    path = put(journals, segment)
    assert broken(judged(journals, trust), path.name) == [says]


def test_a_key_of_another_client_with_an_id_of_its_own(journals: Path, tmp_path: Path) -> None:
    trust = trust_in(tmp_path / "keys", {TILL: "a", LEDGER: "a", OTHER: "a b"})
    made = rechained(journals, TILL, key_of(*OTHER, "b"))
    verdict = judged(journals, trust)
    assert all(broken(verdict, path.name) == [FOREIGN] for path in made)


def test_a_client_that_has_no_key(tmp_path: Path, journals: Path) -> None:
    trust = trust_in(tmp_path / "keys", (TILL, LEDGER))
    verdict = judged(journals, trust)
    assert verdict["verdict"] == "unknown"
    assert all(broken(verdict, path.name) == [FOREIGN] for path in of(journals, OTHER))
    assert "no journal of producer other" in verdict["evidence"]["missing"]


# -- heads ---------------------------------------------------------------------------------------------------


def stated(journals: Path, owner: Owner, key: KeyRing | None, segment: int = -1) -> Path:
    """A head that says that nothing followed a client's segment, far into the future."""
    path = of(journals, owner)[segment]
    header, name = decode(path.read_bytes())[0], parse_name(path.name)
    assert name is not None
    head = Head(
        role=header.role, client=header.client, boot=header.boot, lsn=header.last_lsn, digest=name.digest,
        wall_us=LATER_US,
    )  # fmt: skip
    found = journals / head_path(header.role, header.client, header.boot)
    found.write_bytes(encode_head(head, key))
    return found


def proven(verdict: dict[str, Any], owner: Owner) -> str:
    (found,) = [each["proven"] for each in verdict["clients"] if (each["role"], each["client"]) == owner]
    return str(found)


def test_heads_are_signed(journals: Path, trust: Trust) -> None:
    before = proven(judged(journals, trust), TILL)
    path = stated(journals, TILL, key_of(*TILL))
    verdict = judged(journals, trust)
    assert verdict["evidence"]["broken"] == []
    assert proven(verdict, TILL) > before
    for key, says in ((key_of(*OTHER), WRONG), (key_of(*OTHER, "b"), FOREIGN), (None, UNSIGNED)):
        stated(journals, TILL, key)
        verdict = judged(journals, trust)
        assert broken(verdict, path.name) == [says]
        assert verdict["verdict"] == "unknown"
        assert proven(verdict, TILL) == before


def test_a_head_that_was_edited(journals: Path, trust: Trust) -> None:
    path = stated(journals, TILL, key_of(*TILL))
    line = path.read_bytes().partition(b"\n")[0].replace(b"4000", b"5000", 1)
    path.write_bytes(line + b'\n{"sha256":"%b"}\n' % hashlib.sha256(line).hexdigest().encode())
    assert broken(judged(journals, trust), path.name) == [WRONG]


def test_a_signature_of_a_segment_is_none_of_a_head(journals: Path, trust: Trust) -> None:
    """Nor the other way around: what is signed begins with the format."""
    path = of(journals, TILL)[0]
    line = path.read_bytes().partition(b"\n")[0]
    header = msgspec.json.decode(line, type=Header)
    assert header.format == "reliamsg.journal"
    assert line.startswith(b'{"format":"reliamsg.journal",')
    head = stated(journals, TILL, key_of(*TILL))
    assert head.read_bytes().startswith(b'{"format":"reliamsg.journal.head",')
    assert not broken(judged(journals, trust), head.name)


# -- changes of keys -----------------------------------------------------------------------------------------


def test_keys_are_rotated(tmp_path: Path) -> None:
    run(tmp_path, "a", messages=3)
    run(tmp_path, "b", messages=3)
    journals = tmp_path / "journals"
    both = judged(journals, trust_in(tmp_path / "keys", dict.fromkeys(EVERYONE, "a b")))
    assert both["verdict"] == "complete"
    old = judged(journals, trust_in(tmp_path / "keys", dict.fromkeys(EVERYONE, "a")))
    assert old["verdict"] == "unknown"
    said = {line for path in of(journals, TILL) for line in broken(old, path.name)}
    assert said == {FOREIGN}


@pytest.fixture
def switched(tmp_path: Path) -> Path:
    """Clients that signed nothing at first, and then everything."""
    run(tmp_path, None, messages=3)
    run(tmp_path, "a", messages=3)
    return tmp_path / "journals"


def last_unsigned(journals: Path, owner: Owner) -> Path:
    return [
        path for path in of(journals, owner) if b'"signature"' not in path.read_bytes().partition(b"\n")[0]
    ][-1]


def positions(journals: Path) -> list[str]:
    return [f"{'/'.join(owner)}@{last_unsigned(journals, owner).name}" for owner in EVERYONE]


def test_unsigned_segments_before_a_position(switched: Path, tmp_path: Path) -> None:
    without = judged(switched, trust_in(tmp_path / "keys", EVERYONE))
    assert without["verdict"] == "unknown"
    assert broken(without, last_unsigned(switched, TILL).name) == [UNSIGNED]
    named = positions(switched)
    assert judged(switched, trust_in(tmp_path / "keys", EVERYONE, *named))["verdict"] == "complete"
    # By its digest, and by the first that is signed.
    digest = named[0].rpartition("-")[2].removesuffix(".ndjson")
    first_signed = of(switched, LEDGER)[of(switched, LEDGER).index(last_unsigned(switched, LEDGER)) + 1]
    others = (f"producer/till@{digest}", f"group/ledger@{first_signed}", named[2])
    assert judged(switched, trust_in(tmp_path / "keys", EVERYONE, *others))["verdict"] == "complete"


def test_one_position_is_not_that_of_another_client(switched: Path, tmp_path: Path) -> None:
    named = [each.replace("producer/other@", "producer/till@") for each in positions(switched)]
    verdict = judged(switched, trust_in(tmp_path / "keys", EVERYONE, *named))
    assert broken(verdict, last_unsigned(switched, OTHER).name) == [UNSIGNED]
    assert not broken(verdict, last_unsigned(switched, TILL).name)


def test_an_earlier_position(switched: Path, tmp_path: Path) -> None:
    """What is unsigned and comes after it is not accepted."""
    paths = of(switched, TILL)
    end = paths.index(last_unsigned(switched, TILL))
    assert end >= 1
    named = [f"producer/till@{paths[0].name}", *positions(switched)[1:]]
    verdict = judged(switched, trust_in(tmp_path / "keys", EVERYONE, *named))
    assert broken(verdict, paths[0].name) == []
    for path in paths[1 : end + 1]:
        assert broken(verdict, path.name) == [UNSIGNED]


def test_nobody_adds_an_unsigned_history_before_the_position(switched: Path, tmp_path: Path) -> None:
    """What is accepted is what the named segment continues, not everything that has lower numbers."""
    trust = trust_in(tmp_path / "keys", EVERYONE, *positions(switched))
    first = of(switched, TILL)[0]
    _, rows = decode(first.read_bytes())
    rows[-1] = replace(rows[-1], wall_last_us=rows[-1].wall_last_us + 1)
    forged = put(switched, again(first, None, rows=rows))
    verdict = judged(switched, trust)
    assert broken(verdict, forged.name) == [UNSIGNED]
    assert verdict["verdict"] == "unknown"


def test_unsigned_heads_from_before_the_position_state_nothing(switched: Path, tmp_path: Path) -> None:
    trust = trust_in(tmp_path / "keys", EVERYONE, *positions(switched))
    end = of(switched, TILL).index(last_unsigned(switched, TILL))
    for path in of(switched, TILL)[end + 1 :]:
        path.unlink()
    before = judged(switched, trust, drained=False)
    stated(switched, TILL, None)
    after = judged(switched, trust, drained=False)
    assert proven(after, TILL) == proven(before, TILL)
    assert after["evidence"]["broken"] == before["evidence"]["broken"]


def test_segments_of_earlier_versions_are_unsigned_ones(tmp_path: Path) -> None:
    older = Path(__file__).parent.parent / "store" / "older" / "journals"
    owners = (("producer", "shop"), ("group", "billing"))
    assert judged(older, None, drained=False)["evidence"]["broken"] == []
    verdict = judged(older, trust_in(tmp_path / "keys", owners), drained=False)
    assert all(broken(verdict, path.name) == [UNSIGNED] for owner in owners for path in of(older, owner))
    named = [f"{'/'.join(owner)}@{of(older, owner)[-1].name}" for owner in owners]
    verdict = judged(older, trust_in(tmp_path / "keys", owners, *named), drained=False)
    assert verdict["evidence"]["broken"] == []


# -- what was kept -------------------------------------------------------------------------------------------


class TestState:
    def test_facts_that_were_not_verified_are_read_again(
        self, journals: Path, trust: Trust, tmp_path: Path
    ) -> None:
        state = tmp_path / "state"
        rechained(journals, TILL, key_of(*OTHER))
        assert judged(journals, None, state=state)["verdict"] == "complete"
        verdict = judged(journals, trust, state=state)
        assert verdict["verdict"] == "unknown"
        assert {broken(verdict, path.name)[0] for path in of(journals, TILL)} == {WRONG}
        assert judged(journals, None, state=state)["verdict"] == "complete"

    def test_without_their_segments_they_are_missing(
        self, journals: Path, trust: Trust, tmp_path: Path
    ) -> None:
        state = tmp_path / "state"
        assert judged(journals, None, state=state)["verdict"] == "complete"
        shutil.rmtree(journals / "role=producer" / "client=till")
        verdict = judged_with_state(journals, trust, state)
        assert verdict["verdict"] == "unknown"
        assert "no journal of producer till" in verdict["evidence"]["missing"]

    def test_facts_that_were_verified_are_not_read_again(self, journals: Path, tmp_path: Path) -> None:
        state, keys = tmp_path / "state", tmp_path / "keys"
        assert judged(journals, trust_in(keys, EVERYONE), state=state)["verdict"] == "complete"
        for path in journals.rglob("*.ndjson"):
            path.unlink()
        assert judged_with_state(journals, None, state)["verdict"] == "complete"
        assert judged_with_state(journals, trust_in(keys, EVERYONE), state)["verdict"] == "complete"
        # Another key is added.
        more = trust_in(keys, dict.fromkeys(EVERYONE, "a b"))
        assert judged_with_state(journals, more, state)["verdict"] == "complete"

    def test_a_key_that_is_not_trusted_any_more(self, journals: Path, tmp_path: Path) -> None:
        state, keys = tmp_path / "state", tmp_path / "keys"
        assert judged(journals, trust_in(keys, EVERYONE), state=state)["verdict"] == "complete"
        verdict = judged(journals, trust_in(keys, {TILL: "b", LEDGER: "a", OTHER: "a"}), state=state)
        assert verdict["verdict"] == "unknown"
        assert {broken(verdict, path.name)[0] for path in of(journals, TILL)} == {FOREIGN}
        assert judged(journals, trust_in(keys, EVERYONE), state=state)["verdict"] == "complete"

    def test_a_position_that_is_not_named_any_more(self, switched: Path, tmp_path: Path) -> None:
        state, keys = tmp_path / "state", tmp_path / "keys"
        named = trust_in(keys, EVERYONE, *positions(switched))
        for _ in range(2):
            assert judged(switched, named, state=state)["verdict"] == "complete"
        verdict = judged(switched, trust_in(keys, EVERYONE), state=state)
        assert broken(verdict, last_unsigned(switched, TILL).name) == [UNSIGNED]
        assert judged(switched, named, state=state)["verdict"] == "complete"


def judged_with_state(journals: Path, trust: Trust | None, state: Path) -> dict[str, Any]:
    """Without the plain checker, which has no state."""
    return audit(
        local_spark(2), journals, state=state, expect=AuditExpect(drained=True, now_us=2**60, trust=trust)
    )


def test_spark_reads_the_file_of_keys_where_its_tasks_are(
    spark: SparkSession, journals: Path, tmp_path: Path
) -> None:
    """By its path, so no secret is sent to them; also for journals that only Spark can read."""
    expect = AuditExpect(drained=True, now_us=2**60, trust=trust_in(tmp_path / "keys", EVERYONE))
    places = (journals, f"file:{journals.parent}/journal*")
    for place in places:
        assert audit(spark, str(place), expect=expect)["verdict"] == "complete"
    made = rechained(journals, TILL, key_of(*OTHER))
    for place in places:
        verdict = audit(spark, str(place), expect=expect)
        assert verdict["verdict"] == "unknown"
        assert all(broken(verdict, path.name) == [WRONG] for path in made)


# -- files of keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no key"),
        ("till a " + "ab" * 32, "line 1: a line must be"),
        ("producer/ a " + "ab" * 32, "line 1: a line must be"),
        ("consumer/till a " + "ab" * 32, "line 1: a line must be"),
        ("producer/till " + "ab" * 32, "line 1: a line must be"),
        ("producer/till a xyz", "line 1: a line must be"),
        ("producer/till a " + "ab" * 16, None),
        ("\nproducer/till a " + "ab" * 15, "line 2: .* at least 16"),
        ("producer/till a " + "00" * 32, "all zeros"),
        (
            "producer/till a " + "ab" * 32 + "\n\nproducer/till a " + "cd" * 32,
            "line 3: this client already has",
        ),
        (
            "producer/till a " + "ab" * 32 + "\ngroup/till b " + "ab" * 32,
            "line 2: another client has the same",
        ),
        ("producer/till a " + "ab" * 32 + "\nproducer/till b " + "ab" * 32, None),
    ],
)
def test_files_of_keys(tmp_path: Path, text: str, says: str | None) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    if says is None:
        assert read_client_keys(path).of("producer", "till")
        return
    with pytest.raises(ConfigError, match=says) as raised:
        read_client_keys(path)
    assert str(path) in str(raised.value)
    assert "abab" not in str(raised.value).replace(str(path), "")


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys", EVERYONE)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_client_keys(path)


@pytest.mark.parametrize(
    "position",
    [
        "till@" + "0" * 64,
        "producer/till@",
        "producer/till",
        "producer/@" + "0" * 64,
        "producer/t@" + "0" * 63,
    ],
)
def test_positions_that_name_no_segment(tmp_path: Path, position: str) -> None:
    with pytest.raises(ConfigError, match="--unsigned-before"):
        trust_in(tmp_path / "keys", EVERYONE, position)


def test_a_position_without_keys() -> None:
    with pytest.raises(ConfigError, match="--unsigned-before needs --journal-keys"):
        make_trust(None, ["producer/till@" + "0" * 64])


def test_a_pickle_has_the_path_and_no_secrets(tmp_path: Path) -> None:
    """Other machines read the file themselves."""
    trust = trust_in(tmp_path / "keys", EVERYONE)
    pickled = pickle.dumps(trust)
    for owner in EVERYONE:
        secret = secret_of(*owner, "a")
        assert secret not in pickled
        assert secret.hex() not in repr(trust)
    assert pickle.loads(pickled).keys.fingerprint == trust.keys.fingerprint
    keys_file(tmp_path / "keys", (TILL,))
    with pytest.raises(ConfigError, match="other keys"):
        pickle.loads(pickled)
    with pytest.raises(TypeError, match="secrets"):
        pickle.dumps(ClientKeys({TILL: {"a": secret_of(*TILL, "a")}}))


def test_clients_read_their_own_key_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"a {secret_of(*TILL, 'a').hex()}\n")
    path.chmod(0o600)
    assert read_key_ring(path).sign([b"x"]) == key_of(*TILL).sign([b"x"])


def test_a_journal_key_must_sign(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="journal: key: this key ring only verifies"):
        JournalExport(tmp_path, key=KeyRing({"a": b"\1" * 32}))
    with pytest.raises(ConfigError, match="journal: key must be a KeyRing"):
        JournalExport(tmp_path, key=b"\1" * 32)  # type: ignore[arg-type]
    shown = repr(JournalExport(tmp_path, key=key_of(*TILL)))
    assert secret_of(*TILL, "a").hex() not in shown
    assert repr(secret_of(*TILL, "a")) not in shown
