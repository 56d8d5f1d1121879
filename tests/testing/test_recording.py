"""Messages that record what a handler does with them."""

from __future__ import annotations

import pytest

from reliamsg import Message
from reliamsg.testing import RecordingMessage


def test_it_is_open_until_the_handler_does_something() -> None:
    message = RecordingMessage(body=b"one", headers={"account": "A"}, redelivered=True)
    assert (message.outcome, message.durable, message.reason, message.error) == ("open", False, None, None)
    assert message == Message(body=b"one", headers={"account": "A"}, redelivered=True)


def test_what_the_handler_does_first_counts() -> None:
    message = RecordingMessage()
    message.ack()
    message.reject("too late")
    assert (message.outcome, message.reason, message.durable) == ("acknowledged", None, False)
    message.ack(durable=True)
    assert message.durable
    rejected = RecordingMessage()
    rejected.reject("invalid")
    rejected.ack()
    assert (rejected.outcome, rejected.reason) == ("rejected", "invalid")


def test_a_failure_is_not_final() -> None:
    message = RecordingMessage()
    with pytest.raises(ZeroDivisionError), message.process():
        raise ZeroDivisionError
    assert isinstance(message.error, ZeroDivisionError)
    outcomes = [message.outcome]
    with message.process():
        pass
    outcomes.append(message.outcome)
    assert outcomes == ["failed", "acknowledged"]


def test_each_message_has_a_record_of_its_own() -> None:
    first, second = RecordingMessage(), RecordingMessage()
    first.ack()
    assert second.outcome == "open"
