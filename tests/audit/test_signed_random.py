"""Random journals of which random segments and heads are signed, by their clients and by others: the audit and the
plain checker, with random keys and positions, say the same of them, with and without a state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from reliamsg.audit.expect import Expect as AuditExpect
from reliamsg.audit.job import audit
from reliamsg.audit.windows import Baseline
from reliamsg.checker import Expect, check_directory
from reliamsg.keys import KeyRing
from reliamsg.store.head import Head, encode_head, head_path
from reliamsg.store.segment import decode, parse_name
from reliamsg.trust import Owner, Trust
from tests.audit.equality import shared
from tests.audit.generated import journals
from tests.audit.local_spark import local_spark
from tests.audit.test_increments import with_forks
from tests.audit.test_kept import in_pieces, moved, shown
from tests.chance import examples
from tests.signed import key_of, trust_in


class Signers:
    """Decides who signs what in one run."""

    def __init__(self, rng: random.Random, owners: list[Owner]) -> None:
        self.rng, self.owners = rng, owners
        self.care = rng.choice((0.0, 0.8, 0.97, 1.0, 1.0))
        """How likely it is that a client signs a segment itself."""
        self.switched = {owner: rng.random() < 0.3 for owner in owners}
        """Whether a client began without signing."""

    def segment(self, role: str, client: str) -> KeyRing | None:
        owner = role, client
        if self.switched.get(owner) and self.rng.random() < 0.7:
            return None
        self.switched[owner] = False
        return self.any(owner)

    def any(self, owner: Owner) -> KeyRing | None:
        if self.rng.random() < self.care:
            return key_of(*owner, self.rng.choice("aab"))
        return self.rng.choice((None, key_of(*self.rng.choice(self.owners)), key_of(*owner, "c")))


def with_heads(target: Path, signers: Signers) -> None:
    """Some clients state that they are idle, or somebody does for them."""
    for path in sorted(target.rglob("*.ndjson")):
        if signers.rng.random() < 0.9:
            continue
        header, name = decode(path.read_bytes())[0], parse_name(path.name)
        assert name is not None
        head = Head(
            role=header.role, client=header.client, boot=header.boot, lsn=header.last_lsn, digest=name.digest,
            wall_us=2**50,
        )  # fmt: skip
        key = signers.any((header.role, header.client))
        place = target / head_path(header.role, header.client, header.boot)
        place.write_bytes(encode_head(head, key))


def made(target: Path, rng: random.Random, *, forks: bool = False) -> list[Owner]:
    """The journals of a few runs below `target`; returns their clients. `forks`: some files were copied."""
    every: list[Owner] = []
    for number in range(rng.randint(1, 3)):
        run = journals(
            rng.getrandbits(32), f"-{number}", clean=rng.random() < 0.6, changes=rng.choice((0, 0, 1, 2))
        )
        owners: list[Owner] = [(role, name) for role, name, _ in run.clients]
        signers = Signers(rng, owners)
        run.write(target, rng, signers.segment)
        if forks and rng.random() < 0.2:
            with_forks(run, target, rng)
        with_heads(target, signers)
        every += owners
    return list(dict.fromkeys(every))


def trusted(place: Path, target: Path, owners: list[Owner], rng: random.Random) -> Trust | None:
    """Most have all keys; some positions are those of clients' last unsigned segments, or are any."""
    if rng.random() < 0.1:
        return None
    known = {owner: rng.choice(("a b", "a b", "a b", "a", "b")) for owner in owners if rng.random() < 0.95}
    return trust_in(place / "keys", known, *positions(target, owners, rng))


def positions(target: Path, owners: list[Owner], rng: random.Random) -> Iterator[str]:
    for role, client in owners:
        paths = sorted(
            (target / f"role={role}" / f"client={client}").rglob("*.ndjson"),
            key=lambda path: int(path.name.split("-")[1]),
        )
        unsigned = [path for path in paths if b'"signature":' not in path.read_bytes().partition(b"\n")[0]]
        if unsigned and rng.random() < 0.7:
            yield f"{role}/{client}@{unsigned[-1].name}"
        if paths and rng.random() < 0.2:
            yield f"{role}/{client}@{rng.choice(paths).name}"


@settings(
    max_examples=examples(40),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32 - 1))
def test_both_say_the_same_of_every_signature(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    place = tmp_path_factory.mktemp("signed")
    owners = made(place / "journals", rng)
    trust = trusted(place, place / "journals", owners, rng)
    drained = rng.random() < 0.5
    rules: dict[str, Any] = {"drained": drained, "now_us": 2**60, "trust": trust}
    verdict = audit(local_spark(seed), place / "journals", expect=AuditExpect(**rules))
    report = check_directory(place / "journals", Expect(**rules))
    by_audit, plainly = shared(verdict), shared(report.as_dict())
    differ = {name: (plainly[name], value) for name, value in by_audit.items() if plainly[name] != value}
    assert not differ, f"seed {seed}"


@settings(
    max_examples=examples(20),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32 - 1))
def test_changes_of_keys_between_audits_with_a_state(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Each gives the verdict of an audit without a state."""
    rng = random.Random(seed)
    place = tmp_path_factory.mktemp("signed")
    owners = made(place / "all", rng, forks=True)
    paths = sorted((place / "all").rglob("*.ndjson"), key=lambda path: int(path.name.split("-")[1]))
    trust = trusted(place, place / "all", owners, rng)
    drained = rng.random() < 0.5
    for number, piece in enumerate(in_pieces(paths, rng, min(len(paths), rng.randint(2, 5)))):
        moved(piece, place / "all", place / "journals")
        if rng.random() < 0.5:
            trust = trusted(place, place / "all", owners, rng)
        expect = AuditExpect(drained=drained, now_us=2**60, trust=trust)
        found, whole = (
            shown(
                audit(
                    local_spark(seed + number),
                    place / "journals",
                    state=state,
                    expect=expect,
                    baseline=Baseline(),
                )
            )
            for state in (place / "state", None)
        )
        differ = {name: (value, found[name]) for name, value in whole.items() if found[name] != value}
        assert not differ, f"seed {seed}, increment {number}"
