"""Passwords and keys appear nowhere, whatever is done with them, right or wrong."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliamsg import KeyRing, Producer, Site
from reliamsg.cli.options import KeysType, SiteType
from reliamsg.cli.status import one_line
from reliamsg.errors import ConfigError
from reliamsg.keys import read_key_ring
from reliamsg.trust import read_client_keys
from tests.cli.commands import reliamsg_here

MARK = "S3cretMARKER"
HEX = "5e" * 32


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and all of its causes."""
    seen: list[BaseException] = []
    todo = [error]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.append(one)
            todo += [e for e in (one.__cause__, one.__context__) if e is not None]
    return iter(seen)


def assert_hidden(error: BaseException, *secrets: str) -> None:
    for one in chain(error):
        said = [str(one), repr(one), *map(repr, one.args), str(vars(one)), *getattr(one, "__notes__", [])]
        if isinstance(one, click.ClickException):
            said.append(one.format_message())
        for text in said:
            assert not any(secret in text for secret in secrets), text
    lines = [line for line in traceback.format_exception(error) if not line.startswith("  File")]
    assert not any(secret in line for line in lines for secret in secrets), lines


# -- URLs -----------------------------------------------------------------------------------------------------

REFUSED = [
    f"amqp://u:{MARK}/x@h/v",
    f"amqp://svc:123/{MARK}@broker/v",
    f"amqp://u:12/{MARK}@h",
    f"amqp://u:{MARK}@h1,u2:p2@h2/",
    f"amqp://u1:p1@h1,u:{MARK}@h2/",
    f"amqp://h1,u:{MARK}@h2/",
    f"amqp://h1:5672,{MARK}@h2/",
    f"amqp://u:{MARK}?@h",
    f"amqp://u:a?{MARK}@h",
    f"amqp://u:a#{MARK}@h",
    f"amqp://u:a,{MARK}@h",
    f"amqp://u:a {MARK}@h",
    f"amqp://u:a\\{MARK}@h",
    f"amqp://u:a\n{MARK}@h",
    f"mqtt://u:{MARK}@h:notaport",
    f"mqtt://u:{MARK}@h:0",
    f"mqtt://u:{MARK}@h:65536",
    f"mqtt://u:{MARK}@h:1:2",
    f"mqtt://u:{MARK}@",
    f"mqtt://u:{MARK}@h,",
    f"mqtt://u:{MARK}@[::1",
    f"mqtt://u:{MARK}@[x]",
    f"mqtt://u:{MARK}@[::1]x",
    f"mqtt://u:{MARK}@h/x",
    f"mqtt://u:{MARK}@a b",
    f"mqtt://u:{MARK}@a\n.b",
    f"mqtt://u:{MARK}@a\u2024\u2100b",
    f"amqp://u:{MARK}@h?heartbeat=3",
    f"amqp://u:{MARK}@h/v?heartbeat=3",
    f"amqp://u:{MARK}@h/?x",
    f"amqp://u:{MARK}@h/v?",
    f"amqps://u:{MARK}@h#x",
    f"amqps://u:{MARK}@h/#",
    f"amqp://h?password={MARK}",
    f"amqp://h/?password={MARK}@x",
    f"AMQP://u:{MARK}@h",
    f"http://u:{MARK}@h",
    f"u:{MARK}@h",
    f"amqp:u:{MARK}@h",
    f"amqp://u:{MARK}@h/a\x00b",
    f"amqp://u:{MARK}@h/a%00b",
]


@pytest.mark.parametrize("url", REFUSED)
def test_a_url_that_is_refused_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Site("dc1", url)
    assert_hidden(raised.value, MARK)
    for given_as in (f"dc1={url}", url):
        with pytest.raises(click.BadParameter) as refused:
            SiteType().convert(given_as, None, None)
        assert_hidden(refused.value, MARK)
    for text in (f"dc1={url}", f"dc1={url}".replace("=", "")):
        done = reliamsg_here("group", "create", "g", "--topic", "t", "--site", text)
        assert done.returncode == 64
        assert MARK.encode() not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("url", "login", "hosts", "vhost"),
    [
        ("amqp://u:p%2Fw@h/v", ("u", "p/w"), ["h:5672"], "v"),
        ("amqp://u%40x:p%3A%2C%3F@a,b:1/%2Fv", ("u@x", "p:,?"), ["a:5672", "b:1"], "/v"),
        ("amqp://u:p@ss@h1,h2/v%40w", ("u", "p@ss"), ["h1:5672", "h2:5672"], "v@w"),
        ("amqps://u:p@[::1]:99,H", ("u", "p"), ["[::1]:99", "h:5671"], "/"),
        ("mqtt://u@h", ("u", ""), ["h:1883"], ""),
        ("mqtt://h/", None, ["h:1883"], ""),
    ],
)
def test_unambiguous_urls_are_accepted(
    url: str, login: tuple[str, str] | None, hosts: list[str], vhost: str
) -> None:
    site = Site("dc1", url)
    again = dataclasses.replace(site, prefetch=7)
    for each in (site, again, Site("dc1", site.url, credentials=site.credentials), copy.deepcopy(site)):
        assert each.login() == login
        assert [str(e) for e in each.endpoints] == hosts
        assert each.vhost == vhost
    assert again.prefetch == 7


def looks_at(site: Site) -> Iterator[object]:
    """All ways to see a site's content without asking for its login."""
    yield from (repr(site), str(site), f"{site!r:>20}", site.shown_url, site.url)
    yield from (repr(dataclasses.asdict(site)), repr(dataclasses.astuple(site)), repr(vars(site)))
    yield repr([getattr(site, field.name) for field in dataclasses.fields(site)])
    yield repr(site.__reduce_ex__(2)[1:])
    yield repr(copy.copy(site))


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8))
def test_a_site_shows_no_password(around: str) -> None:
    from urllib.parse import quote

    password = f"{around}{MARK}{around}"
    site = Site("dc1", f"amqps://user:{quote(password, safe='')}@a,b:1/v")
    assert site.login() == ("user", password)
    assert not [text for text in looks_at(site) if MARK in str(text)]
    with pytest.raises(TypeError, match="can't be pickled") as raised:
        pickle.dumps(site)
    assert_hidden(raised.value, MARK)


def test_a_site_without_password_is_pickled() -> None:
    site = Site("dc1", "amqp://a,b:1/v", prefetch=9)
    assert pickle.loads(pickle.dumps(site)) == site


def test_neither_logs_nor_files_hold_the_password(
    tmp_path: Path, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sites = [
        Site(scheme, f"{scheme}://user:{MARK}@127.0.0.1:{free_port}", backoff_max=0.2)
        for scheme in ("amqp", "mqtt")
    ]
    producer = Producer("p", sites, outbox=tmp_path / "o.db", journal=tmp_path / "journal")
    try:
        producer.publish("t", b"x")
        status = repr(producer.status())
    finally:
        producer.close(0.3)
    assert MARK not in status
    assert MARK not in caplog.text + repr([vars(record) for record in caplog.records])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if MARK.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    "url",
    [url for url in REFUSED if "://" in url and MARK in url.rpartition("@")[0] and len(url.split()) == 1],
)
def test_a_line_for_people_hides_logins_that_are_written_wrongly(url: str) -> None:
    assert MARK not in one_line(f"can't reach {url}")


# -- keys -----------------------------------------------------------------------------------------------------

KEY_FILES = {
    "swapped columns": f"{HEX} 2026\n",
    "swapped, both long": f"{HEX} {'ab' * 32}\n",
    "no id": f"{HEX}\n",
    "three columns": f"2026 {HEX} {HEX}\n",
    "joined by a colon": f"2026:{HEX}\n",
    "JSON": f'{{"2026": "{HEX}"}}\n',
    "YAML": f"2026: '{HEX}'\n",
    "odd digits": f"2026 {HEX}5\n",
    "a typing error": f"2026 {HEX}zz\n",
    "base64": f"2026 XkXe{MARK}==\n",
    "twice": f"2026 {HEX}\n2026 {HEX}\n",
    "not ASCII": f"2026 {HEX}é\n",
    "an id over the limit": f"{'2026-' * 20} {HEX}\n",
    "all zeros": f"2026 {'00' * 32}\n",
    "short": "2026 5e5e5e5e5e\n",
    "empty": "",
}


def keys_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("text", KEY_FILES.values(), ids=list(KEY_FILES))
def test_a_mistyped_file_of_keys_is_refused_and_not_repeated(text: str, tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys", text)
    with pytest.raises(click.BadParameter) as raised:
        KeysType().convert(str(path), None, None)
    assert_hidden(raised.value, HEX, "5e5e", MARK)
    done = reliamsg_here(
        "pub",
        "t",
        "--producer",
        "p",
        "--outbox",
        tmp_path / "o.db",
        "--site",
        "a=mqtt://127.0.0.1:1",
        "--keys",
        path,
    )
    assert done.returncode == 64
    assert b"5e5e" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mode", "fits"),
    [(0o600, True), (0o400, True), (0o640, True), (0o440, True), (0o644, False), (0o604, False), (0o660, False),
     (0o602, False), (0o666, False), (0o620, False), (0o601, False)],
)  # fmt: skip
def test_a_file_of_keys_that_others_can_open_is_refused(mode: int, fits: bool, tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys", f"2026 {HEX}\n", mode)
    if fits:
        assert KeysType().convert(str(path), None, None).key_ids == ("2026",)
        return
    with pytest.raises(click.BadParameter, match="chmod 600") as raised:
        KeysType().convert(str(path), None, None)
    assert_hidden(raised.value, HEX)


@pytest.mark.parametrize(("read", "most"), [(read_key_ring, 64 * 1024), (read_client_keys, 64 * 1024 * 1024)])
def test_a_file_of_keys_that_is_too_long_is_refused(
    read: Callable[[Path], object], most: int, tmp_path: Path
) -> None:
    """Rather than read in part: the key that signs may be in the rest."""
    path = tmp_path / "keys"
    line = f"k {HEX}\n" if read is read_key_ring else f"producer/a k {HEX}\n"
    path.write_text(line + "#" * (most - len(line)))
    path.chmod(0o600)
    read(path)
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(ConfigError, match=f"keys: more than {most} bytes"):
        read(path)


@pytest.mark.parametrize(
    "text",
    [
        f"producer/a {HEX}", f"{HEX} a", f"producer/a {HEX} {HEX}{HEX}", f"producer/a k {HEX}z", f"a k {HEX}",
        f"producer/a k {HEX} more", f"producer/a k {HEX}\ngroup/b k {HEX}", f"producer/a k {HEX}\nproducer/a k {HEX}",
        f"producer/a k {HEX}\xff", f"producer/a {HEX}\u00e9 {HEX}",
    ],
)  # fmt: skip
def test_a_mistyped_file_of_clients_keys_is_refused_and_not_repeated(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="keys: ") as refused:
        read_client_keys(path)
    assert_hidden(refused.value, HEX)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_keys_of_another_user_is_refused(tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys", f"2026 {HEX}\n")
    os.chown(path, 65534, 65534)
    with pytest.raises(click.BadParameter, match="another user"):
        KeysType().convert(str(path), None, None)


@pytest.mark.parametrize(
    ("keys", "sign_with"),
    [
        ({HEX: b"2026"}, None),
        ({HEX: HEX}, None),
        ({"2026": HEX}, None),
        ({"2026": b"5e5e5e"}, None),
        ({"2026": bytes(32)}, None),
        ({f"{HEX} ": b"2026"}, None),
        ({"2026": bytes.fromhex(HEX)}, HEX),
        ({HEX: bytes.fromhex(HEX)}, "2026"),
        ({1: HEX}, None),
        (HEX, None),
    ],
)
def test_wrong_keys_are_not_repeated(keys: object, sign_with: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        KeyRing(keys, sign_with=sign_with)  # type: ignore[arg-type]
    assert_hidden(raised.value, HEX, "5e5e")
