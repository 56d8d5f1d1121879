"""CloudEvents: what is converted comes back, and the official SDK reads and writes the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import pytest
from cloudevents.core.bindings import amqp, rabbitmq
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as PeerEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from reliamsg import ConfigError, Message
from reliamsg.cloudevents import Binding, CloudEvent, event_of, from_message, sequence_of, to_message
from reliamsg.wire.application import check_headers
from tests.chance import examples

Mode = Literal["binary", "structured"]
PREFIXES: dict[Binding, str] = {"rabbitmq": "ce-", "amqp": "cloudEvents_", "mqtt": ""}
FULL = CloudEvent(
    "/shop/till-1", "com.example.order.placed",
    id="A-1", data=b'{"item": 42}', datacontenttype="application/json", subject="order/ä",
    time=datetime(2026, 11, 28, 17, 30, 0, 250000, UTC), dataschema="https://example.com/order.json",
    extensions={"partitionkey": "till-1"},
)  # fmt: skip

_text = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=30)
_uris = st.text("abcXYZ019-._~:/?#[]@!$&'()*+,;=%", min_size=1, max_size=30)
_names = st.from_regex(r"\Ax[a-z0-9]{1,15}\Z")  # not one of the attributes
_json = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _text, st.lists, max_leaves=4)
_times = st.datetimes(
    datetime(1, 1, 3), datetime(9999, 12, 29), timezones=st.just(UTC) | st.just(timezone(timedelta(hours=-5)))
)  # fmt: skip
_content = st.one_of(
    st.tuples(_json.map(lambda value: json.dumps(value).encode()), st.just("application/vnd.x+json")),
    st.tuples(st.binary(max_size=60), st.none() | st.just("application/octet-stream")),
)


@st.composite
def _events(draw: st.DrawFn) -> CloudEvent:
    data, content_type = draw(_content)
    return CloudEvent(
        draw(_uris), draw(_text), id=draw(_text), data=data, datacontenttype=content_type,
        subject=draw(st.none() | _text), time=draw(st.none() | _times), dataschema=draw(st.none() | _uris),
        extensions=draw(st.dictionaries(_names, _text, max_size=3)),
    )  # fmt: skip


def carry(event: CloudEvent, mode: Mode = "binary", binding: Binding = "rabbitmq") -> Message:
    """The message, with headers that can be published."""
    body, headers = to_message(event, mode, binding=binding)
    return Message(body=body, headers=check_headers(headers) or {})


@settings(max_examples=examples(40))
@given(
    event=_events(), mode=st.sampled_from(["binary", "structured"]), binding=st.sampled_from(list(PREFIXES))
)
def test_what_is_converted_comes_back(event: CloudEvent, mode: Mode, binding: Binding) -> None:
    assert from_message(carry(event, mode, binding)) == event


@pytest.mark.parametrize(("binding", "prefix"), PREFIXES.items())
def test_binary_mode(binding: Binding, prefix: str) -> None:
    """Names, and values as canonical strings, are those of the bindings."""
    body, headers = to_message(FULL, binding=binding)
    assert body == FULL.data
    assert headers == {
        f"{prefix}specversion": "1.0",
        f"{prefix}id": "A-1",
        f"{prefix}source": "/shop/till-1",
        f"{prefix}type": "com.example.order.placed",
        f"{prefix}subject": "order/ä",
        f"{prefix}time": "2026-11-28T17:30:00.250000Z",
        f"{prefix}dataschema": "https://example.com/order.json",
        f"{prefix}partitionkey": "till-1",
        "content-type": "application/json",
    }


def test_structured_mode() -> None:
    body, headers = to_message(FULL, "structured")
    assert headers == {"content-type": "application/cloudevents+json"}
    assert json.loads(body) == {
        "specversion": "1.0",
        "id": "A-1",
        "source": "/shop/till-1",
        "type": "com.example.order.placed",
        "subject": "order/ä",
        "time": "2026-11-28T17:30:00.250000Z",
        "dataschema": "https://example.com/order.json",
        "partitionkey": "till-1",
        "datacontenttype": "application/json",
        "data": {"item": 42},
    }
    assert b'{"item": 42}' in body, "JSON data is not written anew"


def test_extensions_may_be_numbers_and_booleans() -> None:
    event = CloudEvent("/s", "t", extensions={"count": 5, "urgent": True})
    strings = {"count": "5", "urgent": "true"}
    assert {name: value for name, value in to_message(event).headers.items() if name[3:] in strings} == {
        "ce-count": "5", "ce-urgent": "true"
    }  # fmt: skip
    structured = carry(event, "structured")
    members = json.loads(structured.body)
    assert (members["count"], members["urgent"]) == (5, True)
    read = from_message(structured)
    assert read is not None
    assert read.extensions == strings


def test_every_event_gets_an_id() -> None:
    first, second = CloudEvent("/s", "t"), CloudEvent("/s", "t")
    assert first.id != second.id


class TestOfficialSdk:
    """The peer: the Python SDK of the project that owns the specification."""

    def attributes(self) -> dict[str, Any]:
        return {
            "specversion": "1.0", "id": FULL.id, "source": FULL.source, "type": FULL.type, "subject": FULL.subject,
            "time": FULL.time, "dataschema": FULL.dataschema, "datacontenttype": FULL.datacontenttype,
            "partitionkey": "till-1",
        }  # fmt: skip

    def same(self, peer: Any) -> bool:
        return bool(peer.get_attributes() == self.attributes() and peer.get_data() == {"item": 42})

    @pytest.mark.parametrize("mode", ["binary", "structured"])
    def test_it_reads_what_is_published_to_rabbitmq(self, mode: Mode) -> None:
        body, headers = to_message(FULL, mode)
        message = rabbitmq.RabbitMQMessage(headers, headers["content-type"], body)
        assert self.same(rabbitmq.from_rabbitmq_event(message))

    def test_it_reads_what_is_published_for_amqp_1_0(self) -> None:
        body, headers = to_message(FULL, binding="amqp")
        message = amqp.AMQPMessage({"content-type": headers["content-type"]}, dict(headers), body)
        assert self.same(amqp.from_binary(message, JSONFormat()))

    @pytest.mark.parametrize("mode", ["binary", "structured"])
    def test_its_messages_are_read(self, mode: Mode) -> None:
        peer = PeerEvent(self.attributes(), {"item": 42})
        made = (rabbitmq.to_binary_event if mode == "binary" else rabbitmq.to_structured_event)(peer)
        assert made.content_type is not None
        message = Message(body=made.body, headers=made.headers | {"content-type": made.content_type})
        assert from_message(message) == FULL

    @settings(max_examples=examples(20))
    @given(event=_events())
    def test_it_agrees_on_any_event(self, event: CloudEvent) -> None:
        body, _ = to_message(event, "structured")
        peer = JSONFormat().read(None, body)
        assert (peer.get_source(), peer.get_type(), peer.get_id()) == (event.source, event.type, event.id)
        assert peer.get_subject() == event.subject
        assert event.time is None or peer.get_time() == event.time  # it sets a time if there is none


STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8"}


def structured(text: str) -> CloudEvent | None:
    return from_message(Message(body=text.encode(), headers=STRUCTURED))


HEAD = '"specversion": "1.0", "id": "1", "source": "/s", "type": "t"'


@pytest.mark.parametrize(
    ("members", "data", "content_type"),
    [
        ("", b"", None),
        (', "data": null', b"null", "application/json"),
        (', "data": "text"', b'"text"', "application/json"),
        (', "data": "<a/>", "datacontenttype": "text/xml"', b"<a/>", "text/xml"),
        (', "data_base64": "AP8="', b"\x00\xff", None),
        (', "data_base64": null, "subject": null', b"", None),
    ],
)
def test_data_of_the_json_format(members: str, data: bytes, content_type: str | None) -> None:
    """Section 3.1 of the JSON format."""
    event = structured(f"{{{HEAD}{members}}}")
    assert event is not None
    assert (event.data, event.datacontenttype, event.subject) == (data, content_type, None)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '"event"', "{}", f"{{{HEAD}", '{"specversion": "1.0", "id": "1", "source": "/s"}',
        f'{{{HEAD.replace("1.0", "0.3")}}}', f'{{{HEAD}, "id": 5}}', f'{{{HEAD}, "subject": ""}}',
        f'{{{HEAD}, "time": "yesterday"}}', f'{{{HEAD}, "time": "2026-11-28T17:30:00"}}', f'{{{HEAD}, "time": 5}}',
        f'{{{HEAD}, "Upper": "x"}}', f'{{{HEAD}, "nested": {{}}}}', f'{{{HEAD}, "half": 0.5}}',
        f'{{{HEAD}, "data_base64": "*"}}', f'{{{HEAD}, "data_base64": 5}}',
        f'{{{HEAD}, "data": 1, "data_base64": "AP8="}}', f'{{{HEAD}, "data": 1, "datacontenttype": "text/plain"}}',
    ],
)  # fmt: skip
def test_invalid_structured_events_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="CloudEvent"):
        structured(text)


@given(st.binary(max_size=80))
def test_any_body_is_an_event_or_refused(body: bytes) -> None:
    with pytest.raises(ConfigError):
        from_message(Message(body=body, headers=STRUCTURED))


def test_both_separators_of_amqp_1_0_are_read() -> None:
    body, headers = to_message(FULL, binding="amqp")
    colons = {name.replace("cloudEvents_", "cloudEvents:"): value for name, value in headers.items()}
    assert from_message(Message(body=body, headers=colons)) == FULL


@pytest.mark.parametrize("kind", ["application/cloudevents-batch+json", "application/cloudevents+avro"])
def test_other_formats_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        from_message(Message(headers={"content-type": kind}))


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "application/json"}, {"id": "1", "source": "/s", "type": "t"}, {"ce-id": "1"}],
)
def test_other_messages_carry_no_event(headers: Mapping[str, str]) -> None:
    assert from_message(Message(headers=headers)) is None


def test_headers_without_prefix_may_be_anything() -> None:
    """Of MQTT's user properties, the names of extensions are taken, as the binding says."""
    headers = to_message(FULL, binding="mqtt").headers | {
        "data": "x",
        "X-Forwarded": "y",
        "traceparent": "00-1-2-3",
    }
    event = from_message(Message(body=FULL.data, headers=headers))
    assert event is not None
    assert event.extensions == {"partitionkey": "till-1", "traceparent": "00-1-2-3"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""}, {"id": 5}, {"source": ""}, {"source": "two words"}, {"source": "ä"}, {"type": ""}, {"type": None},
        {"subject": ""}, {"dataschema": ""}, {"datacontenttype": ""}, {"subject": "a\nb"}, {"subject": "\ud800"},
        {"time": datetime(2026, 11, 28)}, {"time": "2026-11-28T17:30:00Z"}, {"data": "text"}, {"data": None},
        {"extensions": {"Upper": "x"}}, {"extensions": {"": "x"}}, {"extensions": {"id": "x"}},
        {"extensions": {"data": "x"}}, {"extensions": {"half": 0.5}}, {"extensions": {5: "x"}},
    ],
)  # fmt: skip
def test_invalid_attributes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CloudEvent(**({"source": "/s", "type": "t"} | wrong))


def test_declared_json_must_be_json() -> None:
    event = CloudEvent("/s", "t", data=b"{", datacontenttype="application/json; charset=utf-8")
    assert from_message(carry(event)) == event
    with pytest.raises(ConfigError, match="not JSON"):
        to_message(event, "structured")


@pytest.mark.parametrize("wrong", [{"mode": "both"}, {"binding": "http"}])
def test_unknown_modes_and_bindings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        to_message(FULL, **wrong)


def test_any_message_can_be_forwarded_as_an_event() -> None:
    message = Message("till ü", "orders/eu", 3, 7, 12, b"<a/>", headers={"content-type": "text/xml"})
    event = event_of(message, "com.example.order")
    assert event == CloudEvent(
        "/till%20%C3%BC/orders/eu~3", "com.example.order", id="till ü/7/orders/eu/3/12", data=b"<a/>",
        datacontenttype="text/xml", extensions={"sequence": "00000000000000000007-00000000000000000012"},
    )  # fmt: skip
    assert event == event_of(message, "com.example.order"), "a redelivered message is the same event"


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**64 - 1)), min_size=2))
def test_sequences_sort_as_messages_do(positions: list[tuple[int, int]]) -> None:
    sequences = [sequence_of(Message(epoch=epoch, seq=seq)) for epoch, seq in sorted(positions)]
    assert sequences == sorted(sequences)
