"""Settings: accepted values, refused values, and that passwords stay hidden."""

from __future__ import annotations

import dataclasses
import pickle
import re
import ssl
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg import Quorum, Site
from reliamsg.config import Endpoint, check_name, check_sites
from reliamsg.errors import ConfigError
from reliamsg.policy import Confirm, confirm_policy

SECRET = "s3cr3t-pa55"


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "endpoints", "vhost", "login"),
        [
            ("amqp://localhost", [("localhost", 5672)], "/", None),
            ("amqp://localhost/", [("localhost", 5672)], "/", None),
            ("amqp://localhost/%2F", [("localhost", 5672)], "/", None),
            ("amqp://localhost:5673/sales", [("localhost", 5673)], "sales", None),
            ("amqp://h/a%2Fb%20c", [("h", 5672)], "a/b c", None),
            ("amqps://h", [("h", 5671)], "/", None),
            ("amqps://u:p@a,b:99,c/v", [("a", 5671), ("b", 99), ("c", 5671)], "v", ("u", "p")),
            ("mqtt://localhost", [("localhost", 1883)], "", None),
            ("mqtt://localhost/", [("localhost", 1883)], "", None),
            ("mqtts://u:p@h", [("h", 8883)], "", ("u", "p")),
            ("mqtt://u@h", [("h", 1883)], "", ("u", "")),
            ("mqtt://u%40corp:p%3A%2F%40@h", [("h", 1883)], "", ("u@corp", "p:/@")),
            ("mqtt://u:p@ss@h", [("h", 1883)], "", ("u", "p@ss")),
            ("amqp://127.0.0.1:1,[::1]:2", [("127.0.0.1", 1), ("::1", 2)], "/", None),
            ("amqp://[::1]", [("::1", 5672)], "/", None),
            ("memory://dc1", [("dc1", 0)], "", None),
            ("memory://Dc%201.x_~-", [("Dc%201.x_~-", 0)], "", None),
        ],
    )
    def test_good(
        self, url: str, endpoints: list[tuple[str, int]], vhost: str, login: tuple[str, str] | None
    ) -> None:
        site = Site("dc1", url)
        assert site.endpoints == tuple(Endpoint(*endpoint) for endpoint in endpoints)
        assert (site.vhost, site.login()) == (vhost, login)
        assert site.secure == url.split(":", maxsplit=1)[0].endswith("s")
        assert site.protocol == ("amqp" if url.startswith("memory") else url[:4])
        assert Site("dc1", site.url) == dataclasses.replace(site, credentials=None)

    @pytest.mark.parametrize(
        ("url", "protocol", "shown"),
        [
            ("memory://dc1", "amqp", "memory://dc1"),
            ("memory://dc1/", "amqp", "memory://dc1"),
            ("memory://dc1/amqp", "amqp", "memory://dc1"),
            ("memory://dc1/mqtt", "mqtt", "memory://dc1/mqtt"),
        ],
    )
    def test_in_memory(self, url: str, protocol: str, shown: str) -> None:
        site = Site("dc1", url)
        assert (site.scheme, site.protocol, site.secure) == ("memory", protocol, False)
        assert (site.url, site.shown_url, repr(site)) == (shown, shown, f"Site('dc1', '{shown}')")
        assert [str(endpoint) for endpoint in site.endpoints] == ["dc1"]
        assert pickle.loads(pickle.dumps(site)) == site

    @pytest.mark.parametrize(
        "url",
        [
            "",
            "localhost",
            "http://localhost",
            "AMQP://localhost",
            "amqp:localhost",
            "amqp://",
            "amqp:///vhost",
            "amqp://a,,b",
            "amqp://a,",
            "amqp://h:port",
            "amqp://h:99999",
            "amqp://h:-1",
            "amqp://[::1",
            "amqp://h/v?heartbeat=5",
            "amqp://h/v#part",
            "mqtt://h/topic",
            f"amqp://u:{SECRET}@",
            f"amqp://u:{SECRET}@h:port",
            f"http://u:{SECRET}@h",
            f"mqtt://u:{SECRET}@h/topic",
            f"mqtt://u:{SECRET}/x@h",
            "memory://",
            "memory:///mqtt",
            "memory://a,b",
            "memory://a:1",
            "memory://a/http",
            "memory://a/mqtt/x",
            "memory://a?x=1",
            f"memory://u:{SECRET}@a",
            None,
            5,
            b"amqp://h",
        ],
    )
    def test_bad(self, url: str) -> None:
        with pytest.raises(ConfigError, match="dc1") as caught:
            Site("dc1", url)
        assert SECRET not in str(caught.value)
        cause = caught.value.__cause__ or caught.value.__context__
        assert SECRET not in str(cause)


class TestSecrecy:
    def test_passwords_show_nowhere(self) -> None:
        site = Site("dc1", f"amqps://user:{SECRET}@a,b:5673/v", credentials=lambda: ("user", SECRET))
        assert site.login() == ("user", SECRET)
        for shown in (repr(site), str(site), f"{site}", site.shown_url, repr([site]), repr({"site": site})):
            assert SECRET not in shown
        assert site.shown_url == "amqps://a:5671,b:5673/v"
        assert repr(site) == "Site('dc1', 'amqps://a:5671,b:5673/v')"

    def test_endpoints_as_they_are_shown(self) -> None:
        assert str(Endpoint("::1", 5672)) == "[::1]:5672"
        assert str(Endpoint("h", 5672)) == "h:5672"


class TestSite:
    def test_credentials_are_asked_anew(self) -> None:
        passwords = iter(["one", "two"])
        site = Site("dc1", "amqp://ignored:ignored@h", credentials=lambda: ("u", next(passwords)))
        assert [site.login(), site.login()] == [("u", "one"), ("u", "two")]

    def test_tls(self) -> None:
        context = ssl.create_default_context()
        assert Site("dc1", "amqps://h", tls=context).tls_context() is context
        default = Site("dc1", "mqtts://h").tls_context()
        assert default is not None
        assert default.verify_mode is ssl.CERT_REQUIRED
        assert default.check_hostname
        assert Site("dc1", "amqp://h").tls_context() is None
        with pytest.raises(ConfigError, match="amqps"):
            Site("dc1", "amqp://h", tls=context)

    @pytest.mark.parametrize(
        "settings",
        [
            {"confirm_timeout": 0},
            {"connect_timeout": -1},
            {"backoff_min": 0},
            {"backoff_min": 5, "backoff_max": 1},
            {"heartbeat": 0},
            {"heartbeat": float("nan")},
            {"window_batches": 0},
            {"window_bytes": 0},
            {"prefetch": 1},
            {"prefetch": 65536},
            {"max_frame_bytes": 100},
            {"declare": "maybe"},
            {"queue_type": "stream"},
            {"mqtt_version": "4"},
        ],
    )
    def test_settings_out_of_range(self, settings: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match="dc1") as caught:
            Site("dc1", "amqp://h", **settings)  # type: ignore[arg-type]
        assert next(iter(settings)) in str(caught.value) or "backoff" in str(caught.value)

    def test_frozen(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            Site("dc1", "amqp://h").name = "dc2"  # type: ignore[misc]

    def test_equality_and_hash_are_by_value(self) -> None:
        assert Site("dc1", "amqp://h") == Site("dc1", "amqp://h")
        assert Site("dc1", "amqp://h") != Site("dc1", "amqp://i")
        assert len({Site("dc1", "amqp://h"), Site("dc1", "amqp://h")}) == 1
        assert pickle.loads(pickle.dumps(Site("dc1", "amqp://h"))) == Site("dc1", "amqp://h")

    @pytest.mark.parametrize(
        "make",
        [
            lambda: [],
            lambda: [Site("a", "amqp://h"), Site("a", "amqp://i")],
            lambda: ["amqp://h"],
        ],
    )
    def test_sites_that_make_no_sense_together(self, make: Callable[[], list[Site]]) -> None:
        with pytest.raises(ConfigError):
            check_sites(make())

    def test_sites(self) -> None:
        sites = [Site("a", "amqp://h"), Site("b", "mqtt://h")]
        assert check_sites(sites) == tuple(sites)


class TestNames:
    @pytest.mark.parametrize(
        "name", ["a", "gateway-7", "orders/eu", "größe", "a b", "x" * 100, "é" * 50, "a$b", "."]
    )
    def test_good(self, name: str) -> None:
        assert check_name("topic", name) == name

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("", "empty"),
            ("x" * 101, "101 bytes"),
            ("é" * 51, "102 bytes"),
            ("a+b", "'+'"),
            ("a/#", "'#'"),
            ("a.*", "'*'"),
            ("a:b", "':'"),
            ("a~1", "'~'"),
            ("a\0b", "x00"),
            ("a\nb", "n"),
            ("a\x7f", "x7f"),
            ("a\x85", "x85"),
            ("a\uffff", "uffff"),
            ("a\ufdd0", "ufdd0"),
            ("\ud800", "Unicode"),
            ("$SYS", "starts with '$'"),
            ("/a", "starts with '/'"),
            (None, "NoneType"),
            (b"a", "bytes"),
        ],
    )
    def test_bad(self, name: str, says: str) -> None:
        with pytest.raises(ConfigError, match=f"topic.*{re.escape(says)}"):
            check_name("topic", name)

    @given(st.text())
    def test_anything_else_is_refused_in_one_way(self, name: str) -> None:
        try:
            check_name("topic", name)
        except ConfigError:
            return
        assert 1 <= len(name.encode()) <= 100


class TestConfirmPolicy:
    @pytest.mark.parametrize("confirm", ["all", "any", "all-active", Quorum(1), Quorum(2)])
    def test_good(self, confirm: Confirm) -> None:
        assert confirm_policy(confirm, 2) == confirm

    @pytest.mark.parametrize("confirm", ["both", "", None, 2, Quorum(3)])
    def test_bad(self, confirm: Confirm) -> None:
        with pytest.raises(ConfigError):
            confirm_policy(confirm, 2)

    def test_a_quorum_of_no_sites(self) -> None:
        with pytest.raises(ConfigError, match="at least 1"):
            Quorum(0)
