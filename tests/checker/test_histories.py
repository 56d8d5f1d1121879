"""Correct histories are complete, whatever crashed on the way."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chance import examples
from tests.checker.histories import make


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 2**32), logs=st.booleans())
def test_correct_history_is_complete(seed: int, logs: bool) -> None:
    history = make(seed, logs=logs)
    report = history.check()
    assert report.verdict == "complete", report.text()
    assert report.findings == []
    messages = report.messages
    assert messages.delivered == {"primary": messages.enqueued, "secondary": messages.enqueued}
    assert (messages.lost, messages.duplicates, messages.out_of_order, messages.pending) == (0, 0, 0, 0)
    assert report.sites["dc1"].confirmed == messages.enqueued
