"""Settings of applications: sites, names and limits.

All objects are frozen and validated at construction, so that an error occurs where the mistake was made.
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
from reliamsg.keys import KeyRing, check_keys

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
    "Credentials",
    "Endpoint",
    "JournalExport",
    "Site",
    "check_name",
    "check_sites",
    "is_remote",
    "journal_export",
    "shown_target",
    "unsafe_characters",
]

MAX_NAME_BYTES = 100
"""The maximum length of a producer id, topic, group or site name, in UTF-8 bytes: the name of a group's queue contains
up to three of them, and AMQP 0-9-1 limits it to 255 bytes."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The maximum size of a message's body, in bytes."""

MAX_KEY_BYTES = 255
"""The maximum length of a message's key, in UTF-8 bytes."""

MAX_HEADERS = 64
"""The maximum number of headers of a message."""

MAX_HEADER_BYTES = 255
"""The maximum length of a header's name, in UTF-8 bytes: in AMQP it is a short string."""

MAX_HEADER_VALUE_BYTES = 8 * 1024
"""The maximum length of a header's value, in UTF-8 bytes."""

MAX_HEADERS_BYTES = 64 * 1024
"""The maximum size of all names and values of a message's headers, in UTF-8 bytes: in the plain format AMQP sends them
in one frame, which RabbitMQ limits to 128 KiB."""

_FORBIDDEN = frozenset("+#*:~")
"""The wildcards of MQTT and AMQP, and the two separators in addresses."""

Credentials = tuple[str, str]
"""User name and password."""

Scheme = Literal["amqp", "amqps", "mqtt", "mqtts", "memory"]
Protocol = Literal["amqp", "mqtt"]
_PORTS: dict[str, int] = {"amqp": 5672, "amqps": 5671, "mqtt": 1883, "mqtts": 8883}


def unsafe_characters(text: str) -> list[str]:
    """The control characters and Unicode noncharacters in `text`: an MQTT broker may close the connection of a client
    that sends one (MQTT 5, section 1.5.4)."""
    return sorted(c for c in set(text) if _is_unsafe(ord(c)))


def _is_unsafe(code: int) -> bool:
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE


def check_name(kind: str, name: str) -> str:
    """Return `name`, or raise a :class:`ConfigError` that describes the problem with this `kind` of name.

    Names are 1 to 100 bytes of UTF-8 without control characters, the wildcards ``+ # *``, or ``:`` and
    ``~``. They do not start with ``$`` (MQTT reserves these topics for brokers) or with ``/``.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{kind} must be a string, not {type(name).__name__}")
    return _checked_name(kind, name)


@lru_cache(maxsize=1_024)
def _checked_name(kind: str, name: str) -> str:
    """See :func:`check_name`. Cached, because all frames contain the same few names."""
    if not name:
        raise ConfigError(f"{kind} is empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{kind} {name!r} is not valid Unicode text") from None
    if size > MAX_NAME_BYTES:
        raise ConfigError(f"{kind} is {size} bytes long; the limit is {MAX_NAME_BYTES}")
    bad = sorted({c for c in name if c in _FORBIDDEN}) + unsafe_characters(name)
    if bad:
        raise ConfigError(f"{kind} {name!r} contains {', '.join(map(repr, bad))}, which names can't have")
    if name[0] in "$/":
        raise ConfigError(f"{kind} {name!r} starts with {name[0]!r}, which names can't")
    return name


@dataclass(frozen=True)
class Endpoint:
    """One address of a site."""

    host: str
    """For an in-memory site, the name of its broker."""
    port: int
    """For an in-memory site, 0."""

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Login:
    """A login from a URL, as ``credentials``. It is not contained in any ``repr``, ``asdict`` or pickle."""

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
            "a site with a password can't be pickled: create it where it is used, or pass credentials="
        )


@dataclass(frozen=True)
class Site:
    """A datacenter: a broker, or a cluster with several endpoints.

    ``Site("dc1", "amqps://user:secret@a,b:5673,c/vhost")``. Schemes: ``amqp``, ``amqps``, ``mqtt``,
    ``mqtts``; several hosts are separated by commas and tried in turn. A login is given once, before the first host; in
    user name, password and virtual host the characters ``/ ? # @ ,`` and blanks are percent-encoded (``@`` as ``%40``).
    An ambiguous URL is rejected, with an error that does not contain it. A URL has no options: settings are arguments.

    ``Site("dc1", "memory://dc1")`` is a broker in the memory of this process, for tests, demos and experiments: other
    processes can't reach it, and its content is lost when the process exits. All clients of the process that use the
    same name share one broker, which behaves like RabbitMQ, or like an MQTT broker with ``memory://dc1/mqtt``. Use
    :class:`reliamsg.testing.MemoryNetwork` for brokers with injected faults.

    The password is not contained in ``repr``, logs, errors or journals, nor in :func:`dataclasses.asdict`; a site with
    a password can't be pickled. :func:`dataclasses.replace` keeps the login.

    All durations are in seconds, all sizes in bytes.
    """

    name: str
    url: str = field(repr=False)
    """After construction, the URL without user and password."""
    tls: ssl.SSLContext | None = field(default=None, repr=False, kw_only=True, compare=False)
    """For ``amqps`` and ``mqtts``; the default is ``ssl.create_default_context()``."""
    credentials: Callable[[], Credentials] | None = field(
        default=None, repr=False, kw_only=True, compare=False
    )
    """Called for every connection, on an I/O thread of the site (MQTT sites have two). Overrides a login in the URL; if
    only the URL has a login, this is a function that returns it."""
    auth: Literal["password", "external"] = field(default="password", kw_only=True)
    """AMQP: log in with user name and password, or with the certificate that `tls` has loaded (SASL ``EXTERNAL``),
    without a login in the URL or `credentials`. Not used for MQTT: without a login, brokers can authenticate by
    certificate."""
    confirm_timeout: float = field(default=30.0, kw_only=True)
    """If the oldest batch is not confirmed within this time, the producer closes the connection and resends the batch.
    The time is doubled after each failure, up to eight times the original."""
    connect_timeout: float = field(default=10.0, kw_only=True)
    """Time limit for one attempt to connect to one endpoint: TCP, TLS and the protocol's handshake."""
    backoff_min: float = field(default=0.2, kw_only=True)
    backoff_max: float = field(default=10.0, kw_only=True)
    """Pause between rounds over the endpoints: exponential with jitter between these bounds, without end."""
    heartbeat: float = field(default=10.0, kw_only=True)
    """AMQP heartbeat and MQTT keepalive."""
    window_batches: int = field(default=256, kw_only=True)
    window_bytes: int = field(default=8 * 1024 * 1024, kw_only=True)
    """Limits for messages in flight, in batches and in bytes. At an MQTT 5 site, the broker's Receive Maximum may lower
    the number of batches."""
    prefetch: int = field(default=64, kw_only=True)
    """The maximum number of unacknowledged batches that a consumer accepts from this site (AMQP prefetch count, MQTT 5
    Receive Maximum)."""
    max_frame_bytes: int = field(default=16 * 1024 * 1024, kw_only=True)
    """The maximum size of a broker message that this client sends to this site. A larger batch is split; a larger
    message parks its stream at this site. Received messages are limited only by the protocol (64 MiB), so that
    consumers accept messages of producers with a higher limit."""
    declare: Literal["create", "passive", "none"] = field(default="create", kw_only=True)
    """AMQP: create exchange and queues, only check that they exist, or assume it. MQTT: with ``none`` a producer
    assumes that its named groups exist; otherwise it checks, but creates nothing."""
    queue_type: Literal["quorum", "classic"] = field(default="quorum", kw_only=True)
    """AMQP: the type of the group queues that this client creates."""
    mqtt_version: Literal["auto", "5", "3.1.1"] = field(default="auto", kw_only=True)
    """MQTT: ``auto`` tries version 5 and falls back to 3.1.1 if the broker refuses it."""
    scheme: Scheme = field(init=False)
    protocol: Protocol = field(init=False)
    """The protocol of the broker; an in-memory broker behaves accordingly."""
    endpoints: tuple[Endpoint, ...] = field(init=False)
    vhost: str = field(init=False)
    """AMQP virtual host; empty for MQTT and in-memory sites."""

    def __post_init__(self) -> None:
        check_name("site name", self.name)
        parsed = _parse_url(self.name, self.url)
        put = object.__setattr__
        put(self, "scheme", parsed.scheme)
        put(self, "protocol", parsed.protocol)
        put(self, "endpoints", parsed.endpoints)
        put(self, "vhost", parsed.vhost)
        # Remove the login from the URL, so that copies and representations of the fields contain no password.
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
        if self.tls is not None and not hasattr(self.tls, "wrap_bio"):  # without loading ssl, which is slow
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
        """The URL for messages: without user and password."""
        if self.scheme == "memory":
            return self.url
        hosts = ",".join(map(str, self.endpoints))
        return f"{self.scheme}://{hosts}" + (f"/{self.vhost}" if self.protocol == "amqp" else "")

    def login(self) -> Credentials | None:
        """User name and password for a connection; None if neither the URL nor `credentials` has a login."""
        return self.credentials() if self.credentials is not None else None

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context to use; None for a plain connection."""
        if not self.secure:
            return None
        import ssl  # on demand: loading it takes as long as half of the package

        return self.tls if self.tls is not None else ssl.create_default_context()

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self.shown_url!r})"


def check_sites(sites: Sequence[Site]) -> tuple[Site, ...]:
    """Return `sites` as a tuple, or raise :class:`ConfigError`: there must be at least one, with unique names."""
    if isinstance(sites, Site):
        raise ConfigError("sites must be a list of Site objects: for one site, [site]")
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
    """The path of the URL, in its shortest form."""
    vhost: str = ""
    login: Credentials | None = None


def _parse_url(name: str, url: str) -> _ParsedUrl:
    """Parse a broker URL. Errors do not contain the URL, because it may contain a password."""
    if not isinstance(url, str):
        raise ConfigError(f"site {name}: the URL must be a string, not {type(url).__name__}")
    scheme, sep, rest = url.partition("://")
    if sep and scheme == "memory":
        return _parse_memory_url(name, rest)
    if not sep or scheme not in _PORTS:
        raise ConfigError(
            f"site {name}: the URL must start with amqp://, amqps://, mqtt://, mqtts:// or memory://"
        )
    # urlsplit() does not support comma-separated hosts, and its results for unusual URLs depend on the version of
    # Python.
    authority, _, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    if _AMBIGUOUS_LOGIN.search(login) or "@" in path:
        raise ConfigError(
            f"site {name}: the URL is ambiguous: give a login once, before the first host, and percent-encode / ? # @ ,"
            " and blanks in user name, password and virtual host (@ as %40, / as %2F)"
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
            f"site {name}: an in-memory site is memory://NAME, or memory://NAME/mqtt for one that behaves like an MQTT"
            " broker; NAME consists of letters, digits and . _ ~ % -"
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
        raise ConfigError(f"site {name}: the host name contains characters that are equivalent to delimiters")
    return Endpoint(host, _PORTS[scheme] if port is None else port)


@dataclass(frozen=True)
class JournalExport:
    """The target of a client's journal, and the policy while the target is unavailable.

    ``JournalExport("/var/spool/journals")``, or with an fsspec URL, ``JournalExport("s3://bucket/prefix")`` (requires
    the extra ``remote`` and the package for the protocol). Several clients, also on several hosts, can share one
    target. Credentials in a URL are never shown. While a client is idle, it replaces one small file there about once a
    minute.
    """

    target: str | os.PathLike[str] = field(repr=False)
    interval: float = field(default=60.0, kw_only=True)
    """Seconds between two segments while there are new rows."""
    segment_rows: int = field(default=10_000, kw_only=True)
    """The maximum number of rows in a segment, which is cut without delay when they are available. 1 to 1,000,000."""
    max_backlog_rows: int = field(default=100_000, kw_only=True)
    """The maximum number of rows in the client's file that are not exported, at least 10 and twice `segment_rows`. At
    this limit `when_full` applies; rows about connections and about closing are written nevertheless."""
    when_full: Literal["block", "truncate"] = field(default="block", kw_only=True)
    """``"block"``: a producer accepts no messages (:class:`~reliamsg.errors.JournalFull` after its ``block_timeout``)
    and a consumer delivers none until the target accepts segments again. ``"truncate"``: the oldest rows are deleted,
    and the journal records which: the client continues, but audits will report missing evidence."""
    key: KeyRing | None = field(default=None, kw_only=True, repr=False)
    """The client's own key: ``KeyRing({"2026-a": secret}, sign_with="2026-a")``. All segments and heads are signed with
    it, so that an audit with the keys of all clients recognizes what others have written in this client's name."""

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
        check_keys(self.key, "journal: key")

    @property
    def shown_target(self) -> str:
        """The target for messages: without login and query."""
        return shown_target(self.target)

    def __repr__(self) -> str:
        return (
            f"JournalExport({self.shown_target!r}, interval={self.interval!r}, segment_rows={self.segment_rows!r},"
            f" max_backlog_rows={self.max_backlog_rows!r}, when_full={self.when_full!r}, key={self.key!r})"
        )


def journal_export(journal: str | os.PathLike[str] | JournalExport | None) -> JournalExport | None:
    """Convert a `journal=` argument to settings. Raises :class:`ConfigError`."""
    return journal if journal is None or isinstance(journal, JournalExport) else JournalExport(journal)


def is_remote(target: str | os.PathLike[str]) -> bool:
    """Whether a journal's target is a URL. Path objects are directories."""
    return isinstance(target, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)", target) is not None


def shown_target(target: str | os.PathLike[str]) -> str:
    """A journal's target for messages: a URL without login, query and fragment."""
    text = os.fspath(target)
    if not is_remote(target):
        return text
    parts = []
    for part in text.split("::"):
        scheme, sep, rest = part.partition("://")
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
        # A password may contain a slash that should have been escaped: nothing before the last @ is shown.
        parts.append(scheme + sep + rest.rpartition("@")[2])
    return "::".join(parts)
