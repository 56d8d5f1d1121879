"""AMQP over TLS, against a real RabbitMQ."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from reliamsg.config import Site
from reliamsg.errors import TransientError
from reliamsg.lab.brokers.base import TlsFiles
from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.transport.amqp.groups import create_group
from reliamsg.transport.base import Binding
from tests.patience import wait_for
from tests.transport.amqp_tools import receiving, sending
from tests.transport.tools import message

BINDING = Binding("orders", 0, "g")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[RabbitNode]:
    directory = tmp_path_factory.mktemp("rabbit-tls")
    with RabbitNode(directory, tls=_files(directory, authority)) as node:
        yield node


def _files(directory: Path, authority: trustme.CA) -> TlsFiles:
    certificate = authority.issue_cert("127.0.0.1")
    files = TlsFiles(directory / "server.pem", directory / "server.key", directory / "ca.pem")
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.authority)
    return files


def _site(url: str, context: ssl.SSLContext | None = None) -> Site:
    return Site("dc1", url, tls=context, backoff_min=0.05, backoff_max=0.5, connect_timeout=5.0)


def _trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_publishing_and_reading_over_tls(node: RabbitNode, authority: trustme.CA) -> None:
    site = _site(node.tls_url, _trusting(authority))
    bodies = [b"x" * 200_000, b"", *(b"small %d" % n for n in range(500))]
    with sending(site, [BINDING]) as (sender, sent), receiving(site, [BINDING]) as (receiver, got):
        sent.queue += [message(n + 1, "orders", body) for n, body in enumerate(bodies)]
        sender.wake()
        done = 0
        while done < len(bodies):
            wait_for(lambda seen=done: len(got.deliveries) > seen, f"more than {done}")
            fresh = got.deliveries[done:]  # more may arrive meanwhile
            receiver.acknowledge([delivery.token for delivery in fresh])
            done += len(fresh)
        assert got.bodies == bodies
        wait_for(lambda: len(sent.confirms) == len(bodies), "all confirmed")


def test_an_untrusted_certificate_is_no_connection(node: RabbitNode, authority: trustme.CA) -> None:
    for context in (None, _trusting(trustme.CA())):
        site = _site(node.tls_url, context)
        with sending(site, [BINDING], connect=False) as (_, sent):
            wait_for(lambda: len(sent.failed) >= 2, "refused, and tried again")
            assert "certificate is not trusted" in sent.failed[0][1]
            assert not sent.failed[0][2]
            assert not sent.up
        with pytest.raises(TransientError, match="certificate is not trusted"):
            create_group(site, [BINDING], 5.0)


def test_a_certificate_for_another_host_is_no_connection(node: RabbitNode, authority: trustme.CA) -> None:
    site = _site(node.tls_url.replace("127.0.0.1", "localhost"), _trusting(authority))
    with receiving(site, [BINDING], connect=False) as (_, got):
        wait_for(lambda: got.failed, "refused")
        assert "certificate is not trusted" in got.failed[0][1]


def test_tls_to_a_plain_port_and_the_other_way_round(node: RabbitNode, authority: trustme.CA) -> None:
    confused = f"amqps://guest:guest@127.0.0.1:{node.port}/"
    with sending(_site(confused, _trusting(authority)), [BINDING], connect=False) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert sent.failed[0][1].startswith("TLS:")
    plain = node.tls_url.replace("amqps://", "amqp://")
    with sending(_site(plain), [BINDING], connect=False) as (_, sent):
        wait_for(lambda: sent.failed, "refused")
        assert not sent.failed[0][2]
