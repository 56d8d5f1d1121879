"""What applications may publish, and the errors for everything else."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable

import pytest
from hypothesis import given

from reliamsg.config import MAX_MESSAGE_BYTES
from reliamsg.errors import ConfigError, MessageTooLarge
from reliamsg.wire.application import check_body, check_headers, check_key
from tests.wire import strategies


class TestBody:
    def test_bytes_pass_as_they_are(self) -> None:
        body = b"x" * 1000
        assert check_body(body) is body
        assert check_body(b"") == b""
        assert len(check_body(bytes(MAX_MESSAGE_BYTES))) == MAX_MESSAGE_BYTES

    @pytest.mark.parametrize("kind", [bytearray, lambda b: memoryview(bytearray(b))])
    def test_mutable_fields_are_copied(self, kind: Callable[[bytes], bytearray]) -> None:
        buffer = kind(b"abc")
        body = check_body(buffer)
        buffer[0] = 0
        assert body == b"abc"
        assert type(body) is bytes

    def test_a_subclass_of_bytes_becomes_bytes(self) -> None:
        class Mine(bytes):
            pass

        assert type(check_body(Mine(b"abc"))) is bytes

    def test_a_view_of_something_wider_counts_in_bytes(self) -> None:
        wide = memoryview(bytes(MAX_MESSAGE_BYTES + 8)).cast("Q")
        with pytest.raises(MessageTooLarge):
            check_body(wide)
        assert check_body(wide[:1]) == bytes(8)

    @pytest.mark.parametrize("kind", [bytes, bytearray, lambda n: memoryview(bytes(n))])
    def test_too_large(self, kind: Callable[[int], bytes]) -> None:
        with pytest.raises(MessageTooLarge, match=f"{MAX_MESSAGE_BYTES + 1} bytes"):
            check_body(kind(MAX_MESSAGE_BYTES + 1))

    @pytest.mark.parametrize("body", ["text", None, 5, [1, 2], {}])
    def test_anything_else(self, body: object) -> None:
        with pytest.raises(ConfigError, match="must be bytes") as caught:
            check_body(body)  # type: ignore[arg-type]
        assert ("encode" in str(caught.value)) == isinstance(body, str)


class TestKey:
    @pytest.mark.parametrize("key", [None, "", "k", "k" * 255, "é" * 127])
    def test_good(self, key: str | None) -> None:
        assert check_key(key) == key

    @pytest.mark.parametrize("key", ["k" * 256, "é" * 128])
    def test_too_large(self, key: str) -> None:
        with pytest.raises(MessageTooLarge, match="256 bytes"):
            check_key(key)

    @pytest.mark.parametrize("key", [b"k", 1, "\ud800", "a\nb", "\0", "\uffff"])
    def test_bad(self, key: object) -> None:
        with pytest.raises(ConfigError):
            check_key(key)  # type: ignore[arg-type]


class TestHeaders:
    def test_a_copy(self) -> None:
        given_headers = {"account": "A"}
        headers = check_headers(given_headers)
        given_headers["account"] = "B"
        assert headers == {"account": "A"}
        assert check_headers(ChainMap({"a": "1"}, {"b": "2"})) == {"a": "1", "b": "2"}

    def test_none(self) -> None:
        assert check_headers(None) is None
        assert check_headers({}) is None

    def test_the_largest(self) -> None:
        for largest in (
            {"baggage": "v" * 8_192},
            {"h": "ü" * 4_096},
            {f"h{i}": "v" * 8_190 for i in range(7)},
        ):
            assert check_headers(largest) == largest

    @given(strategies.headers)
    def test_good(self, headers: dict[str, str] | None) -> None:
        assert check_headers(headers) == (headers or None)

    @pytest.mark.parametrize("headers", [
            {f"h{i}": "" for i in range(65)}, {"h": "v" * 8_193}, {"h": "ü" * 4_097}, {"h" * 256: ""},
            {f"h{i}": "v" * 8_191 for i in range(8)},
        ],
    )  # fmt: skip
    def test_too_large(self, headers: dict[str, str]) -> None:
        with pytest.raises(MessageTooLarge):
            check_headers(headers)

    @pytest.mark.parametrize(
        "headers",
        [
            {"": "v"},
            {"rm-seq": "1"},
            {"RM-anything": "1"},
            {"h": 1},
            {"h": b"v"},
            {"h": None},
            {1: "v"},
            {"h": "a\0b"},
            {"a\nb": "v"},
            {"h": "\ud800"},
            [("h", "v")],
            "h=v",
        ],
    )
    def test_bad(self, headers: object) -> None:
        with pytest.raises(ConfigError):
            check_headers(headers)  # type: ignore[arg-type]
