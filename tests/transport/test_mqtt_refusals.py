"""Brokers that close the connection over a control address: the guilty one is found, and nobody else suffers."""

from __future__ import annotations

import logging

import pytest

from reliamsg.transport.mqtt import quarantine
from reliamsg.transport.mqtt.sender import MqttSender
from reliamsg.wire.address import client_id, group_address, producer_address, status_address
from tests.patience import wait_for
from tests.transport.mqtt_fixtures import broker, picky, version  # noqa: F401
from tests.transport.mqtt_picky import Picky
from tests.transport.mqtt_scripted import Peer, ScriptedBroker, scripted
from tests.transport.mqtt_tools import receiving, site
from tests.transport.tools import Sending, message, running

# The fixtures' names are arguments below.
# ruff: noqa: F811

GROUP = group_address("billing")
SESSION = client_id("billing")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "QUARANTINE_SECONDS", (0.3, 0.6))


def warnings(caplog: pytest.LogCaptureFixture, purpose: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return [text for text in found if f"control frames can't be {purpose}" in text]


def test_one_address_of_many_is_refused(
    picky: Picky, broker: ScriptedBroker, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A newcomer's odd name: what is sent to all others arrives, and what is read is not touched."""
    producers = [producer_address(f"p{number}") for number in range(30)]
    odd = producer_address("gw.example.com")
    picky.forbidden.add(odd)
    with receiving(site(broker.url, mqtt_version=version)) as (receiver, got):
        receiver.listen([GROUP])

        def tell_all() -> bool:
            for address in (*producers, odd, GROUP):
                receiver.send_control(address, b"state")
            return receiver.refused_addresses() == [odd]

        wait_for(tell_all, "the odd one is found", poll=0.05)
        assert picky.closed, "it was found by what it does"
        picky.taken.clear()
        closed = len(picky.closed)

        def all_taken() -> bool:
            tell_all()
            return {address for _, address in picky.taken} >= {*producers, GROUP}

        wait_for(all_taken, "all others are served", poll=0.05)
        wait_for(lambda: tell_all() and len(picky.closed) > closed, "the odd one is tried again", poll=0.05)
        assert receiver.refused_addresses() == [odd]
        assert not got.down, "the connection that is read with has nothing to do with it"
        assert [name for name in picky.connects if name == SESSION] == [SESSION]
        assert {name for name, _ in picky.closed} == {name for name in picky.connects if name != SESSION}
        assert all(address == odd for _, address in picky.closed)
        said = warnings(caplog, "sent to")
        assert len(said) == 1
        assert odd in said[0]
        # It is permitted in the end.
        picky.forbidden.clear()
        wait_for(lambda: not tell_all() and not receiver.refused_addresses(), "served again", poll=0.05)
        assert odd in {address for _, address in picky.taken}


def test_all_addresses_are_refused(picky: Picky, broker: ScriptedBroker, version: str) -> None:
    """Nothing can be told, and messages flow as always."""
    addresses = [producer_address(f"p{number}") for number in range(5)]
    picky.forbidden.update(addresses)
    events = Sending()
    with running(MqttSender(site(broker.url, mqtt_version=version), "gateway-7", [], events)) as sender:

        def tell_all() -> bool:
            for address in addresses:
                sender.send_control(address, b"status")
            return list(sender.refused_addresses()) == addresses

        wait_for(tell_all, "all are found", poll=0.02)
        events.queue += [message(number) for number in range(1, 51)]
        sender.wake()
        wait_for(lambda: len(events.confirms) == 50, "confirmed")
        assert not events.down
        assert len([name for name in picky.connects if not name.endswith(":ctl")]) == 1


def test_a_connection_lost_by_coincidence_condemns_nobody(picky: Picky, broker: ScriptedBroker) -> None:
    with receiving(site(broker.url, mqtt_version="5")) as (receiver, got):
        receiver.listen([GROUP])
        for number in range(3):
            before = len(got.frames)  # first: what is told may be heard at once
            wait_for(lambda: receiver.send_control(GROUP, b"beacon"), "taken")
            wait_for(lambda before=before: len(got.frames) > before, "heard")
            control = [client for client in picky.clients if client.name.endswith(":ctl")]
            receiver.send_control(GROUP, b"lost perhaps")
            control[0].peer.sock.shutdown(2)
            wait_for(
                lambda number=number: (
                    receiver.send_control(GROUP, b"again")
                    and sum(name.endswith(":ctl") for name in picky.connects) > number + 1
                ),
                "connected again",
                poll=0.02,
            )
        assert receiver.refused_addresses() == []
        assert not got.down


def test_an_address_that_may_not_be_subscribed_to(
    picky: Picky, broker: ScriptedBroker, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is listened at on the connection that is read with, which therefore ends: until the guilty one is found."""
    topics = [status_address(f"t{number}") for number in range(10)]
    picky.private.add(topics[4])
    where = site(broker.url, mqtt_version=version)
    events_of = [*topics, GROUP]
    with receiving(where) as (receiver, got):
        receiver.listen(events_of)
        wait_for(lambda: receiver.refused_addresses() == [topics[4]], "found")
        others = [address for address in events_of if address != topics[4]]

        def all_heard() -> bool:
            for address in others:
                picky.say(address, b"status")
            return {address for address, _ in got.frames} == set(others)

        wait_for(all_heard, "all others are heard", poll=0.05)
        assert all(address == topics[4] for _, address in picky.closed)
        said = warnings(caplog, "received at")
        assert len(said) == 1
        assert topics[4] in said[0]
        picky.private.clear()
        wait_for(lambda: not receiver.refused_addresses(), "heard again")
        wait_for(lambda: picky.say(topics[4], b"status"), "subscribed", poll=0.05)


def test_a_control_client_that_is_refused_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that does not accept its client id, say. What is read and published is not affected."""
    picky = Picky()

    def script(peer: Peer) -> None:
        if not picky.connects:  # the first one is the group's session
            picky(peer)

    with scripted(script) as broker, receiving(site(broker.url, mqtt_version="3.1.1")) as (receiver, got):
        wait_for(lambda: got.up, "connected")
        wait_for(
            lambda: receiver.send_control(GROUP, b"beacon") and "control frames can't be sent" in caplog.text,
            "said",
            poll=0.02,
        )
        assert not got.down
        assert len([r for r in caplog.records if "control frames can't be sent" in r.getMessage()]) == 1
