"""Reaching MQTT sites: logins, TLS, several endpoints, groups made ahead, faults of the network."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from reliamsg.config import Credentials, Endpoint
from reliamsg.errors import ConfigError, TransientError
from reliamsg.lab.brokers.base import TlsFiles
from reliamsg.lab.brokers.mosquitto import Mosquitto
from reliamsg.lab.embedded.broker import EmbeddedBroker
from reliamsg.lab.faults.proxy import TcpProxy
from reliamsg.lab.process import free_port
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import open_receiver, open_sender
from reliamsg.transport.mqtt.groups import create_group
from reliamsg.transport.mqtt.receiver import MqttReceiver
from reliamsg.transport.mqtt.sender import MqttSender
from reliamsg.transport.network import DialError, Waker, dial
from tests.patience import quickest, wait_for
from tests.transport.mqtt_fixtures import MakeBroker, make_broker, name, shared, version  # noqa: F401
from tests.transport.mqtt_tools import receiving, sending, site
from tests.transport.tools import Receiving, Sending, message

# The fixtures' names are arguments below.
# ruff: noqa: F811


def test_wrong_credentials_are_a_state_and_heal(make_broker: MakeBroker, version: str, name: str) -> None:
    broker = make_broker(users={"anna": "right"})
    word = "wrong"

    def login() -> Credentials:
        return "anna", word

    where = site(f"mqtt://127.0.0.1:{broker.port}", mqtt_version=version, credentials=login)
    with sending(where, [message(1, name)]) as (_, sent):
        wait_for(lambda: len(sent.failed) >= 2, "refused, and tried again")
        assert all(credentials for _, _, credentials in sent.failed)
        word = "right"
        wait_for(lambda: sent.confirms == [1], "confirmed")
    with receiving(where, name, group=name) as (_, got):
        wait_for(lambda: got.up, "connected")
    word = "wrong"
    with receiving(where, name, group=name) as (_, got):
        wait_for(lambda: got.failed, "refused")
        assert got.failed[0][2]


def test_a_login_is_needed(make_broker: MakeBroker, version: str) -> None:
    broker = make_broker(users={"anna": "right"})
    with sending(site(f"mqtt://127.0.0.1:{broker.port}", mqtt_version=version)) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert sent.failed[0][2]


@dataclass
class Authority:
    files: TlsFiles
    trusting: ssl.SSLContext


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = trustme.CA()
    certificate = made.issue_cert("127.0.0.1")
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(files.certificate)
    certificate.private_key_pem.write_to_path(files.key)
    made.cert_pem.write_to_path(files.authority)
    trusting = ssl.create_default_context()
    made.configure_trust(trusting)
    return Authority(files, trusting)


def test_tls(make_broker: MakeBroker, authority: Authority, version: str, name: str) -> None:
    broker = make_broker(tls=authority.files)
    where = site(broker.tls_url, mqtt_version=version, tls=authority.trusting)
    body = bytes(range(256)) * 8000
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: got.up, "connected")
        messages = [message(token, name, body) for token in range(3)]
        messages += [message(token, name) for token in range(3, 300)]
        with sending(where, messages) as (_, sent):
            wait_for(lambda: len(sent.confirms) == 300, "confirmed")
            wait_for(lambda: len(got.deliveries) == 300, "delivered")
        assert got.bodies == [m.body for m in messages]
        assert got.down == []


def test_certificates_that_nobody_vouches_for_are_refused(
    make_broker: MakeBroker, authority: Authority, version: str
) -> None:
    broker = make_broker(tls=authority.files)
    with sending(site(broker.tls_url, mqtt_version=version)) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert "certificate is not accepted" in sent.failed[0][1]
        assert not sent.failed[0][2]
        assert sent.up == []


def test_certificates_of_another_host_are_refused(
    make_broker: MakeBroker, authority: Authority, version: str
) -> None:
    broker = make_broker(tls=authority.files)
    url = broker.tls_url.replace("127.0.0.1", "localhost")
    with sending(site(url, mqtt_version=version, tls=authority.trusting)) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert sent.up == []


def test_tls_to_a_port_that_speaks_none(shared: Mosquitto, authority: Authority) -> None:
    url = shared.url.replace("mqtt://", "mqtts://")
    where = site(url, tls=authority.trusting, connect_timeout=1.0)
    with sending(where) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert sent.up == []


def test_the_first_endpoint_may_be_dead(shared: Mosquitto, version: str, name: str) -> None:
    url = f"mqtt://127.0.0.1:{free_port()},127.0.0.1:{shared.port}"
    where = site(url, mqtt_version=version)
    with sending(where, [message(1, name)]) as (_, sent):
        wait_for(lambda: sent.confirms == [1], "confirmed")
        assert sent.up[0][0] == f"127.0.0.1:{shared.port}"
        assert "refused" in sent.failed[0][1]
    with receiving(where, name, group=name) as (_, got):
        wait_for(lambda: got.up, "connected")


def test_the_other_endpoint_takes_over(make_broker: MakeBroker, version: str, name: str) -> None:
    first, second = make_broker(), make_broker()
    url = f"mqtt://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    with sending(site(url, mqtt_version=version)) as (sender, sent):
        wait_for(lambda: sent.up, "connected")
        first.kill()
        wait_for(lambda: len(sent.up) == 2, "connected to the other")
        sent.queue.append(message(1, name))
        sender.wake()
        wait_for(lambda: sent.confirms == [1], "confirmed")
        assert sent.up[-1][0] == f"127.0.0.1:{second.port}"


def test_a_listener_that_never_answers_uses_up_its_budget_alone(shared: Mosquitto, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"mqtt://127.0.0.1:{mute.getsockname()[1]},127.0.0.1:{shared.port}"

        def send() -> None:
            with sending(site(url, connect_timeout=0.6), [message(1, name)]) as (_, sent):
                wait_for(lambda: sent.confirms == [1], "confirmed")

        assert 0.5 < quickest(send, 2.0) < 2.0


def test_hosts_without_an_address_are_named(version: str) -> None:
    with sending(site("mqtt://no-such-host.invalid", mqtt_version=version)) as (_, sent):
        wait_for(lambda: sent.failed, "unreachable", 30.0)
        assert "no-such-host.invalid" in sent.failed[0][1]


@contextmanager
def proxied(broker: Mosquitto) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", broker.port) as proxy:
        yield proxy


def test_lost_confirms_leave_the_outcome_open(shared: Mosquitto, version: str, name: str) -> None:
    """The broker has the messages, its confirms are lost: nothing is confirmed, and nothing resent."""
    with (
        receiving(site(shared.url), name, group=name, acknowledge=True) as (_, got),
        proxied(shared) as proxy,
    ):
        wait_for(lambda: got.up, "connected")
        where = site(f"mqtt://127.0.0.1:{proxy.port}", mqtt_version=version)
        with sending(where) as (sender, sent):
            wait_for(lambda: sent.up, "connected")
            proxy.drop_from_broker()
            sent.queue.extend(message(token, name) for token in range(5))
            sender.wake()
            wait_for(lambda: len(got.deliveries) == 5, "the broker has them")
            assert sent.confirms == []
            proxy.heal()
            sender.reconnect("confirm overdue")
            wait_for(lambda: len(sent.up) == 2, "connected again")
            sent.queue.append(message(9, name))
            sender.wake()
            # A confirm of the old connection may have come between healing and leaving it.
            wait_for(lambda: sent.confirms[-1:] == [9], "confirmed")
            wait_for(lambda: len(got.deliveries) == 6, "delivered")
            assert got.bodies[-1] == b"frame 9"


def test_a_cut_network_is_noticed_and_heals(shared: Mosquitto, version: str, name: str) -> None:
    with proxied(shared) as proxy:
        where = site(f"mqtt://127.0.0.1:{proxy.port}", mqtt_version=version)
        with receiving(where, name, group=name, acknowledge=True) as (_, got):
            wait_for(lambda: got.up, "connected")
            proxy.cut()
            wait_for(lambda: got.down and got.failed, "disconnected, unreachable")
            with sending(site(shared.url), [message(1, name)]) as (_, sent):
                wait_for(lambda: sent.confirms, "confirmed")
            proxy.heal()
            wait_for(lambda: got.deliveries, "delivered")
            assert got.up[-1][1] is True


def test_the_factory_makes_mqtt_transports(shared: Mosquitto) -> None:
    sender = open_sender(site(shared.url), "p", [], Sending())
    receiver = open_receiver(site(shared.url), [Binding("t", 0, "g")], Receiving())
    assert isinstance(sender, MqttSender)
    assert isinstance(receiver, MqttReceiver)
    sender.close(1.0)
    receiver.close(1.0)


def test_a_group_can_be_made_ahead(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    create_group(where, [Binding(name, 0, name), Binding(name + "-b", 0, name)], 10.0)
    messages = [message(1, name), message(2, name + "-b"), message(3, name)]
    with sending(where, messages) as (_, sent):
        wait_for(lambda: len(sent.confirms) == 3, "confirmed")
    # Again: it changes nothing.
    create_group(where, [Binding(name, 0, name)], 10.0)
    with receiving(where, name, group=name, acknowledge=True) as (_, got):
        wait_for(lambda: len(got.deliveries) == 3, "delivered")
        assert got.up[0][1] is True


def test_a_live_consumer_survives_that_its_group_is_made_again(
    shared: Mosquitto, version: str, name: str
) -> None:
    where = site(shared.url, mqtt_version=version)
    with receiving(where, name, group=name) as (_, got):
        wait_for(lambda: got.up, "connected")
        with sending(where, [message(1, name)]) as (_, sent):
            wait_for(lambda: sent.confirms, "confirmed")
        wait_for(lambda: got.deliveries, "delivered")
        create_group(where, [Binding(name, 0, name)], 10.0)
        wait_for(lambda: len(got.deliveries) == 2, "delivered again")
        assert got.up[-1][1] is True


def test_groups_that_cannot_be_made_say_why(make_broker: MakeBroker, version: str, name: str) -> None:
    broker = make_broker(users={"anna": "right"})
    bindings = [Binding(name, 0, name)]
    url = f"mqtt://anna:wr0ng@127.0.0.1:{broker.port}"
    with pytest.raises(ConfigError, match=r"site dc1: group .* could not be created") as refused:
        create_group(site(url, mqtt_version=version), bindings, 5.0)
    assert "wr0ng" not in str(refused.value)
    with pytest.raises(TransientError, match="refused"):
        create_group(site(f"mqtt://127.0.0.1:{free_port()}", mqtt_version=version), bindings, 5.0)
    create_group(site(broker.url, mqtt_version=version), bindings, 5.0)


def test_making_a_group_keeps_to_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]

        def create() -> None:
            with pytest.raises(TransientError):
                create_group(site(f"mqtt://127.0.0.1:{port},127.0.0.1:{port}"), [Binding("t", 0, "g")], 1.0)

        assert quickest(create, 1.5) < 1.5


def test_the_embedded_broker(tmp_path: Path, name: str) -> None:
    """amqtt speaks 3.1.1 and stumbles over MQTT 5; nothing needs to be configured for that."""
    with EmbeddedBroker(tmp_path / "embedded") as broker:
        where = site(broker.url)
        with receiving(where, name, group=name, acknowledge=True) as (_, got):
            wait_for(lambda: got.up, "connected")
            messages = [message(token, name) for token in range(200)]
            with sending(where, messages) as (_, sent):
                wait_for(lambda: len(sent.confirms) == 200, "confirmed")
                assert sent.up[0][1] is None
            wait_for(lambda: len(got.deliveries) >= 200, "delivered")
            assert got.bodies == [m.body for m in messages]


def test_no_thread_and_no_socket_is_left_behind(shared: Mosquitto, version: str, name: str) -> None:
    where = site(shared.url, mqtt_version=version)
    create_group(where, [Binding(name, 0, name)], 10.0)
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    with (
        receiving(where, name, group=name) as (_, got),
        sending(where, [message(1, name)]) as (sender, sent),
    ):
        wait_for(lambda: sent.confirms and got.deliveries, "delivered")
        sender.reconnect("test")
        wait_for(lambda: len(sent.up) == 2, "connected again")
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_nothing_is_logged_above_info_in_good_times(
    shared: Mosquitto, version: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = site(shared.url, mqtt_version=version)
    with caplog.at_level(logging.DEBUG), sending(where, [message(1, name)]) as (_, sent):
        wait_for(lambda: sent.confirms, "confirmed")
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_dialling_is_cut_short() -> None:
    # 192.0.2.0/24 is set aside for documentation: nobody answers there.
    waker, stop = Waker(), threading.Event()
    failed: list[str] = []

    def run() -> None:
        try:
            dial(Endpoint("192.0.2.1", 1883), None, time.monotonic() + 30, waker, stop.is_set).close()
        except DialError as error:
            failed.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    stop.set()
    waker.wake()
    thread.join(60)
    assert failed
    waker.close()
    waker.wake()
