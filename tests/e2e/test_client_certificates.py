"""Clients that log in by certificate, at real brokers: from Python and from the command line."""

from __future__ import annotations

import shlex
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliamsg import Consumer, Producer, Site
from reliamsg.cli.options import Tls, build_sites
from reliamsg.errors import ConfigError, TransientError
from reliamsg.lab import Mosquitto, RabbitNode
from reliamsg.lab.brokers.base import TlsFiles
from reliamsg.lab.chaos.certificates import Authority
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from tests.children import run_child
from tests.docs.permissions import recipe, recipes
from tests.e2e.tools import take

PAGE = "tls.md"
BINDING = Binding("orders", 0, "billing")


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], TlsFiles]:
    """Makes a certificate for a name, by one authority."""
    authority = Authority(tmp_path, "authority")
    return lambda name: authority.issue(name, common_name=name)


def context(files: TlsFiles, certificate: bool = True) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=files.authority)
    if certificate:
        made.load_cert_chain(files.certificate, files.key)
    return made


def command(files: TlsFiles, site: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [
        "group",
        "create",
        "stock",
        "--topic",
        "orders",
        "--site",
        site,
        "--cafile",
        str(files.authority),
        *more,
    ]
    return run_child([sys.executable, "-m", "reliamsg", *words], text=True)


def with_certificate(files: TlsFiles) -> list[str]:
    return ["--certfile", str(files.certificate), "--keyfile", str(files.key)]


def exchange(site: Site, place: Path) -> None:
    create_group(site, [BINDING], 30.0, None)
    with (
        Producer("till", [site], outbox=place / "o.db", groups={"orders": ["billing"]}) as producer,
        Consumer("billing", [site], topics=["orders"], inbox=place / "i.db") as consumer,
    ):
        producer.publish("orders", b"1").wait(30)
        (message,) = take(consumer, 1)
        assert message.body == b"1"


@pytest.mark.integrations
def test_rabbitmq(
    files: Callable[[str], TlsFiles], make_rabbit: Callable[..., RabbitNode], tmp_path: Path
) -> None:
    node = make_rabbit(
        tls=files("server"),
        plugins=["rabbitmq_auth_mechanism_ssl"],
        config=[
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = true",
            "auth_mechanisms.1 = EXTERNAL",
            "ssl_cert_login_from = common_name",
        ],
    )
    node.ctl("add_user", "till", "not used")
    node.ctl("clear_password", "till")
    node.ctl("set_permissions", "-p", "/", "till", ".*", ".*", ".*")
    till, stranger = files("till"), files("stranger")
    url = node.tls_url.replace("guest:guest@", "")
    exchange(Site("dc1", url, tls=context(till), auth="external"), tmp_path)
    with pytest.raises(ConfigError, match="refused"):
        create_group(Site("dc1", url, tls=context(stranger), auth="external"), [BINDING], 10.0, None)
    with pytest.raises(TransientError):
        create_group(Site("dc1", url, tls=context(till, False), auth="external"), [BINDING], 10.0, None)
    with pytest.raises(ConfigError, match="does not offer this way to log in"):
        create_group(Site("dc1", node.tls_url, tls=context(till)), [BINDING], 10.0, None)
    done = command(till, f"dc1={url}", "--auth", "external", *with_certificate(till))
    assert done.returncode == 0, done.stderr
    assert command(stranger, f"dc1={url}", "--auth", "external", *with_certificate(stranger)).returncode == 69
    assert node.queues() == {"reliamsg:orders:0:billing": 0, "reliamsg:orders:0:stock": 0}


@pytest.mark.integrations
def test_mosquitto(
    files: Callable[[str], TlsFiles], make_mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    access = tmp_path / "access"
    access.write_text("user till\ntopic readwrite #\n")
    access.chmod(0o600)
    rules = ["require_certificate true", "use_identity_as_username true", f"acl_file {access}"]
    broker = make_mosquitto(tls=files("server"), config=rules)
    till = files("till")
    exchange(Site("dc2", broker.tls_url, tls=context(till)), tmp_path)
    with pytest.raises(TransientError):
        create_group(Site("dc2", broker.tls_url, tls=context(till, False)), [BINDING], 10.0, None)
    assert command(till, f"dc2={broker.tls_url}", *with_certificate(till)).returncode == 0
    assert command(till, f"dc2={broker.tls_url}").returncode == 69


def configured(heading: str, *place: str) -> list[str]:
    """The broker's configuration on the page, without paths: the laboratory has its own."""
    lines = recipe(heading, PAGE).splitlines()
    return [line for line in lines if not line.startswith(place)]


@pytest.mark.integrations
def test_what_the_page_says(
    files: Callable[[str], TlsFiles],
    make_rabbit: Callable[..., RabbitNode],
    make_mosquitto: Callable[..., Mosquitto],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From Python, and from the command line."""
    monkeypatch.chdir(tmp_path)
    server, till = files("server"), files("till")
    (tmp_path / "acl").write_text("user till\ntopic readwrite #\n")
    (tmp_path / "acl").chmod(0o600)
    rabbit = make_rabbit(
        tls=server,
        plugins=["rabbitmq_auth_mechanism_ssl"],
        config=configured(
            "RabbitMQ", "listeners.", *(f"ssl_options.{kind}file" for kind in ("cacert", "cert", "key"))
        ),
    )
    mosquitto = make_mosquitto(
        tls=server,
        config=[
            line.replace("/etc/mosquitto/acl", str(tmp_path / "acl"))
            for line in configured("Mosquitto", "listener ", "cafile ", "certfile ", "keyfile ")
        ],
    )
    rabbit.ctl("add_user", "till", "not used")
    rabbit.ctl("clear_password", "till")
    rabbit.ctl("set_permissions", "-p", "/", "till", ".*", ".*", ".*")
    python, shell = (
        text.replace("amqps://rabbit.example", rabbit.tls_url.replace("guest:guest@", ""))
        .replace("mqtts://mosquitto.example", mosquitto.tls_url)
        .replace("ca.pem", str(till.authority))
        .replace("till.pem", str(till.certificate))
        .replace("till.key", str(till.key))
        for text in recipes("Log in by certificate (mutual TLS)", PAGE)
    )
    names: dict[str, Any] = {"ssl": ssl, "Site": Site}
    exec(python, names)
    for site in names["sites"]:
        (tmp_path / site.name).mkdir()
        exchange(site, tmp_path / site.name)
    program, *words = shlex.split(shell.replace("\\\n", ""))
    assert program == "reliamsg"
    done = run_child([sys.executable, "-m", "reliamsg", *words], stdin="2\n", text=True)
    assert done.returncode == 0, done.stderr


def test_errors_that_repeat_a_refused_site() -> None:
    for url, reason in (
        ("amqp://localhost", "needs an amqps"),
        ("mqtts://localhost", "needs an amqps"),
        ("amqps://till:secret@localhost", "exclude each other"),
    ):
        with pytest.raises(ConfigError, match=reason) as refused:
            Site("dc1", url, auth="external")
        assert "secret" not in str(refused.value)


def test_errors_that_repeat_refused_options(files: Callable[[str], TlsFiles]) -> None:
    till, other = files("till"), files("other")
    site = (("dc1", "amqps://localhost"), ("dc2", "mqtts://localhost"), ("dc3", "mqtt://localhost"))
    ca, certificate, key = str(till.authority), str(till.certificate), str(till.key)
    for tls, reason in (
        (Tls(ca, None, key, False), "--keyfile needs --certfile"),
        (Tls(ca, None, None, True), "--auth external needs --certfile"),
        (Tls(ca, certificate, str(other.key), False), "not a certificate and an unencrypted key"),
        (Tls(ca, certificate, None, False), "not a certificate and an unencrypted key"),
        (Tls(key, None, None, False), "no certificates"),
    ):
        with pytest.raises(ConfigError, match=reason):
            build_sites(site, tls)
    made = build_sites(site, Tls(ca, certificate, key, True))
    assert [one.auth for one in made] == ["external", "password", "password"]
    assert [one.tls is not None for one in made] == [True, True, False]
