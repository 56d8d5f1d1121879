"""A load balancer that sends connections to another server when theirs is down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reliamsg.lab import HaProxy, LabError, Mosquitto, wait_until
from tests.lab.clients import client


def test_connections_go_to_the_first_server_that_is_up(
    tmp_path: Path, make_mosquitto: Callable[..., Mosquitto]
) -> None:
    one, two = make_mosquitto(name="one"), make_mosquitto(name="two")
    servers = {"one": ("127.0.0.1", one.port), "two": ("127.0.0.1", two.port)}
    with HaProxy(tmp_path / "balancer", servers) as balancer:
        balancer.wait_up()
        url = f"mqtt://127.0.0.1:{balancer.port}"
        with client(url) as through, client(one.url) as direct:
            through.subscribe("t")
            direct.publish("t", [b"at the first"])
            assert through.receive(1) == [b"at the first"]
            one.kill()
            wait_until(lambda: bool(through.disconnected), 60, "its connection is closed too")
        balancer.wait_down("one")
        with client(url) as through, client(two.url) as direct:
            through.subscribe("t")
            direct.publish("t", [b"at the second"])
            assert through.receive(1) == [b"at the second"]
            one.start()
            balancer.wait_up("one")
            direct.publish("t", [b"still"])
            assert through.receive(2) == [b"at the second", b"still"]


def test_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="at least one server"):
        HaProxy(tmp_path, {})
    with pytest.raises(LabError, match="exited"):
        HaProxy(tmp_path / "b", {"one": ("127.0.0.1", 1)}, balance="no-such-algorithm").start()
