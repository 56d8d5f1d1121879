"""From the arguments of a publish to what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reliamsg.arguments import check_list
from reliamsg.config import check_name
from reliamsg.errors import ConfigError
from reliamsg.producer.commit import Content
from reliamsg.wire.application import check_bodies, check_body, check_headers, check_key

__all__ = ["content_of", "content_of_many"]


def content_of(topic: str, body: bytes, key: str | None, headers: Mapping[str, str] | None) -> Content:
    """One message. Raises :class:`ConfigError` and :class:`MessageTooLarge`."""
    return _content(topic, [check_body(body)], key, headers)


def content_of_many(
    topic: str, bodies: Iterable[bytes], key: str | None, headers: Mapping[str, str] | None
) -> Content:
    """Messages that share key and headers. Raises the same errors, and :class:`ConfigError` if there are none."""
    if not isinstance(bodies, list):
        bodies = check_list("bodies", bodies, "bodies of bytes")
    checked = check_bodies(bodies)
    if not checked:
        raise ConfigError("publish_many() needs at least one body")
    return _content(topic, checked, key, headers)


def _content(topic: str, bodies: list[bytes], key: str | None, headers: Mapping[str, str] | None) -> Content:
    check_name("topic", topic)
    beside = len((check_key(key) or "").encode())
    checked = check_headers(headers)
    if checked:
        beside += sum(len(name.encode()) + len(value.encode()) for name, value in checked.items())
    return Content(topic, bodies, key, checked, sum(map(len, bodies)) + beside * len(bodies))
