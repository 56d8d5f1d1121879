"""``reliamsg doctor`` finds planted defects, with the right severity and remedy, and nothing else; and it disturbs
nobody."""

from __future__ import annotations

import json
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.exceptions import ChannelClosedByBroker

from reliamsg import Consumer, Producer, Site
from reliamsg.cli.status import Status
from reliamsg.config import Endpoint
from reliamsg.doctor import run
from reliamsg.doctor.files import fsync_finding, space_finding
from reliamsg.doctor.finding import Finding
from reliamsg.doctor.mqtt import check_mqtt
from reliamsg.doctor.network import certificate_finding
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.chaos.certificates import Authority
from tests.cli.commands import reliamsg_here
from tests.docs.permissions import recipe
from tests.patience import wait_for
from tests.transport.mqtt_scripted import Peer, scripted

MARK = "S3cretMARKER"
DAMAGED_AT = 4096 * 3

Diagnosis = dict[str, Any]


class Report:
    """The findings of one run."""

    def __init__(self, *arguments: str | Path) -> None:
        done = reliamsg_here("doctor", *arguments, "--json")
        text = reliamsg_here("doctor", *arguments)
        assert MARK.encode() not in done.stdout + done.stderr + text.stdout + text.stderr
        assert text.returncode == done.returncode, text.stderr
        self.status, self.text = Status(done.returncode), text.stdout.decode()
        self.findings: list[Diagnosis] = json.loads(done.stdout)["findings"] if done.stdout else []
        self.error = done.stderr.decode()

    @property
    def problems(self) -> dict[tuple[str, str], str]:
        """By subject and check, the severity of all findings above ok; without the time of an fsync, which depends on
        the machine, and without what nobody can check."""
        return {
            (found["subject"], found["check"]): found["severity"]
            for found in self.findings
            if found["severity"] != "ok" and not found["by_hand"] and found["check"] != "fsync"
        }

    def one(self, check: str, severity: str) -> Diagnosis:
        """The only finding of a check with this severity; it has a reason and a remedy, which the text shows."""
        (found,) = [f for f in self.findings if (f["check"], f["severity"]) == (check, severity)]
        assert found["why"]
        assert found["remedy"]
        assert f"fix: {found['remedy']}" in self.text or found["by_hand"]
        return found


@pytest.fixture(scope="module")
def own_vhost(rabbit: RabbitNode) -> str:
    """A virtual host for these tests; returns its URL."""
    name = f"doctor-{secrets.token_hex(4)}"
    rabbit.ctl("add_vhost", name)
    rabbit.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    return f"amqp://guest:guest@127.0.0.1:{rabbit.port}/{name}"


@pytest.fixture
def vhost(rabbit: RabbitNode, own_vhost: str) -> str:
    """The same, with the exchange and an empty queue of `billing`."""
    with rabbit.channel(name_of(own_vhost)) as channel:
        channel.queue_delete(QUEUE)
    create("dc1", own_vhost)
    return own_vhost


def name_of(vhost: str) -> str:
    return vhost.rsplit("/", maxsplit=1)[1]


def create(name: str, url: str) -> None:
    done = reliamsg_here("group", "create", "billing", "--topic", "orders", "--site", f"{name}={url}")
    assert done.returncode == 0, done.stderr


QUEUE = "reliamsg:orders:0:billing"
CLIENTS = """
[producers.till]
outbox = "till.db"
groups = { orders = ["billing"] }
journal = "journals"

[consumers.billing]
topics = ["orders"]
inbox = "billing.db"
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a configuration file with sites and the usual clients."""

    def write(clients: str = CLIENTS, **sites: str) -> Path:
        path = tmp_path / "reliamsg.toml"
        tables = [
            f"[sites.{name}]\n" + (text if "\n" in text else f'url = "{text}"\n')
            for name, text in sites.items()
        ]
        path.write_text("\n".join([*tables, clients]))
        path.chmod(0o600)
        return path

    return write


def test_nothing_is_wrong_with_what_is_healthy(
    write: Callable[..., Path], vhost: str, mosquitto: Mosquitto, rabbit: RabbitNode
) -> None:
    """Beside clients that run. Their messages stay where they are, and nothing of the doctor's is left."""
    path = write(dc1=vhost, dc2=mosquitto.url)
    create("dc2", mosquitto.url)
    name = name_of(vhost)
    with Producer.from_config(path) as producer:
        receipt = producer.publish("orders", b"one")
        receipt.wait(60, until="durable")
        producer.flush(60)
        # The broker counts a message only a little after it has confirmed it.
        before = wait_for(
            lambda: (found := rabbit.queues(name))[QUEUE] == 1 and found, "the message is counted"
        )
        report = Report(path)
        assert rabbit.queues(name) == before
        assert report.problems == {}
        assert report.status is Status.OK or {
            f["check"] for f in report.findings if f["severity"] != "ok"
        } >= {"fsync"}
        assert "verify by hand" in report.text
        assert {f["check"] for f in report.findings if f["by_hand"]} >= {
            "policies",
            "queue limit",
            "access",
            "clock",
        }
        with Consumer.from_config(path) as consumer:
            message = consumer.get(60)
            assert message is not None
            assert not message.redelivered
            assert Report(path).problems == {}
            producer.publish("orders", b"two")
            following = consumer.get(60)
            assert following is not None
            assert (following.body, following.redelivered) == (b"two", False)
            message.ack()
            following.ack()
    outbox, inbox = path.parent / "till.db", path.parent / "billing.db"
    site = ["--site", f"dc1={vhost}"]
    report = Report("--outbox", outbox, "--inbox", inbox, *site)
    assert report.problems == {}
    assert {f["subject"] for f in report.findings} > {"site dc1, producer till", "site dc1, group billing"}
    assert not list(path.parent.glob(".reliamsg-doctor*"))


def test_a_wrong_password(write: Callable[..., Path], rabbit: RabbitNode, tmp_path: Path) -> None:
    with Mosquitto(tmp_path / "m", users={"till": "right"}) as broker:
        path = write(
            dc1=f"amqp://guest:{MARK}@127.0.0.1:{rabbit.port}",
            dc2=broker.url.replace("right", MARK),
        )
        report = Report(path)
    assert report.problems == {("site dc1", "login"): "error", ("site dc2", "login"): "error"}
    assert report.status is Status.UNAVAILABLE
    assert "check user name, password and virtual host" in report.text


def test_a_site_that_is_away(write: Callable[..., Path], free_port: int) -> None:
    report = Report(write(dc1=f"amqp://127.0.0.1:{free_port}", dc2="mqtt://no-such-host.invalid"))
    assert report.problems == {("site dc1", "connect"): "error", ("site dc2", "resolve"): "error"}
    assert report.status is Status.UNAVAILABLE
    assert f"nc -vz 127.0.0.1 {free_port}" in report.one("connect", "error")["remedy"]
    assert "getent hosts no-such-host.invalid" in report.one("resolve", "error")["remedy"]


@pytest.fixture
def accounts(rabbit: RabbitNode, vhost: str) -> dict[str, str]:
    """Accounts with the rights that docs/how-to/permissions.md gives them; returns their URLs."""
    name = name_of(vhost)
    users = {role: f"{role}-{name}" for role in ("till", "billing")}
    for user in users.values():
        rabbit.ctl("add_user", user, MARK)
    for line in recipe("Queues declared by the clients").splitlines():
        words = shlex.split(line)[1:]
        rabbit.ctl(*[name if word == "/" else users.get(word, word) for word in words])
    return {role: vhost.replace("guest:guest", f"{user}:{MARK}") for role, user in users.items()}


@pytest.mark.integrations
def test_documented_permissions_suffice_and_a_missing_one_is_found(
    write: Callable[..., Path], rabbit: RabbitNode, vhost: str, accounts: dict[str, str]
) -> None:
    producer, _, consumer = CLIENTS.partition("[consumers")
    consumer = f"[consumers{consumer}"
    assert Report(write(producer, dc1=accounts["till"])).problems == {}
    assert Report(write(consumer, dc1=accounts["billing"])).problems == {}
    name = name_of(vhost)
    rabbit.ctl(
        "set_topic_permissions", "-p", name, f"till-{name}", "reliamsg", "^(orders|reliamsg:group:billing)$",
        "^reliamsg:producer:till$",
    )  # fmt: skip
    report = Report(write(producer, dc1=accounts["till"]))
    subject = "site dc1, producer till"
    assert report.problems == {(subject, "control"): "error", (subject, "publish"): "error"}
    assert report.status is Status.INCOMPLETE
    assert "may not listen at reliamsg:call:orders" in report.one("control", "error")["seen"]
    assert "may not publish to reliamsg:status:orders" in report.one("publish", "error")["seen"]
    assert "rabbitmqctl" in report.one("control", "error")["remedy"]
    # Without any right at the queues, the group can neither read nor lock.
    rabbit.ctl("set_permissions", "-p", name, f"billing-{name}", "^reliamsg:control:", ".*", "^reliamsg$")
    text = f'url = "{accounts["billing"]}"\ndeclare = "passive"\n'
    report = Report(write(consumer, dc1=text))
    subject = "site dc1, group billing"
    assert report.problems == {(subject, "read"): "error", (subject, "lock"): "error"}
    assert report.one("queue", "unknown")["by_hand"]
    report = Report(write(consumer, dc1=accounts["billing"]))
    assert report.problems[subject, "queue"] == "error"
    assert report.problems["site dc1", "exchange"] == "error"


def test_a_queue_that_differs(write: Callable[..., Path], rabbit: RabbitNode, vhost: str) -> None:
    for name, value in (
        ("x-delivery-limit", 5),
        ("x-message-ttl", 1000),
        ("x-max-length", 10),
        ("x-overflow", "drop-head"),
    ):
        with rabbit.channel(name_of(vhost)) as channel:
            channel.queue_delete(QUEUE)
            channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum", name: value})
        report = Report(write(dc1=vhost))
        subjects = ("site dc1, producer till", "site dc1, group billing")
        assert report.problems == {(subject, "queue"): "warning" for subject in subjects}
        found = next(f for f in report.findings if f["severity"] == "warning")
        assert f"inequivalent arg '{name}'" in found["seen"]
        assert QUEUE in found["remedy"]


def test_a_queue_and_an_exchange_that_are_missing(
    write: Callable[..., Path], rabbit: RabbitNode, vhost: str
) -> None:
    name = name_of(vhost)
    with rabbit.channel(name) as channel:
        channel.queue_delete(QUEUE)
    subjects = ("site dc1, producer till", "site dc1, group billing")
    assert Report(write(dc1=vhost)).problems == {(subject, "queue"): "warning" for subject in subjects}
    passive = f'url = "{vhost}"\ndeclare = "passive"\n'
    assert Report(write(dc1=passive)).problems == {(subject, "queue"): "error" for subject in subjects}
    with rabbit.channel(name) as channel:
        channel.exchange_delete("reliamsg")
    assert Report(write(dc1=vhost)).problems == {("site dc1", "exchange"): "warning"}
    report = Report(write(dc1=passive))
    assert report.problems == {("site dc1", "exchange"): "error"}
    assert "reliamsg group create" in report.one("exchange", "error")["remedy"]
    with rabbit.channel(name) as channel, pytest.raises(ChannelClosedByBroker, match="NOT_FOUND"):
        channel.exchange_declare("reliamsg", passive=True)


def test_certificates(write: Callable[..., Path], tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    text = f'url = "{{url}}"\ntls = {{{{ cafile = "{authority.certificate}" }}}}\n'

    def report(tls: Any, host: str = "127.0.0.1", trusted: bool = True) -> Report:
        with Mosquitto(tmp_path / f"m{len(list(tmp_path.iterdir()))}", tls=tls) as broker:
            url = broker.tls_url.replace("127.0.0.1", host)
            return Report(write(clients="", dc1=text.format(url=url) if trusted else url))

    valid = authority.issue("valid")  # for one day
    assert report(valid).problems == {("site dc1", "tls"): "warning"}
    assert "valid for another" in report(valid).one("tls", "warning")["seen"]
    expired = report(authority.issue("expired", expired=True))
    assert expired.status is Status.UNAVAILABLE
    assert "renew the broker's certificate" in expired.one("tls", "error")["remedy"]
    assert "use a host name" in report(valid, "localhost").one("tls", "error")["remedy"]
    assert "name the authority" in report(valid, trusted=False).one("tls", "error")["remedy"]
    assert certificate_finding("s", Endpoint("h", 1), 86_400 * 20).severity == "ok"


def session_expiry(seconds: int) -> Callable[[Peer], None]:
    """Plays an MQTT broker that ends sessions after so many seconds, whatever clients ask for."""

    def play(peer: Peer) -> None:
        peer.accept(b"\x11" + seconds.to_bytes(4, "big"))
        while True:
            first, body = peer.packet()
            if first >> 4 == 8:  # SUBSCRIBE
                peer.send(0x90, body[:2] + b"\0" + b"\0")
            elif first >> 4 == 3:  # PUBLISH
                size = int.from_bytes(body[:2], "big")
                peer.puback(int.from_bytes(body[2 + size : 4 + size], "big"), 0x10)
            elif first >> 4 == 14:  # DISCONNECT
                return

    return play


@pytest.mark.parametrize(("seconds", "severity"), [(0, "error"), (7 * 86_400, "warning")])
def test_sessions_that_expire(seconds: int, severity: str) -> None:
    play = session_expiry(seconds)
    with scripted(play) as broker:
        found = [f for f in run_site(broker.port) if f.check == "session"]
    assert [f.severity for f in found] == [severity]
    assert "mqtt.max_session_expiry_interval_seconds" in found[0].remedy


def run_site(port: int) -> list[Finding]:
    site = Site("dc1", f"mqtt://127.0.0.1:{port}", mqtt_version="5")
    return check_mqtt(site, site.endpoints[0], time.monotonic() + 60, [])


def test_a_group_that_a_site_does_not_have(write: Callable[..., Path], mosquitto: Mosquitto) -> None:
    path = write(dc1=mosquitto.url)
    with Producer.from_config(path) as producer:
        producer.publish("orders", b"one")
        wait_for(lambda: producer.status().sites["dc1"].unseen, "the producer has looked")
        report = wait_for(lambda: (found := Report(path)).problems and found, "it is stored")
        assert report.problems == {("producer till", "groups"): "warning"}
        assert "billing on orders at dc1" in report.one("groups", "warning")["seen"]
        create("dc1", mosquitto.url)
        producer.flush(60)
        assert Report(path).problems == {}


def test_mqtt_3_1_1_is_a_warning(write: Callable[..., Path], shared_mosquitto: Mosquitto) -> None:
    report = Report(write(dc1=f'url = "{shared_mosquitto.url}"\nmqtt_version = "3.1.1"\n'))
    assert report.problems == {("site dc1", "version"): "warning"}
    assert report.one("session", "unknown")["by_hand"]


def test_access_to_proof_addresses(
    write: Callable[..., Path], make_mosquitto: Callable[..., Mosquitto]
) -> None:
    broker = make_mosquitto(deny=["reliamsg:proof:/+"])
    report = Report(write(dc1=broker.url))
    assert report.problems == {("site dc1", "proof"): "warning"}
    assert "acl_file" in report.one("proof", "warning")["remedy"]


def test_a_site_that_hangs_is_given_up(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        report = Report(write(dc1=f"amqp://127.0.0.1:{port}"), "--timeout", "0.5")
        assert report.problems == {("site dc1", "login"): "error"}
    ended = threading.Event()
    monkeypatch.setattr(run, "GRACE_S", 0.0)
    monkeypatch.setattr(run, "check_site", lambda *_: ended.wait(600))
    report = Report(write(dc1="amqp://127.0.0.1:1"), "--timeout", "0.1")
    ended.set()
    assert report.problems == {("site dc1", "timeout"): "unknown"}
    assert report.status is Status.UNKNOWN


class TestFiles:
    """Files on this machine."""

    def test_keys_that_others_can_read(self, write: Callable[..., Path], tmp_path: Path) -> None:
        (tmp_path / "keys").write_text(f"a {'5e' * 32}\n")
        (tmp_path / "keys").chmod(0o644)
        report = Report(write(CLIENTS + 'keys = "keys"\n', dc1="memory://doctor"))
        assert report.problems == {("group billing", "configuration"): "error"}
        assert "chmod 600" in report.one("configuration", "error")["seen"]
        assert "5e5e" not in report.text

    def test_a_password_file_that_others_can_read(
        self, write: Callable[..., Path], tmp_path: Path, shared_mosquitto: Mosquitto
    ) -> None:
        (tmp_path / "secret").write_text(MARK)
        (tmp_path / "secret").chmod(0o644)
        text = f'url = "{shared_mosquitto.url}"\nuser = "till"\npassword = {{ file = "secret" }}\n'
        report = Report(write(dc1=text))
        assert report.problems == {("configuration", "secrets"): "warning"}
        assert f"chmod 600 {tmp_path / 'secret'}" in report.one("secrets", "warning")["remedy"]
        (tmp_path / "secret").unlink()
        report = Report(write(dc1=text))
        assert report.problems[("configuration", "secrets")] == "error"
        assert report.problems[("site dc1", "configuration")] == "error"

    def test_damaged_missing_and_mistaken_files(self, write: Callable[..., Path], tmp_path: Path) -> None:
        path = write(dc1="memory://doctor")
        assert Report(path).problems == {}  # neither file exists
        with Producer.from_config(path), Consumer.from_config(path):
            pass
        assert Report(path).problems == {}
        inbox = tmp_path / "billing.db"
        sound = inbox.read_bytes()
        inbox.write_bytes(sound[:DAMAGED_AT] + bytes(4096) + sound[DAMAGED_AT + 4096 :])
        report = Report(path)
        assert report.problems == {("group billing", "integrity"): "error"}
        assert "restore the inbox from a backup" in report.one("integrity", "error")["remedy"]
        inbox.write_bytes((tmp_path / "till.db").read_bytes())
        report = Report(path)
        assert "is the outbox of 'till'" in report.one("integrity", "error")["seen"]
        inbox.write_bytes(b"no database at all")
        assert Report(path).problems == {("group billing", "integrity"): "error"}

    def test_modes(self, write: Callable[..., Path], tmp_path: Path) -> None:
        path = write(dc1="memory://doctor")
        with Producer.from_config(path):
            pass
        outbox = tmp_path / "till.db"
        outbox.chmod(0o644)
        assert f"chmod 600 {outbox}" in Report(path).one("mode", "warning")["remedy"]
        outbox.chmod(0o666)
        assert "any user can write to it" in Report(path).one("mode", "error")["seen"]
        outbox.chmod(0o600)
        (tmp_path / "journals").chmod(0o777)
        assert "chmod go-w" in Report(path).one("journal", "warning")["remedy"]

    def test_a_directory_that_cannot_be_written(self, write: Callable[..., Path]) -> None:
        clients = CLIENTS.replace('"till.db"', '"/proc/self/till.db"').replace(
            '"journals"', '"/proc/self/none"'
        )
        report = Report(write(clients, dc1="memory://doctor"))
        assert report.problems == {
            ("producer till", "directory"): "error",
            ("producer till", "journal"): "error",
        }
        assert "df -h /proc" in report.one("directory", "error")["remedy"]

    def test_limits(self, tmp_path: Path) -> None:
        mib = 2**20
        severities = [
            space_finding("s", tmp_path, free, 100 * mib).severity for free in (mib, 70 * mib, 200 * mib)
        ]
        assert severities == ["error", "warning", "ok"]
        assert [fsync_finding("s", tmp_path, seconds).severity for seconds in (0.5, 0.001)] == [
            "warning",
            "ok",
        ]


def test_errors_of_the_command(write: Callable[..., Path], tmp_path: Path) -> None:
    assert Report().status is Status.USAGE
    assert Report(tmp_path / "none.toml").status is Status.USAGE
    report = Report("--inbox", tmp_path / "none.db")
    assert report.problems == {("files", "configuration"): "error"}
