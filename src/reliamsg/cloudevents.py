"""CloudEvents 1.0: converts events to messages and back. Nothing else in reliamsg depends on it.

::

    event = CloudEvent("/shop", "com.example.order.placed", data=b'{"item": 42}', datacontenttype="application/json")
    body, headers = to_message(event)
    producer.publish("orders", body, headers=headers)

    event = from_message(message)

In *binary* mode, the body is the event's data, and attributes are headers. In *structured* mode, the body is a JSON
object with everything. The header ``content-type`` carries `datacontenttype` or the type of the JSON object; messages
with ``wire="plain"`` have it in AMQP's property and MQTT 5's Content Type as well, where the bindings demand it.

See `CloudEvents 1.0.2 <https://github.com/cloudevents/spec/tree/v1.0.2/cloudevents>`_ and its bindings for AMQP and
MQTT.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from reliamsg.arguments import check_choice
from reliamsg.config import unsafe_characters
from reliamsg.errors import ConfigError
from reliamsg.message import Message
from reliamsg.wire.application import check_body

__all__ = ["Binding", "CloudEvent", "Encoded", "event_of", "from_message", "sequence_of", "to_message"]

SPECVERSION = "1.0"
STRUCTURED = "application/cloudevents+json"
_CONTENT_TYPE = "content-type"
_OPTIONAL = ("subject", "dataschema", "datacontenttype")
_ATTRIBUTES = frozenset(("specversion", "id", "source", "type", "time", "data", "data_base64", *_OPTIONAL))
_EXTENSION_NAME = re.compile(r"[a-z0-9]+")
_URI_REFERENCE = re.compile(r"[!-~]+")
_JSON_TYPE = re.compile(r"[^/;]+/([^;]+\+)?json *(;|$)", re.IGNORECASE)

Binding = Literal["rabbitmq", "amqp", "mqtt"]
"""By which binding the headers of binary mode are named.

``rabbitmq``: ``ce-id``, as in Knative's binding for RabbitMQ (AMQP 0-9-1), which the official SDKs know. ``amqp``:
``cloudEvents_id``, as in the binding for AMQP 1.0. ``mqtt``: ``id``, as in the binding for MQTT 5.
"""
_PREFIX: dict[Binding, str] = {"rabbitmq": "ce-", "amqp": "cloudEvents_", "mqtt": ""}
_PREFIXES = ("ce-", "cloudEvents_", "cloudEvents:", "")
"""All that are read; the binding for AMQP 1.0 has two."""

Value = str | int | bool
"""The value of an extension. In binary mode all values are strings, and so are those that :func:`from_message`
returns."""


@dataclass(frozen=True)
class CloudEvent:
    """An event. `source` and `id` together identify it: a second event with both is the same event.

    `source`: a URI reference. `type`: such as ``com.example.order.placed``. `id`: by default a random UUID. `data`:
    bytes of the type that `datacontenttype` names; no data and empty data are the same. `time`: with a time zone.
    `extensions`: further attributes, whose names consist of lower-case letters and digits.

    Raises :class:`ConfigError` if an attribute is not valid.
    """

    source: str
    type: str
    _: KW_ONLY
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    data: bytes = b""
    datacontenttype: str | None = None
    subject: str | None = None
    time: datetime | None = None
    dataschema: str | None = None
    extensions: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("id", "source", "type"):
            _check_text(name, getattr(self, name))
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
        for name, uri in (("source", self.source), ("dataschema", self.dataschema)):
            if uri is not None and _URI_REFERENCE.fullmatch(uri) is None:
                raise ConfigError(
                    f"{name} of a CloudEvent is not a URI: {uri!r}; percent-encode other characters"
                )
        if self.time is not None and (not isinstance(self.time, datetime) or self.time.utcoffset() is None):
            raise ConfigError("time of a CloudEvent must be a datetime with a time zone")
        check_body(self.data)
        for name, value in self.extensions.items():
            if not isinstance(name, str) or _EXTENSION_NAME.fullmatch(name) is None or name in _ATTRIBUTES:
                raise ConfigError(
                    f"{name!r} can't name an extension of a CloudEvent: use lower-case letters and digits"
                )
            if not isinstance(value, int):  # nor bool, which is one
                _check_text(name, value, least=0)


class Encoded(NamedTuple):
    """What to publish."""

    body: bytes
    headers: dict[str, str]


def to_message(
    event: CloudEvent, mode: Literal["binary", "structured"] = "binary", *, binding: Binding = "rabbitmq"
) -> Encoded:
    """Body and headers of the message for an event.

    `binding`, in binary mode: by which names consumers without reliamsg look for the attributes. :func:`from_message`
    knows them all. Structured mode is the same for all protocols.

    Raises :class:`ConfigError` in structured mode if `datacontenttype` is JSON and `data` is not.
    """
    check_choice("mode", mode, ("binary", "structured"))
    check_choice("binding", binding, _PREFIX)
    attributes = _attributes(event)
    if mode == "structured":
        return Encoded(_to_json(event, attributes), {_CONTENT_TYPE: STRUCTURED})
    prefix = _PREFIX[binding]
    headers = {f"{prefix}{name}": _canonical(value) for name, value in attributes.items()}
    if event.datacontenttype is not None:
        headers[_CONTENT_TYPE] = event.datacontenttype
    return Encoded(event.data, headers)


def from_message(message: Message) -> CloudEvent | None:
    """The event that a message carries, in either mode; None if it carries none.

    Raises :class:`ConfigError` if it is not valid, of another version than 1.0, or in another structured format than
    JSON.
    """
    content_type = message.headers.get(_CONTENT_TYPE, "")
    if content_type.lower().startswith("application/cloudevents"):
        if content_type.partition(";")[0].strip().lower() != STRUCTURED:
            raise ConfigError(f"CloudEvents of type {content_type!r} can't be read, only {STRUCTURED}")
        return _from_json(message.body)
    for prefix in _PREFIXES:
        found = {
            name.removeprefix(prefix): value
            for name, value in message.headers.items()
            if name.startswith(prefix)
        }
        if {"specversion", "id", "source", "type"} <= found.keys():
            # Without a prefix, any header may be an attribute.
            usable = {name: value for name, value in found.items() if prefix or _may_be_attribute(name)}
            return _event(usable | ({"datacontenttype": content_type} if content_type else {}), message.body)
    return None


def event_of(message: Message, type: str) -> CloudEvent:
    """An event for a message that was not published as one, to forward it to others. `type`: of the event.

    Its `source` is the stream, ``/PRODUCER/TOPIC``, its `id` the message's, and the extension ``sequence`` is
    :func:`sequence_of` the message. If the message is delivered again, the event is the same.
    """
    return CloudEvent(
        "/" + quote(str(message.stream), safe="/~"), type, id=str(message.id), data=message.body,
        datacontenttype=message.headers.get(_CONTENT_TYPE) or None, extensions={"sequence": sequence_of(message)},
    )  # fmt: skip


def sequence_of(message: Message) -> str:
    """Epoch and sequence number, zero-padded: of two messages of a stream, the earlier one has the lesser string, as
    the extension ``sequence`` demands. Not contiguous: each opening of the outbox begins an epoch."""
    return f"{message.epoch:020d}-{message.seq:020d}"


# -- attributes ---------------------------------------------------------------------------------------------


def _attributes(event: CloudEvent) -> dict[str, Value]:
    """All but `datacontenttype`, which each mode has in a place of its own."""
    found: dict[str, Value] = {
        "specversion": SPECVERSION, "id": event.id, "source": event.source, "type": event.type
    }  # fmt: skip
    if event.subject is not None:
        found["subject"] = event.subject
    if event.time is not None:
        found["time"] = event.time.isoformat().replace("+00:00", "Z")
    if event.dataschema is not None:
        found["dataschema"] = event.dataschema
    return found | dict(event.extensions)


def _canonical(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _event(found: Mapping[str, Any], data: bytes) -> CloudEvent:
    attributes = dict(found)
    version = attributes.pop("specversion", None)
    if version != SPECVERSION:
        raise ConfigError(f"CloudEvents of version {version!r} can't be read, only {SPECVERSION!r}")
    missing = [name for name in ("id", "source", "type") if name not in attributes]
    if missing:
        raise ConfigError(f"a CloudEvent without {', '.join(missing)}")
    known = {name: attributes.pop(name, None) for name in ("id", "source", "type", *_OPTIONAL)}
    when = attributes.pop("time", None)
    if when is not None:
        try:
            known["time"] = datetime.fromisoformat(when)
        except (TypeError, ValueError):
            raise ConfigError(f"time of a CloudEvent is not a timestamp: {when!r}") from None
    extensions = {name: _canonical(value) for name, value in attributes.items() if value is not None}
    return CloudEvent(**known, data=data, extensions=extensions)


def _may_be_attribute(name: str) -> bool:
    return _EXTENSION_NAME.fullmatch(name) is not None and name != "data"


def _check_text(name: str, value: object, least: int = 1) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{name} of a CloudEvent must be a string, not {type(value).__name__}")
    if len(value) < least:
        raise ConfigError(f"{name} of a CloudEvent is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} of a CloudEvent is not valid Unicode text") from None
    bad = unsafe_characters(value)
    if bad:
        raise ConfigError(f"{name} of a CloudEvent contains {', '.join(map(repr, bad))}")


# -- the JSON format ----------------------------------------------------------------------------------------


def _to_json(event: CloudEvent, attributes: dict[str, Value]) -> bytes:
    members: dict[str, object] = dict(attributes)
    if event.datacontenttype is not None:
        members["datacontenttype"] = event.datacontenttype
    if event.data and _is_json(event.datacontenttype):
        try:
            msgspec.json.decode(event.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ConfigError(
                f"data of a CloudEvent is not JSON, but is declared as {event.datacontenttype}"
            ) from None
        members["data"] = msgspec.Raw(event.data)  # as it is
    elif event.data:
        members["data_base64"] = base64.b64encode(event.data).decode()
    return msgspec.json.encode(members)


def _from_json(body: bytes) -> CloudEvent:
    try:
        members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        raw, encoded = members.pop("data", None), members.pop("data_base64", None)
        attributes: dict[str, Any] = {
            name: msgspec.json.decode(value, type=Value | None) for name, value in members.items()
        }
        binary = msgspec.json.decode(encoded, type=str | None) if encoded is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"a structured CloudEvent can't be read: {error}") from None
    if binary is not None:
        if raw is not None:
            raise ConfigError("a structured CloudEvent has both data and data_base64")
        try:
            return _event(attributes, base64.b64decode(binary, validate=True))
        except binascii.Error:
            raise ConfigError("data_base64 of a CloudEvent is not Base64") from None
    if raw is None:
        return _event(attributes, b"")
    if attributes.get("datacontenttype") is None:
        attributes["datacontenttype"] = "application/json"
    if _is_json(attributes["datacontenttype"]):
        return _event(attributes, bytes(raw))
    try:
        return _event(attributes, msgspec.json.decode(raw, type=str).encode())
    except msgspec.DecodeError:
        raise ConfigError("data of a CloudEvent that is not of a JSON type must be a string") from None


def _is_json(content_type: object) -> bool:
    return isinstance(content_type, str) and _JSON_TYPE.match(content_type) is not None
