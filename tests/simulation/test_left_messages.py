"""The judge's view of messages that a consumer left to their producer: only messages that the producer has to keep may
be left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reliamsg.message import MessageId
from tests.simulation.test_judge import STREAM, Judged

GROUP = frozenset({"g1"})


class Left(Judged):
    """One message, which its broker was told to delete; the consumer's journal is reported when the judge asks
    for it."""

    def __init__(self, keeps: bool = True, named: frozenset[str] = GROUP, named_before: bool = False) -> None:
        super().__init__(keepers=["p1"] if keeps else [])
        if named_before:
            self.oracle.group_named("p1", "orders", "g1")
            self.later(1.0)
        self.says: list[MessageId] = []
        self.files.report = self._report
        self.message = self.publish(1)
        self.operation = self.oracle.operations[b"1"]
        self.operation.groups = self.operation.named = named
        self.oracle.released_at("dc1", "g1", self.message, 77)
        self.open_inboxes("inbox")

    def _report(self) -> None:
        for message in self.says:
            self.oracle.left_to_producer("g1", "g1-1", STREAM, message.epoch, message.seq, message.seq)

    def lacks(self) -> None:
        self.oracle.announced_missing("g1", "g1-1", STREAM, [(1, 1, 1)])


def test_messages_that_a_producer_has_to_keep_may_be_left_to_it() -> None:
    judged = Left()
    judged.says.append(judged.message)
    judged.lacks()
    assert judged.kinds == []


def test_messages_not_reported_as_left_were_released() -> None:
    judged = Left()
    judged.lacks()
    assert judged.kinds == ["let_go_unsafe"]


@pytest.mark.parametrize(
    "made", [lambda: Left(keeps=False), lambda: Left(named=frozenset())], ids=["confirmed", "not named"]
)
def test_messages_that_no_producer_keeps_must_not_be_left(made: Callable[[], Left]) -> None:
    judged = made()
    judged.says.append(judged.message)
    judged.lacks()
    assert judged.kinds == ["let_go_unsafe"]


@pytest.mark.parametrize("before", [True, False])
def test_a_group_that_was_named_afterwards_is_not_kept_for(before: bool) -> None:
    judged = Left(named=frozenset(), named_before=before)
    if not before:
        judged.later(1.0)
        judged.oracle.group_named("p1", "orders", "g1")
    judged.says.append(judged.message)
    judged.lacks()
    assert judged.kinds == ([] if before else ["let_go_unsafe"])


@pytest.mark.parametrize("named", [True, False])
def test_messages_left_and_then_lost_were_not_safe(named: bool) -> None:
    """Except for a group that is no longer named, which is promised nothing."""
    judged = Left()
    judged.says.append(judged.message)
    judged.lacks()
    judged.later(10.0)
    if not named:
        judged.operation.groups = frozenset()
    judged.expire(1, 1)
    judged.oracle.judge()
    assert judged.kinds == (["let_go_unsafe"] if named else [])
