"""The content type that other clients see: AMQP's property `content-type`, MQTT 5's Content Type."""

from __future__ import annotations

from reliamsg.config import MAX_HEADER_BYTES
from reliamsg.transport.base import Outgoing
from reliamsg.wire.data import CONTENT_TYPE

__all__ = ["content_type_of"]

_HEADER = "content-type"


def content_type_of(message: Outgoing) -> str | None:
    """A data frame's own, or the application's header ``content-type`` of a message in the plain form.

    A header that is too long for AMQP, or that would make consumers read the message as a data frame, remains a header
    only.
    """
    if message.content_type is not None or not message.headers:
        return message.content_type
    named = message.headers.get(_HEADER)
    if not named or named == CONTENT_TYPE or len(named.encode()) > MAX_HEADER_BYTES:
        return None
    return named
