"""Addresses: every topic and partition has one, and no two have the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg.config import MAX_NAME_BYTES
from reliamsg.wire import address
from reliamsg.wire.limits import MAX_PARTITION
from tests.wire import strategies

partitions = st.integers(0, MAX_PARTITION)


@given(strategies.names, partitions)
def test_round_trip(topic: str, partition: int) -> None:
    assert address.parse_address(address.topic_address(topic, partition)) == (topic, partition)


@given(strategies.names, partitions, strategies.names, partitions)
def test_different_places_have_different_addresses(a: str, m: int, b: str, n: int) -> None:
    same = (a, m) == (b, n)
    assert (address.topic_address(a, m) == address.topic_address(b, n)) == same


@given(st.text())
def test_an_address_is_ours_in_one_spelling_only(text: str) -> None:
    found = address.parse_address(text)
    assert found is None or address.topic_address(*found) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "~1",
        "orders~",
        "orders~0",
        "orders~01",
        "orders~65536",
        "orders~99999999999999999999",
        "orders~1~1",
        "orders~-1",
        "orders~١",
        "orders/#",
        "orders*",
        "$SYS/broker",
        "reliamsg:x",
        "a\0b",
        "x" * 101,
        "\ud800",
    ],
)
def test_not_ours(text: str) -> None:
    assert address.parse_address(text) is None


def test_names_of_queues() -> None:
    assert address.topic_address("orders/eu") == "orders/eu"
    assert address.topic_address("orders", 3) == "orders~3"
    assert address.group_queue("orders", 0, "billing") == "reliamsg:orders:0:billing"
    assert address.lock_queue("orders", 0, "billing") == "reliamsg:lock:orders:0:billing"
    assert address.client_id("billing") == "reliamsg:billing"


def test_the_longest_names_fit_into_a_queue_name() -> None:
    longest = "é" * (MAX_NAME_BYTES // 2)
    assert len(address.lock_queue(longest, MAX_PARTITION, longest).encode()) <= 255


@given(strategies.names, strategies.names, strategies.names, strategies.names)
def test_no_two_groups_share_a_queue(topic: str, group: str, other_topic: str, other_group: str) -> None:
    same = (topic, group) == (other_topic, other_group)
    assert (address.group_queue(topic, 0, group) == address.group_queue(other_topic, 0, other_group)) == same
    assert address.lock_queue(topic, 0, group) != address.group_queue(other_topic, 0, other_group)
