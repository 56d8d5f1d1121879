"""Settings that applications write down: sites, confirm policies, names and limits.

Everything here is frozen and validated at construction, so that a mistake shows where it was made.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote, unquote

from reliamsg.arguments import check_callback, check_choice, check_count, check_list, check_number
from reliamsg.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = [
    "MAX_HEADERS",
    "MAX_HEADERS_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_HEADER_VALUE_BYTES",
    "MAX_KEY_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_NAME_BYTES",
    "Confirm",
    "Credentials",
    "Endpoint",
    "JournalExport",
    "Quorum",
    "Site",
    "check_name",
    "check_sites",
    "confirm_policy",
    "is_remote",
    "journal_export",
    "shown_target",
    "unsafe_characters",
]

MAX_NAME_BYTES = 100
"""Longest producer id, topic, group or site name, in UTF-8 bytes: group queues are named from three of
them, and AMQP 0-9-1 ends a queue's name at 255 bytes."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest body of one message, in bytes."""

MAX_KEY_BYTES = 255
"""Longest key of a message, in UTF-8 bytes."""

MAX_HEADERS = 64
"""Most headers of one message."""

MAX_HEADER_BYTES = 255
"""Longest name of a header, in UTF-8 bytes: AMQP's are short strings."""

MAX_HEADER_VALUE_BYTES = 8 * 1024
"""Longest value of a header, in UTF-8 bytes."""

MAX_HEADERS_BYTES = 64 * 1024
"""All names and values of one message's headers together, in UTF-8 bytes: in the plain form AMQP needs them in one
frame, for which RabbitMQ has 128 KiB."""

_FORBIDDEN = frozenset("+#*:~")
"""MQTT's and AMQP's wildcards, and the two characters that addresses are joined with."""

Credentials = tuple[str, str]
"""User name and password."""

Scheme = Literal["amqp", "amqps", "mqtt", "mqtts", "memory"]
Protocol = Literal["amqp", "mqtt"]
_PORTS: dict[str, int] = {"amqp": 5672, "amqps": 5671, "mqtt": 1883, "mqtts": 8883}


def unsafe_characters(text: str) -> list[str]:
    """The control characters and Unicode noncharacters in `text`: an MQTT broker may cut the connection of
    whoever sends one (MQTT 5, section 1.5.4)."""
    return sorted(c for c in set(text) if _is_unsafe(ord(c)))


def _is_unsafe(code: int) -> bool:
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE


def check_name(kind: str, name: str) -> str:
    """Return `name`, or raise :class:`ConfigError` that says what is wrong with this `kind` of name.

    Names are 1 to 100 bytes of UTF-8 without control characters, the wildcards ``+ # *``, or ``:`` and
    ``~``. They do not start with ``$`` (MQTT keeps those topics for brokers) or with ``/``.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{kind} must be a string, not {type(name).__name__}")
    return _checked_name(kind, name)


@lru_cache(maxsize=1_024)
def _checked_name(kind: str, name: str) -> str:
    """See :func:`check_name`. Remembered, since every frame brings the same few names again."""
    if not name:
        raise ConfigError(f"{kind} is empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{kind} {name!r} is not valid Unicode text") from None
    if size > MAX_NAME_BYTES:
        raise ConfigError(f"{kind} is {size} bytes long; at most {MAX_NAME_BYTES} are possible")
    bad = sorted({c for c in name if c in _FORBIDDEN}) + unsafe_characters(name)
    if bad:
        raise ConfigError(f"{kind} {name!r} contains {', '.join(map(repr, bad))}, which names can't have")
    if name[0] in "$/":
        raise ConfigError(f"{kind} {name!r} starts with {name[0]!r}, which names can't")
    return name


@dataclass(frozen=True)
class Quorum:
    """Confirm policy: a publish counts as published when at least `k` sites have confirmed it."""

    k: int

    def __post_init__(self) -> None:
        check_count("Quorum: k, the number of sites,", self.k)


Confirm = Literal["all", "any", "all-active"] | Quorum
"""Which sites must have confirmed before a publish counts as published.

``"all"``: every site. ``"any"``: one. ``Quorum(k)``: k of them. ``"all-active"``: every site that is up
(handshaken, not blocked, no confirm overdue), and at least one.
"""


def confirm_policy(confirm: Confirm, sites: int) -> Confirm:
    """Return `confirm`, or raise :class:`ConfigError` when it can't be met with this many sites."""
    if isinstance(confirm, Quorum):
        if confirm.k > sites:
            raise ConfigError(f"Quorum({confirm.k}) can't be met with {sites} sites")
    else:
        check_choice("confirm", confirm, ("all", "any", "all-active"), " or Quorum(k)")
    return confirm


@dataclass(frozen=True)
class Endpoint:
    """One address of a site."""

    host: str
    """For a site in memory, the name of its broker."""
    port: int
    """For a site in memory, 0."""

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Login:
    """A login that a URL gave, as ``credentials``. It shows in no ``repr``, copy as data, or pickle."""

    __slots__ = ("_ask",)

    def __init__(self, user: str, password: str) -> None:
        self._ask: Callable[[], Credentials] = lambda: (user, password)

    def __call__(self) -> Credentials:
        return self._ask()

    def __repr__(self) -> str:
        return "<login>"

    def __copy__(self) -> _Login:
        return self

    def __deepcopy__(self, memo: object) -> _Login:
        return self

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            "a site with a password is not pickled: make it where it is used, or pass credentials="
        )


@dataclass(frozen=True)
class Site:
    """One datacenter as a client sees it: a broker, or a cluster behind several endpoints.

    ``Site("dc1", "amqps://user:secret@a,b:5673,c/vhost")``. Schemes: ``amqp``, ``amqps``, ``mqtt``,
    ``mqtts``; several hosts are separated by commas and tried in turn. A login stands once, before the first host; in
    user name, password and virtual host the characters ``/ ? # @ ,`` and blanks are percent-encoded (``@`` as ``%40``).
    A URL that could mean several things is refused, and not repeated. A URL has no options: settings are arguments.

    ``Site("dc1", "memory://dc1")`` is a broker in the memory of this process, for tests, demos and trying things out:
    no other process can reach it, and it keeps nothing when the process exits. All clients of the process that use the
    same name share one broker, which behaves like RabbitMQ, or like an MQTT broker with ``memory://dc1/mqtt``. Use
    :class:`reliamsg.testing.MemoryNetwork` for brokers that fail when told to.

    The password never shows in ``repr``, logs, errors or journals, nor in :func:`dataclasses.asdict`; a site with a
    password can't be pickled. :func:`dataclasses.replace` keeps the login.

    All durations are seconds, all sizes bytes.
    """

    name: str
    url: str = field(repr=False)
    """Once made, the URL without user and password."""
    tls: ssl.SSLContext | None = field(default=None, repr=False, kw_only=True, compare=False)
    """Used with ``amqps`` and ``mqtts``; ``ssl.create_default_context()`` unless given."""
    credentials: Callable[[], Credentials] | None = field(
        default=None, repr=False, kw_only=True, compare=False
    )
    """Asked anew on every connect, on an I/O thread of the site, of which MQTT sites have two; replaces what the URL
    says. Where only the URL has a
    login this is a function that returns it."""
    auth: Literal["password", "external"] = field(default="password", kw_only=True)
    """AMQP: log in with user name and password, or by the certificate that `tls` has loaded (SASL ``EXTERNAL``); then
    neither URL nor `credentials` may give a login. MQTT has nothing to choose: a broker that goes by certificates
    does so where there is no login."""
    confirm_timeout: float = field(default=30.0, kw_only=True)
    """The oldest batch unconfirmed for so long makes the producer drop the connection and send it again. Where
    that does not help the time doubles, up to eight times."""
    connect_timeout: float = field(default=10.0, kw_only=True)
    """Wall-clock budget of one attempt at one endpoint: TCP, TLS and the protocol's handshake."""
    backoff_min: float = field(default=0.2, kw_only=True)
    backoff_max: float = field(default=10.0, kw_only=True)
    """Pause between rounds over the endpoints: exponential with jitter between these two, for ever."""
    heartbeat: float = field(default=10.0, kw_only=True)
    """AMQP heartbeat and MQTT keepalive."""
    window_batches: int = field(default=256, kw_only=True)
    window_bytes: int = field(default=8 * 1024 * 1024, kw_only=True)
    """Most that is sent and not yet confirmed, in batches and in bytes. At an MQTT 5 site the broker's
    Receive Maximum lowers the count further."""
    prefetch: int = field(default=64, kw_only=True)
    """Most batches that a consumer holds unacknowledged from this site (AMQP prefetch count, MQTT 5
    Receive Maximum)."""
    max_frame_bytes: int = field(default=16 * 1024 * 1024, kw_only=True)
    """Largest broker message that this client sends to this site. A larger batch goes as several; a larger message
    parks its stream here. What is received is bounded by the protocol alone (64 MiB): a consumer that was told of less
    than its producers would else refuse what they send."""
    declare: Literal["create", "passive", "none"] = field(default="create", kw_only=True)
    """AMQP: create exchange and queues, only check that they are there, or trust that they are. MQTT: with ``none`` a
    producer trusts that the groups that it names exist; otherwise it finds out, and creates nothing."""
    queue_type: Literal["quorum", "classic"] = field(default="quorum", kw_only=True)
    """AMQP: the type of group queues that this client creates."""
    mqtt_version: Literal["auto", "5", "3.1.1"] = field(default="auto", kw_only=True)
    """MQTT: ``auto`` tries 5 and falls back to 3.1.1 where the broker refuses it."""
    scheme: Scheme = field(init=False)
    protocol: Protocol = field(init=False)
    """What the broker speaks; a broker in memory behaves accordingly."""
    endpoints: tuple[Endpoint, ...] = field(init=False)
    vhost: str = field(init=False)
    """AMQP virtual host; empty for MQTT and in memory."""

    def __post_init__(self) -> None:
        check_name("site name", self.name)
        parsed = _parse_url(self.name, self.url)
        put = object.__setattr__
        put(self, "scheme", parsed.scheme)
        put(self, "protocol", parsed.protocol)
        put(self, "endpoints", parsed.endpoints)
        put(self, "vhost", parsed.vhost)
        # The login leaves the URL here: what copies or shows the fields has no password to show.
        if parsed.login is not None and self.credentials is None:
            put(self, "credentials", _Login(*parsed.login))
        put(self, "url", f"{parsed.scheme}://{','.join(map(str, parsed.endpoints))}{parsed.path}")
        for name in ("confirm_timeout", "connect_timeout", "backoff_min", "backoff_max", "heartbeat"):
            check_number(f"site {self.name}: {name}", getattr(self, name), above=0)
        if self.backoff_max < self.backoff_min:
            raise ConfigError(f"site {self.name}: backoff_max is below backoff_min")
        for name, least in (
            ("window_batches", 1),
            ("window_bytes", 1),
            ("prefetch", 2),
            ("max_frame_bytes", 1024),
        ):
            check_count(f"site {self.name}: {name}", getattr(self, name), least=least)
        if self.prefetch > 65535:
            raise ConfigError(f"site {self.name}: prefetch must be at most 65535: it is a 16-bit number")
        for name, choices in (
            ("auth", ("password", "external")),
            ("declare", ("create", "passive", "none")),
            ("queue_type", ("quorum", "classic")),
            ("mqtt_version", ("auto", "5", "3.1.1")),
        ):
            check_choice(f"site {self.name}: {name}", getattr(self, name), choices)
        check_callback(f"site {self.name}: credentials", self.credentials)
        if self.tls is not None and not hasattr(self.tls, "wrap_bio"):  # ssl takes long to load
            raise ConfigError(
                f"site {self.name}: tls must be an ssl.SSLContext, not {type(self.tls).__name__}"
            )
        if self.tls is not None and not self.secure:
            raise ConfigError(f"site {self.name}: tls needs an amqps:// or mqtts:// URL")
        if self.auth == "external" and self.scheme != "amqps":
            raise ConfigError(f"site {self.name}: auth='external' needs an amqps:// URL")
        if self.auth == "external" and self.credentials is not None:
            raise ConfigError(f"site {self.name}: auth='external' and a user name exclude each other")

    @property
    def secure(self) -> bool:
        return self.scheme in ("amqps", "mqtts")

    @property
    def shown_url(self) -> str:
        """The URL as it may be shown: without user and password."""
        if self.scheme == "memory":
            return self.url
        hosts = ",".join(map(str, self.endpoints))
        return f"{self.scheme}://{hosts}" + (f"/{self.vhost}" if self.protocol == "amqp" else "")

    def login(self) -> Credentials | None:
        """User name and password for one connect; None where neither URL nor callable gives any."""
        return self.credentials() if self.credentials is not None else None

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context to use; None for a plain connection."""
        if not self.secure:
            return None
        import ssl  # here, since it takes as long to load as half of the package

        return self.tls if self.tls is not None else ssl.create_default_context()

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self.shown_url!r})"


def check_sites(sites: Sequence[Site]) -> tuple[Site, ...]:
    """Return `sites` as a tuple, or raise :class:`ConfigError`: there must be one, and names must differ."""
    if isinstance(sites, Site):
        raise ConfigError("sites must be a list of Site objects: [site], also for one")
    found = tuple(check_list("sites", sites, "Site objects"))
    for site in found:
        if not isinstance(site, Site):
            raise ConfigError(f"sites must be Site objects, not {type(site).__name__}")
    if not found:
        raise ConfigError("at least one site is needed")
    names = [site.name for site in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"site name {twice[0]!r} is used twice")
    return found


class _ParsedUrl(NamedTuple):
    scheme: Scheme
    protocol: Protocol
    endpoints: tuple[Endpoint, ...]
    path: str
    """As the URL has it, in its shortest form."""
    vhost: str = ""
    login: Credentials | None = None


def _parse_url(name: str, url: str) -> _ParsedUrl:
    """Take a broker URL apart; no error shows the URL itself, since it may hold a password."""
    if not isinstance(url, str):
        raise ConfigError(f"site {name}: the URL must be a string, not {type(url).__name__}")
    scheme, sep, rest = url.partition("://")
    if sep and scheme == "memory":
        return _parse_memory_url(name, rest)
    if not sep or scheme not in _PORTS:
        raise ConfigError(
            f"site {name}: the URL must start with amqp://, amqps://, mqtt://, mqtts:// or memory://"
        )
    # urlsplit() takes no comma-separated hosts, and what it makes of odd URLs depends on the version of Python.
    authority, _, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    if _AMBIGUOUS_LOGIN.search(login) or "@" in path:
        raise ConfigError(
            f"site {name}: the URL could mean several things: a login stands once, before the first host, and in user"
            " name, password and virtual host / ? # @ , and blanks are percent-encoded (@ as %40, / as %2F)"
        )
    if "?" in hosts + path or "#" in hosts + path:
        raise ConfigError(f"site {name}: settings are arguments of Site(), not part of the URL")
    user: Credentials | None = None
    if at:
        first, _, second = login.partition(":")
        user = (unquote(first), unquote(second))
    endpoints = tuple(_parse_host(name, scheme, host) for host in hosts.split(","))
    if scheme.startswith("mqtt"):
        if path.strip("/"):
            raise ConfigError(f"site {name}: an MQTT URL has no path")
        return _ParsedUrl(scheme, "mqtt", endpoints, "", "", user)  # type: ignore[arg-type]
    vhost = unquote(path) or "/"
    if not path.isprintable() or unsafe_characters(vhost):
        raise ConfigError(f"site {name}: the virtual host contains control characters")
    shortest = "" if vhost == "/" else "/" + quote(vhost, safe="")
    return _ParsedUrl(scheme, "amqp", endpoints, shortest, vhost, user)  # type: ignore[arg-type]


def _parse_memory_url(name: str, rest: str) -> _ParsedUrl:
    found = _MEMORY.fullmatch(rest)
    if found is None:
        raise ConfigError(
            f"site {name}: a site in memory is memory://NAME, or memory://NAME/mqtt for one that behaves like an MQTT"
            " broker; NAME has letters, digits and . _ ~ % - only"
        )
    protocol: Protocol = "mqtt" if found[2] == "mqtt" else "amqp"
    return _ParsedUrl("memory", protocol, (Endpoint(found[1], 0),), "/mqtt" if protocol == "mqtt" else "")


_MEMORY = re.compile(r"([A-Za-z0-9._~%-]+)(?:/(amqp|mqtt)?)?")
_AMBIGUOUS_LOGIN = re.compile(r"[/?#,\\\s\x00-\x1f\x7f]")
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s\[\]\\/?#@,:%\"'<>^`{|}]+")


def _parse_host(name: str, scheme: str, text: str) -> Endpoint:
    found = _HOST.match(text) if text.isprintable() else None
    rest = text[found.end() :] if found is not None else ""
    digits = rest[1:]
    port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 5 else None
    if found is None or (rest and not (rest[0] == ":" and port is not None and 0 < port <= 65535)):
        raise ConfigError(
            f"site {name}: the URL needs HOST or HOST:PORT (1 to 65535), several separated by commas"
        )
    host = found[0].strip("[]").lower()
    if set("/?#@:") & set(unicodedata.normalize("NFKC", host)) and ":" not in host:
        raise ConfigError(f"site {name}: a host's name holds characters that stand for others")
    return Endpoint(host, _PORTS[scheme] if port is None else port)


@dataclass(frozen=True)
class JournalExport:
    """Where a client's journal goes, and what happens while it can't go there.

    ``JournalExport("/var/spool/journals")``, or an fsspec URL: ``JournalExport("s3://bucket/prefix")`` (extra
    ``remote``, and the package of the protocol). Several clients, and those of several hosts, may share one target.
    Logins in a URL never show.
    """

    target: str | os.PathLike[str] = field(repr=False)
    interval: float = field(default=60.0, kw_only=True)
    """Seconds between two segments while there is something new."""
    segment_rows: int = field(default=10_000, kw_only=True)
    """A segment is cut at once when so many rows wait, and holds no more. 1 to 1,000,000."""
    max_backlog_rows: int = field(default=100_000, kw_only=True)
    """Rows that may wait in the client's file while the target is away; at least 10, and twice
    `segment_rows`. Beyond it `when_full` decides; rows about connections and about closing are written all the same."""
    when_full: Literal["block", "truncate"] = field(default="block", kw_only=True)
    """``"block"``: a producer takes no messages (:class:`~reliamsg.errors.JournalFull` after its
    ``block_timeout``), a consumer hands none out, until the target takes segments again. ``"truncate"``: the oldest
    rows are given up, and the journal says which: work goes on, and an audit finds evidence missing."""

    def __post_init__(self) -> None:
        target = self.target
        if not isinstance(target, (str, os.PathLike)) or not isinstance(os.fspath(target), str):
            raise ConfigError(f"journal: the target must be a path or URL, not {type(target).__name__}")
        if not os.fspath(target):
            raise ConfigError("journal: the target is empty")
        if "\0" in os.fspath(target):
            raise ConfigError("journal: the target contains '\\x00', which paths can't have")
        check_number("journal: interval", self.interval, above=0)
        check_count("journal: segment_rows", self.segment_rows, most=1_000_000)
        least = max(10, 2 * self.segment_rows)
        check_count("journal: max_backlog_rows", self.max_backlog_rows, least=least, most=2**53)
        check_choice("journal: when_full", self.when_full, ("block", "truncate"))

    @property
    def shown_target(self) -> str:
        """The target as it may be shown: without login and query."""
        return shown_target(self.target)

    def __repr__(self) -> str:
        return (
            f"JournalExport({self.shown_target!r}, interval={self.interval!r}, segment_rows={self.segment_rows!r},"
            f" max_backlog_rows={self.max_backlog_rows!r}, when_full={self.when_full!r})"
        )


def journal_export(journal: str | os.PathLike[str] | JournalExport | None) -> JournalExport | None:
    """What was given as `journal=`, as settings. Raises :class:`ConfigError`."""
    return journal if journal is None or isinstance(journal, JournalExport) else JournalExport(journal)


def is_remote(target: str | os.PathLike[str]) -> bool:
    """Whether a journal's target is a URL. Path objects are directories."""
    return isinstance(target, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)", target) is not None


def shown_target(target: str | os.PathLike[str]) -> str:
    """A journal's target as it may be shown: a URL without login, query and fragment."""
    text = os.fspath(target)
    if not is_remote(target):
        return text
    parts = []
    for part in text.split("::"):
        scheme, sep, rest = part.partition("://")
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
        # A password may hold a slash that should have been escaped: what precedes the last @ is never shown.
        parts.append(scheme + sep + rest.rpartition("@")[2])
    return "::".join(parts)
