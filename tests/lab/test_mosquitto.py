"""Mosquitto: what it keeps, loses and refuses."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
import trustme

from reliamsg.lab import LabError, Mosquitto, TlsFiles, wait_until
from tests.lab.clients import client, leave_subscription

BODIES = [b"%d" % n for n in range(20)]


def queue_up(broker: Mosquitto) -> None:
    leave_subscription(broker.url, "away", "t")
    with client(broker.url) as publisher:
        publisher.publish("t", BODIES)


def test_counts_stored_messages(mosquitto: Mosquitto) -> None:
    queue_up(mosquitto)
    wait_until(lambda: mosquitto.stored() == len(BODIES), 60, "the broker counts its messages")
    with client(mosquitto.url, "away", persistent=True) as subscriber:
        assert subscriber.receive(len(BODIES)) == BODIES
    wait_until(lambda: mosquitto.stored() == 0, 60, "the broker has no messages left")


def test_sigkill_loses_everything_without_persistence(mosquitto: Mosquitto) -> None:
    queue_up(mosquitto)
    port = mosquitto.port
    mosquitto.kill()
    assert not mosquitto.alive
    mosquitto.start()
    assert mosquitto.port == port
    with client(mosquitto.url, "away", persistent=True) as subscriber:
        assert not subscriber.session_present


def test_with_persistence_a_stop_keeps_everything_and_a_wipe_nothing(
    make_mosquitto: Callable[..., Mosquitto],
) -> None:
    broker = make_mosquitto(persistence=True)
    queue_up(broker)
    with pytest.raises(LabError, match="before wiping"):
        broker.wipe()
    broker.stop()
    broker.start()
    with client(broker.url, "away", persistent=True) as subscriber:
        assert subscriber.receive(len(BODIES)) == BODIES
    broker.stop()
    broker.wipe()
    broker.start()
    with client(broker.url, "away", persistent=True) as subscriber:
        assert not subscriber.session_present


def test_sigkill_with_persistence_loses_messages_after_the_last_save(
    make_mosquitto: Callable[..., Mosquitto],
) -> None:
    broker = make_mosquitto(persistence=True)
    queue_up(broker)
    broker.save()
    with client(broker.url) as publisher:
        publisher.publish("t", [b"after the save"])
    broker.kill()
    broker.start()
    with client(broker.url) as publisher, client(broker.url, "away", persistent=True) as subscriber:
        publisher.publish("t", [b"after the start"])
        assert subscriber.receive(len(BODIES) + 1) == [*BODIES, b"after the start"]


def test_a_paused_broker_answers_nothing_until_it_is_resumed(mosquitto: Mosquitto) -> None:
    with client(mosquitto.url) as publisher:
        mosquitto.pause()
        assert mosquitto.alive
        info = publisher.paho.publish("t", b"x", 1)
        with pytest.raises(LabError, match="no count"):
            mosquitto.stored(timeout=0.5)
        assert info.mid not in publisher.puback
        mosquitto.resume()
        wait_until(lambda: info.mid in publisher.puback, 60, "the broker acknowledges")


def test_users_and_denied_topics(make_mosquitto: Callable[..., Mosquitto]) -> None:
    broker = make_mosquitto(users={"anna": "p:/@%", "otto": "q"}, deny=["secret"])
    with client(f"mqtt://127.0.0.1:{broker.port}") as stranger:
        assert not stranger.accepted
    with client(broker.url.replace("anna", "otto")) as impostor:
        assert not impostor.accepted
    with client(broker.url, version=mqtt.MQTTv5) as anna:
        assert anna.accepted
        assert [code.value for code in anna.publish("secret", [b"x"])] == [0x87]
        assert not anna.publish("open", [b"x"])[0].is_failure
    assert broker.stored() == 0


def test_denied_topics_without_users(make_mosquitto: Callable[..., Mosquitto]) -> None:
    broker = make_mosquitto(deny=["secret"])
    with client(broker.url, version=mqtt.MQTTv5) as someone:
        assert [code.value for code in someone.publish("secret", [b"x"])] == [0x87]
        assert not someone.publish("open", [b"x"])[0].is_failure


def test_messages_over_the_limit_close_the_connection(make_mosquitto: Callable[..., Mosquitto]) -> None:
    broker = make_mosquitto(message_size_limit=1000)
    with client(broker.url, "small") as publisher:
        publisher.publish("t", [b"x" * 1000])
        publisher.paho.publish("t", b"x" * 1001, 1)
        wait_until(lambda: bool(publisher.disconnected), 60, "the broker disconnects")


def test_tls_listener(make_mosquitto: Callable[..., Mosquitto], tmp_path: Path) -> None:
    files = write_certificates(tmp_path)
    broker = make_mosquitto(tls=files)
    context = ssl.create_default_context(cafile=str(files.authority))
    with client(broker.tls_url, tls=context) as publisher:
        assert publisher.accepted
    with pytest.raises(ssl.SSLCertVerificationError):
        client(broker.tls_url, tls=ssl.create_default_context()).__enter__()
    with pytest.raises(LabError, match="without tls"):
        _ = make_mosquitto().tls_url


def test_a_broker_that_cannot_start_reports_why(make_mosquitto: Callable[..., Mosquitto]) -> None:
    with pytest.raises(LabError, match="no_such_setting"):
        make_mosquitto(config=["no_such_setting 1"])


def write_certificates(directory: Path) -> TlsFiles:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    files = TlsFiles(directory / "server.pem", directory / "server.key", directory / "authority.pem")
    server.cert_chain_pems[0].write_to_path(str(files.certificate))
    server.private_key_pem.write_to_path(str(files.key))
    authority.cert_pem.write_to_path(str(files.authority))
    return files
