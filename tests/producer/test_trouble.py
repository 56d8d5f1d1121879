"""Sites that can't be reached or refuse: said once at WARNING for each change, and with the reason wherever a caller
looks for one, for every kind of trouble and both protocols."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from pika import spec
from pika.frame import Method

from reliamsg import Producer, Site
from reliamsg.errors import ConfirmTimeout
from reliamsg.producer.connectivity import Connectivity
from reliamsg.testing import MemoryNetwork
from reliamsg.transport.base import Outcome, is_refusal
from tests.cli.commands import Sites, publish, subscribe
from tests.producer.tools import producer, wait_for
from tests.transport.mqtt_scripted import Peer, ScriptedBroker


class Trouble(NamedTuple):
    """What a site does, and what is said of it."""

    protocol: str
    kind: str
    state: str
    words: tuple[str, ...]


TROUBLES = [
    Trouble("mqtt", "down", "unreachable", ("refused",)),
    Trouble("amqp", "down", "unreachable", ("refused",)),
    Trouble("mqtt", "login", "refused credentials", ("Bad user name or password",)),
    Trouble("amqp", "login", "refused credentials", ("403", "ACCESS_REFUSED")),
    Trouble("amqp", "vhost", "refused", ("530", "vhost nope not found")),
    Trouble("mqtt", "closed to us", "refused", ("Server unavailable",)),
    Trouble("mqtt", "certificate", "unreachable", ("TLS", "certificate")),
    Trouble("amqp", "certificate", "unreachable", ("TLS", "certificate")),
]


def refuse_connect(code: int) -> object:
    def script(peer: Peer) -> None:
        peer.expect(1)
        peer.send(0x20, bytes([0, code, 0]))
        peer.wait_for_close()

    return script


def close_with(code: int, text: str, opened: bool) -> object:
    """A script of an AMQP broker that closes the connection, at the login or when the virtual host is opened."""

    def send(peer: Peer, method: Any) -> None:
        peer.sock.sendall(Method(0, method).marshal())

    def script(peer: Peer) -> None:
        peer._exactly(8)
        send(peer, spec.Connection.Start(0, 9, {"product": "script"}, "PLAIN", "en_US"))
        frame(peer)
        if opened:
            send(peer, spec.Connection.Tune(0, 131_072, 60))
            frame(peer)
            frame(peer)
        send(peer, spec.Connection.Close(code, text, 0, 0))
        peer.wait_for_close()

    def frame(peer: Peer) -> None:
        size = int.from_bytes(peer._exactly(7)[3:], "big")
        peer._exactly(size + 1)

    return script


def handshake(peer: Peer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    peer.sock = context.wrap_socket(peer.sock, server_side=True)
    peer.wait_for_close()


SCRIPTS = {
    ("mqtt", "login"): refuse_connect(0x86),
    ("amqp", "login"): close_with(403, "ACCESS_REFUSED - Login was refused", opened=False),
    ("amqp", "vhost"): close_with(530, "NOT_ALLOWED - vhost nope not found", opened=True),
    ("mqtt", "closed to us"): refuse_connect(0x88),
    ("mqtt", "certificate"): handshake,
    ("amqp", "certificate"): handshake,
}


@contextmanager
def endpoint(trouble: Trouble) -> Iterator[str]:
    """The URL of a site with that trouble."""
    scheme = trouble.protocol + ("s" if trouble.kind == "certificate" else "")
    script = SCRIPTS.get((trouble.protocol, trouble.kind))
    if script is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            yield f"{scheme}://u:secret-word@127.0.0.1:{probe.getsockname()[1]}"
        return
    with ScriptedBroker(script) as broker:  # type: ignore[arg-type]
        yield f"{scheme}://u:secret-word@127.0.0.1:{broker.port}"


def told(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "reliamsg.producer" and record.levelno == level
    ]


def name_of(trouble: Trouble) -> str:
    return f"{trouble.protocol} {trouble.kind}"


class TestTable:
    @pytest.mark.parametrize("trouble", TROUBLES, ids=name_of)
    def test_log_status_and_confirm_timeout(
        self, trouble: Trouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        with endpoint(trouble) as url:
            site = Site("dc1", url, backoff_min=0.01, backoff_max=0.05, connect_timeout=5.0)
            one = Producer("p", [site], outbox=tmp_path / "o.db", groups={"t": ["g"]})
            receipt = one.publish("t", b"x")
            wait_for(lambda: one.status().sites["dc1"].state == trouble.state)
            attempts = "is unreachable: "
            wait_for(lambda: sum(attempts in r.getMessage() for r in caplog.records) >= 4)
            with pytest.raises(ConfirmTimeout) as from_wait:
                receipt.wait(0.01)
            with pytest.raises(ConfirmTimeout) as from_flush:
                one.flush(0.01)
            status = one.status().sites["dc1"]
            one.close(0.0)
        for error in (from_wait.value, from_flush.value):
            assert list(error.sites) == ["dc1"]
            for word in (trouble.state, *trouble.words):
                assert word in error.sites["dc1"]
                assert word in str(error)
        assert all(word in status.error for word in trouble.words)
        (warning,) = [text for text in told(caplog) if "site dc1 is" in text]
        assert f"site dc1 is {trouble.state}" in warning
        assert all(word in warning for word in trouble.words)
        assert "secret-word" not in caplog.text

    @pytest.mark.parametrize("trouble", [TROUBLES[0], *TROUBLES[3:7]], ids=name_of)
    def test_exit_codes(self, trouble: Trouble, tmp_path: Path) -> None:
        with endpoint(trouble) as url:
            sites = Sites(["--site", f"dc1={url}"], tmp_path)
            results = [
                subscribe(sites, "t", "g", "--timeout", "1"),
                publish(sites, "t", b"line\n", "--timeout", "1"),
            ]
        for result in results:
            assert result.returncode == 69, result.stderr
            last = result.stderr.decode().splitlines()[-1]
            assert "dc1" in last
            assert all(word in last for word in trouble.words)
            assert "secret-word" not in last


def test_once_for_each_change_and_when_it_is_back(
    network: MemoryNetwork, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = producer(network, path)
    wait_for(lambda: all(f"site {name} is connected" in caplog.text for name in ("dc1", "dc2")))
    for _ in range(2):
        caplog.clear()
        network["dc1"].down()
        wait_for(lambda: one.status().sites["dc1"].state == "unreachable")
        wait_for(lambda: "site dc1 is unreachable" in caplog.text, "the log follows the status")
        network["dc1"].up()
        wait_for(lambda: one.status().sites["dc1"].connected)
        wait_for(lambda: "site dc1 is connected" in caplog.text, "the log follows the status")
        said = [text.split(" is ")[1].split(":")[0] for text in told(caplog)]
        assert said == ["disconnected", "unreachable"]
    caplog.clear()
    network["dc1"].block("low on disk")
    wait_for(lambda: one.status().sites["dc1"].state == "blocked")
    wait_for(lambda: "site dc1 is blocked" in caplog.text, "the log follows the status")
    network["dc1"].unblock()
    wait_for(lambda: one.status().sites["dc1"].state == "connected")
    wait_for(lambda: "site dc1 is connected" in caplog.text, "the log follows the status")
    assert [text for text in told(caplog) if "low on disk" in text] == told(caplog)
    assert len(told(caplog)) == 1
    caplog.clear()
    one.close()
    assert told(caplog) == [], "what was wanted is no trouble"


def test_a_parked_stream_is_said_once_an_episode(
    network: MemoryNetwork, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = producer(network, path, max_batch_messages=1)
    network["dc1"].hold_confirms()
    for _ in range(2):
        caplog.clear()
        network["dc1"].refuse("orders", Outcome.NACKED)
        receipts = [one.publish("orders", b"x") for _ in range(5)]
        network["dc1"].release_confirms()
        wait_for(
            lambda: one.status().sites["dc1"].parked and one.status().sites["dc1"].parked[0].attempts >= 2
        )
        with pytest.raises(ConfirmTimeout, match="nacked: refused by the test") as caught:
            receipts[0].wait(0.01)
        assert caught.value.sites["dc2"] == "confirmed"
        parked = [text for text in told(caplog) if "is parked" in text]
        assert len(parked) == 1, parked
        network["dc1"].accept("orders")
        receipts[-1].wait(60)
        wait_for(lambda: not one.status().sites["dc1"].parked)
    one.close()


def test_what_counts_as_a_refusal() -> None:
    assert is_refusal("the broker refuses: Server busy")
    assert is_refusal("the broker closed the connection: 530 NOT_ALLOWED - vhost x not found")
    assert not is_refusal("the broker closed the connection: 320 CONNECTION_FORCED - shutdown")
    assert not is_refusal("Connection refused")


def test_a_trouble_is_said_once_until_the_site_is_connected_again(caplog: pytest.LogCaptureFixture) -> None:
    site = Connectivity("p", "dc1")
    with caplog.at_level(logging.INFO, "reliamsg"):
        for _ in range(3):
            site.unreachable("h:1", "refused", False)
            site.unreachable("h:2", "refused", False)
        assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
        site.connected("h:1")
        site.unreachable("h:1", "refused", False)
        assert len(caplog.records) == 4
