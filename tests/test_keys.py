"""Key rings: what they accept, and that they reveal nothing."""

from __future__ import annotations

import copy
import hashlib
import hmac
import pickle
from pathlib import Path

import pytest

from reliamsg import Consumer, KeyRing, Producer
from reliamsg.errors import ConfigError
from reliamsg.testing import MemoryNetwork

SECRET = b"0123456789abcdef"


@pytest.mark.parametrize(
    ("keys", "sign_with", "says"),
    [
        ({}, None, "at least one key"),
        ("a", None, "at least one key"),
        ({"": SECRET}, None, "key id"),
        ({"a b": SECRET}, None, "key id"),
        ({"ä": SECRET}, None, "key id"),
        ({"a" * 65: SECRET}, None, "key id"),
        ({1: SECRET}, None, "key id"),
        ({"a": "0123456789abcdef"}, None, "must be bytes"),
        ({"a": b"short"}, None, "at least 16"),
        ({"a": SECRET}, "b", "not among the keys"),
        ({f"k{i}": SECRET for i in range(101)}, None, "the limit is 100"),
    ],
)
def test_what_is_no_key_ring_is_refused(keys: object, sign_with: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        KeyRing(keys, sign_with=sign_with)  # type: ignore[arg-type]
    assert "0123456789" not in str(raised.value)


def test_a_signature_is_hmac_sha256_over_length_prefixed_parts() -> None:
    ring = KeyRing({"a": SECRET}, sign_with="a")
    expected = hmac.new(SECRET, b"2:ab0:3:cde", hashlib.sha256).digest()
    assert ring.sign([b"ab", b"", b"cde"]) == expected
    assert ring.verifies("a", expected, [b"ab", b"", b"cde"])


@pytest.mark.parametrize("parts", [[b"a", b"bcde"], [b"abcde"], [b"ab", b"cde"], [b"ab", b"", b"cdf"], []])
def test_parts_that_join_to_the_same_bytes_are_not_the_same(parts: list[bytes]) -> None:
    ring = KeyRing({"a": SECRET}, sign_with="a")
    assert not ring.verifies("a", ring.sign([b"ab", b"", b"cde"]), parts)


def test_keys_are_exchanged_without_a_gap() -> None:
    """Three steps: all clients trust the new one; all sign with it; the old one is removed."""
    new = b"fedcba9876543210"
    old_ring = KeyRing({"1": SECRET, "2": new}, sign_with="1")
    new_ring = KeyRing({"1": SECRET, "2": new}, sign_with="2")
    last_ring = KeyRing({"2": new}, sign_with="2")
    for signs in (old_ring, new_ring):
        for verifies in (old_ring, new_ring):
            assert verifies.verifies(signs.sign_with or "", signs.sign([b"x"]), [b"x"])
    assert last_ring.verifies("2", new_ring.sign([b"x"]), [b"x"])
    assert not last_ring.verifies("1", old_ring.sign([b"x"]), [b"x"])


def test_a_ring_that_only_verifies_does_not_sign() -> None:
    ring = KeyRing({"a": SECRET})
    assert not ring.signs
    with pytest.raises(ConfigError, match="sign_with"):
        ring.sign([b"x"])


@pytest.mark.parametrize("signature", [b"", b"\0" * 32, b"\0" * 31, b"\0" * 33])
def test_nonsense_is_no_signature(signature: bytes) -> None:
    ring = KeyRing({"a": SECRET}, sign_with="a")
    assert not ring.verifies("a", signature, [b"x"])
    assert not ring.verifies("b", ring.sign([b"x"]), [b"x"])


def test_secrets_do_not_show() -> None:
    ring = KeyRing({"b": SECRET, "a": SECRET[::-1]}, sign_with="a")
    assert repr(ring) == "<KeyRing of a, b, signs with a>"
    assert ring.key_ids == ("a", "b")
    for gives_away in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            gives_away(ring)
    assert not hasattr(ring, "__dict__")


@pytest.mark.parametrize(
    "keys", [KeyRing({"a": SECRET}), {"a": SECRET}, SECRET], ids=["verifies", "dict", "bytes"]
)
def test_clients_need_a_ring_that_signs(keys: object, tmp_path: Path) -> None:
    network = MemoryNetwork("dc1")
    with pytest.raises(ConfigError, match="keys"):
        Producer("p", network.sites, outbox=tmp_path / "p.db", keys=keys)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="keys"):
        Consumer("g", network.sites, topics=["t"], inbox=tmp_path / "g.db", keys=keys)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
