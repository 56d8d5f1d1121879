"""Configuration files: sites, producers and consumers in TOML.

A file has one table for each site, producer and consumer, and the table's name is theirs: ``[sites.dc1]``,
``[producers.till]``, ``[consumers.billing]``. So the processes of a service, its command line and ``reliamsg doctor``
share one file, and a site is described once. Keys have the names of the constructors' arguments; what can't be written
in a file, such as a callback, is an argument of ``from_config()``.

The tables below are the schema: they reject unknown keys, wrong types and values out of range, and editors get a JSON
Schema that is generated from them (:mod:`reliamsg.configschema`). Defaults are those of the
constructors, which also check what concerns several settings. Errors contain no secrets.
"""

from __future__ import annotations

import difflib
import os
import re
import ssl
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from reliamsg.arguments import MOST_BYTES, MOST_SECONDS
from reliamsg.config import Credentials, JournalExport, Site, check_name, is_remote
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing, check_private, read_key_ring
from reliamsg.policy import Quorum, confirm_policy
from reliamsg.wire.limits import MAX_BATCH_MESSAGES

__all__ = [
    "ConfigFile", "ConsumerTable", "JournalTable", "ProducerTable", "Secret", "SiteTable", "Tables", "TlsTable",
    "read_config", "tls_context",
]  # fmt: skip

VARIABLE = "RELIAMSG_CONFIG"
"""The environment variable that names the file where no path is given."""
MAX_SECRET_BYTES = 64 * 1024
UNLIMITED: Literal["unlimited"] = "unlimited"
"""Stands for the None of a setting: TOML has none."""

T = TypeVar("T", bound=Struct)

Seconds = Annotated[float, Meta(gt=0, le=MOST_SECONDS)]
FilePath = Annotated[str, Meta(min_length=1)]
"""Relative to the configuration file."""
Count = Annotated[int, Meta(ge=1, le=MOST_BYTES)]


class Secret(Struct, forbid_unknown_fields=True, kw_only=True):
    """A secret that is not in the file itself."""

    env: (
        Annotated[str, Meta(min_length=1, description="The environment variable that has it.")] | UnsetType
    ) = UNSET
    file: (
        Annotated[
            str,
            Meta(
                min_length=1, description="The file that contains it. A line break at its end does not count."
            ),
        ]
        | UnsetType
    ) = UNSET


class TlsTable(Struct, forbid_unknown_fields=True, kw_only=True):
    """The files of ``Site(tls=…)``."""

    cafile: (
        Annotated[str, Meta(min_length=1, description="Certificate authorities, in PEM format.")] | UnsetType
    ) = UNSET
    certfile: (
        Annotated[str, Meta(min_length=1, description="A client certificate, in PEM format.")] | UnsetType
    ) = UNSET
    keyfile: Annotated[str, Meta(min_length=1, description="Its private key.")] | UnsetType = UNSET


class SiteTable(Struct, forbid_unknown_fields=True, kw_only=True):
    """A site: the arguments of ``Site``."""

    url: str | Secret
    user: str | UnsetType = UNSET
    password: str | Secret | UnsetType = UNSET
    tls: TlsTable | UnsetType = UNSET
    auth: Literal["password", "external"] | UnsetType = UNSET
    confirm_timeout: Seconds | UnsetType = UNSET
    connect_timeout: Seconds | UnsetType = UNSET
    backoff_min: Seconds | UnsetType = UNSET
    backoff_max: Seconds | UnsetType = UNSET
    heartbeat: Seconds | UnsetType = UNSET
    window_batches: Count | UnsetType = UNSET
    window_bytes: Count | UnsetType = UNSET
    prefetch: Annotated[int, Meta(ge=2, le=65535)] | UnsetType = UNSET
    max_frame_bytes: Annotated[int, Meta(ge=1024, le=MOST_BYTES)] | UnsetType = UNSET
    declare: Literal["create", "passive", "none"] | UnsetType = UNSET
    queue_type: Literal["quorum", "classic"] | UnsetType = UNSET
    mqtt_version: Literal["auto", "5", "3.1.1"] | UnsetType = UNSET

    def __repr__(self) -> str:
        return "<SiteTable>"  # without the password


class JournalTable(Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of ``JournalExport``."""

    target: Annotated[str, Meta(min_length=1)]
    interval: Seconds | UnsetType = UNSET
    segment_rows: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    max_backlog_rows: Annotated[int, Meta(ge=10, le=2**53)] | UnsetType = UNSET
    when_full: Literal["block", "truncate"] | UnsetType = UNSET
    key: FilePath | UnsetType = UNSET


class _ClientTable(Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings of producers and consumers."""

    sites: Annotated[list[str], Meta(min_length=1)] | UnsetType = UNSET
    keys: FilePath | UnsetType = UNSET
    journal: Annotated[str, Meta(min_length=1)] | JournalTable | UnsetType = UNSET


class ProducerTable(_ClientTable, forbid_unknown_fields=True, kw_only=True):
    """A producer: the arguments of ``Producer``, whose id is the table's name."""

    outbox: FilePath
    groups: dict[str, list[str]] | UnsetType = UNSET
    confirm: Literal["all", "any", "all-active"] | Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    release: Literal["confirmed", "consumed"] | UnsetType = UNSET
    wire: Literal["batch", "plain"] | UnsetType = UNSET
    compression: Literal["zstd"] | UnsetType = UNSET
    max_bytes: Annotated[int, Meta(ge=1024, le=MOST_BYTES)] | UnsetType = UNSET
    retain_seconds: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | UnsetType = UNSET
    retain_bytes: Annotated[int, Meta(ge=0, le=MOST_BYTES)] | UnsetType = UNSET
    when_full: Literal["block", "raise"] | UnsetType = UNSET
    block_timeout: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | UnsetType = UNSET
    max_batch_messages: Annotated[int, Meta(ge=1, le=MAX_BATCH_MESSAGES)] | UnsetType = UNSET
    max_batch_bytes: Count | UnsetType = UNSET
    hello_timeout: Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | UnsetType = UNSET
    status_interval: Annotated[float, Meta(ge=0.05, le=MOST_SECONDS)] | UnsetType = UNSET
    max_repair_bytes_per_second: (
        Literal["unlimited"] | Annotated[float, Meta(ge=1024, le=MOST_BYTES)] | UnsetType
    ) = UNSET


class ConsumerTable(_ClientTable, forbid_unknown_fields=True, kw_only=True):
    """A consumer: the arguments of ``Consumer``, whose group is the table's name."""

    topics: Annotated[list[str], Meta(min_length=1)]
    inbox: FilePath
    begin: Literal["earliest", "latest"] | UnsetType = UNSET
    gap_timeout: Seconds | UnsetType = UNSET
    on_gap: Literal["hold", "raise", "skip"] | UnsetType = UNSET
    max_deliveries: Count | UnsetType = UNSET
    max_unacknowledged: Count | UnsetType = UNSET
    max_inbox_bytes: Count | UnsetType = UNSET
    max_streams: Count | UnsetType = UNSET
    max_known_streams: Count | UnsetType = UNSET
    max_quarantine_bytes: Count | UnsetType = UNSET
    repair_delay: Seconds | UnsetType = UNSET
    repair_timeout: Seconds | UnsetType = UNSET
    standby: bool | UnsetType = UNSET
    takeover_timeout: Seconds | UnsetType = UNSET
    on_dead_letter: Literal["continue", "halt"] | UnsetType = UNSET
    unsequenced: Literal["refuse", "deliver"] | UnsetType = UNSET


class Tables(Struct, forbid_unknown_fields=True, kw_only=True):
    """A configuration file of reliamsg."""

    sites: dict[str, SiteTable] | UnsetType = UNSET
    producers: dict[str, ProducerTable] | UnsetType = UNSET
    consumers: dict[str, ConsumerTable] | UnsetType = UNSET


_KINDS: dict[str, type[Struct]] = {
    "sites": SiteTable,
    "producers": ProducerTable,
    "consumers": ConsumerTable,
}
_NAMES = {"sites": "site name", "producers": "producer id", "consumers": "group"}


class ConfigFile:
    """A configuration file whose tables are valid. The files and variables that it names are read when they are used.

    All methods raise :class:`ConfigError`, which names the file and the key.
    """

    def __init__(self, path: Path, tables: Mapping[str, Mapping[str, Struct]]) -> None:
        self.path = path
        self._sites: Mapping[str, Any] = tables["sites"]
        self._clients: Mapping[str, Mapping[str, Any]] = tables

    @property
    def site_names(self) -> tuple[str, ...]:
        """The names of all sites, in the order of the file."""
        return tuple(self._sites)

    @property
    def producer_names(self) -> tuple[str, ...]:
        """The ids of all producers."""
        return tuple(self._clients["producers"])

    @property
    def consumer_names(self) -> tuple[str, ...]:
        """The groups of all consumers."""
        return tuple(self._clients["consumers"])

    def producer(self, name: str | None = None) -> dict[str, Any]:
        """The arguments of ``Producer`` for ``[producers.NAME]``; without a name for the only producer."""
        name, found = self._client("producers", name)
        confirm, rate = found.get("confirm"), found.get("max_repair_bytes_per_second")
        if isinstance(confirm, int):
            try:
                found["confirm"] = confirm_policy(Quorum(confirm), len(found["sites"]))
            except ConfigError as error:
                raise self._error(f"producers.{name}.confirm: {error}") from None
        if rate == UNLIMITED:
            found["max_repair_bytes_per_second"] = None
        return {"producer_id": name, **found}

    def consumer(self, name: str | None = None) -> dict[str, Any]:
        """The arguments of ``Consumer`` for ``[consumers.NAME]``; without a name for the only consumer."""
        name, found = self._client("consumers", name)
        return {"group": name, **found}

    def site(self, name: str) -> Site:
        """The site ``[sites.NAME]``."""
        if name not in self._sites:
            raise self._error(f"there is no [sites.{name}]{_nearest(name, self._sites)}")
        table: SiteTable = self._sites[name]
        at = f"sites.{name}"
        options = _given(table, without={"url", "user", "password", "tls"})
        url = table.url if isinstance(table.url, str) else self._read(f"{at}.url", table.url)
        if table.tls is not UNSET:
            options["tls"] = self._tls(f"{at}.tls", table.tls)
        if table.password is not UNSET and table.user is UNSET:
            raise self._error(f"{at}.password: it needs {at}.user")
        if table.user is not UNSET:
            if "@" in url:
                raise self._error(f"{at}.user: the URL has a login already")
            options["credentials"] = self._credentials(f"{at}.password", table.user, table.password)
        try:
            return Site(name, url, **options)
        except ConfigError as error:
            raise self._error(f"[sites.{name}]: {error}") from None

    def outbox(self, name: str) -> Path:
        """The file of a producer."""
        return self._path(self._clients["producers"][name].outbox)

    def inbox(self, name: str) -> Path:
        """The file of a consumer."""
        return self._path(self._clients["consumers"][name].inbox)

    def secret_files(self) -> dict[str, Path]:
        """The files of passwords and keys, by the key that names them."""
        found = {}
        for name, site in self._sites.items():
            for key in ("url", "password"):
                secret = getattr(site, key)
                if isinstance(secret, Secret) and secret.file is not UNSET:
                    found[f"sites.{name}.{key}"] = self._path(secret.file)
            if site.tls is not UNSET and site.tls.keyfile is not UNSET:
                found[f"sites.{name}.tls.keyfile"] = self._path(site.tls.keyfile)
        return found

    def check(self) -> None:
        """Build all sites and read all files that the tables name, without opening a client."""
        for name in self._sites:
            self.site(name)
        for name in self.producer_names:
            self.producer(name)
        for name in self.consumer_names:
            self.consumer(name)

    def _client(self, kind: str, name: str | None) -> tuple[str, dict[str, Any]]:
        tables, one = self._clients[kind], kind.removesuffix("s")
        if name is None and len(tables) != 1:
            several = f"several {kind}: name one of {', '.join(tables)}" if tables else f"no [{kind}.NAME]"
            raise self._error(f"the file has {several}")
        name = next(iter(tables)) if name is None else name
        if name not in tables:
            raise self._error(f"there is no [{kind}.{name}]{_nearest(name, tables)}")
        table, at = tables[name], f"{kind}.{name}"
        found = _given(table, without={"sites", "keys", "journal"})
        names = self.site_names if table.sites is UNSET else table.sites
        if not names:
            raise self._error(f"[{at}]: a {one} needs a site, and the file has no [sites.NAME]")
        for site in names:
            if site not in self._sites:
                raise self._error(f"{at}.sites: there is no [sites.{site}]{_nearest(site, self._sites)}")
        found["sites"] = tuple(self.site(site) for site in names)
        file = "outbox" if kind == "producers" else "inbox"
        found[file] = str(self._path(found[file]))
        if table.keys is not UNSET:
            found["keys"] = self._key_ring(f"{at}.keys", table.keys)
        if table.journal is not UNSET:
            found["journal"] = self._journal(f"{at}.journal", table.journal)
        return name, found

    def _journal(self, at: str, table: str | JournalTable) -> JournalExport:
        target, options = table, {}
        if isinstance(table, JournalTable):
            target, options = table.target, _given(table, without={"target", "key"})
            if table.key is not UNSET:
                options["key"] = self._key_ring(f"{at}.key", table.key)
        assert isinstance(target, str)
        try:
            return JournalExport(target if is_remote(target) else str(self._path(target)), **options)
        except ConfigError as error:
            raise self._error(f"{at}: {error}") from None

    def _tls(self, at: str, table: TlsTable) -> ssl.SSLContext:
        files = {name: str(self._path(file)) for name, file in _given(table).items()}
        if "keyfile" in files and "certfile" not in files:
            raise self._error(f"{at}.keyfile: it needs {at}.certfile")
        try:
            return tls_context(files.get("cafile"), files.get("certfile"), files.get("keyfile"))
        except ConfigError as error:
            raise self._error(f"{at}: {error}") from None

    def _credentials(self, at: str, user: str, password: str | Secret | UnsetType) -> _Login:
        if isinstance(password, Secret):
            self._read(at, password)  # so that a mistake is noticed now
            secret = password
            return _Login(lambda: (user, self._read(at, secret)))
        known = "" if isinstance(password, UnsetType) else password
        return _Login(lambda: (user, known))

    def _read(self, at: str, secret: Secret) -> str:
        """A secret, as it is now."""
        if (secret.env is UNSET) == (secret.file is UNSET):
            raise self._error(f"{at}: give either env or file")
        if isinstance(secret.env, str):
            if secret.env not in os.environ:
                raise self._error(f"{at}: the environment variable {secret.env} is not set")
            return os.environ[secret.env]
        assert isinstance(secret.file, str)
        path = self._path(secret.file)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_SECRET_BYTES + 1)
            if len(data) > MAX_SECRET_BYTES:
                raise self._error(f"{at}: {path}: more than {MAX_SECRET_BYTES} bytes")
            text = data.decode()
        except OSError as error:
            raise self._error(f"{at}: {path}: {error.strerror}") from None
        except UnicodeDecodeError:  # whose message contains the content
            raise self._error(f"{at}: {path}: not UTF-8 text") from None
        return text.removesuffix("\n").removesuffix("\r")

    def _key_ring(self, at: str, file: str) -> KeyRing:
        try:
            return read_key_ring(self._path(file))
        except ConfigError as error:
            raise self._error(f"{at}: {error}") from None

    def _path(self, text: str) -> Path:
        return self.path.parent / text

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.path}: {text}")

    def __repr__(self) -> str:
        return f"<ConfigFile {str(self.path)!r}>"


class _Login:
    """``Site(credentials=…)``, called for every connection."""

    def __init__(self, ask: Callable[[], Credentials]) -> None:
        self._ask = ask

    def __call__(self) -> Credentials:
        return self._ask()

    def __repr__(self) -> str:
        return "<login>"


def read_config(path: str | os.PathLike[str] | None = None) -> ConfigFile:
    """Read a configuration file, by default the one that ``RELIAMSG_CONFIG`` names, and check its tables.

    A file that contains a password must belong to this user or root, and others must have no access, as with files of
    keys. Raises :class:`ConfigError`.
    """
    if path is None:
        path = os.environ.get(VARIABLE, "")
        if not path:
            raise ConfigError(f"no configuration file: give its path, or set {VARIABLE}")
    file = Path(path)
    try:
        with file.open("rb") as opened:
            data = tomllib.load(opened)
            if _has_password(data):
                _check_mode(file, opened.fileno())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None
    tables: dict[str, dict[str, Struct]] = {kind: {} for kind in _KINDS}
    for key in data:
        if key not in _KINDS:
            raise ConfigError(f"{file}: {key}: unknown key{_nearest(key, _KINDS)}")
    for kind, table in _KINDS.items():
        given = data.get(kind, {})
        if not isinstance(given, dict):
            raise ConfigError(f"{file}: {kind}: expected tables: [{kind}.NAME]")
        for name, values in given.items():
            try:
                check_name(_NAMES[kind], name)
            except ConfigError as error:
                raise ConfigError(f"{file}: [{kind}.{name}]: {error}") from None
            tables[kind][name] = _converted(file, f"{kind}.{name}", values, table)
    return ConfigFile(file, tables)


def tls_context(cafile: str | None, certfile: str | None, keyfile: str | None) -> ssl.SSLContext:
    """A context that verifies brokers, with these authorities instead of the system's, and a client certificate.

    Raises :class:`ConfigError` for files that can't be used."""
    try:
        context = ssl.create_default_context(cafile=cafile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{cafile}: no certificates in PEM format: {error}") from None
    if certfile is not None:
        try:
            # With a password, OpenSSL does not ask for one on the terminal.
            context.load_cert_chain(certfile, keyfile, password="")
        except (OSError, ssl.SSLError, ValueError) as error:
            files = certfile if keyfile is None else f"{certfile}, {keyfile}"
            raise ConfigError(
                f"{files}: not a certificate and an unencrypted key in PEM format: {error}"
            ) from None
    return context


def _given(table: Struct, without: Iterable[str] = ()) -> dict[str, Any]:
    """The settings that a table has."""
    values = {name: getattr(table, name) for name in table.__struct_fields__ if name not in without}
    return {name: value for name, value in values.items() if value is not UNSET}


def _has_password(data: Mapping[str, Any]) -> bool:
    sites = data.get("sites")
    tables = sites.values() if isinstance(sites, dict) else ()
    return any(
        isinstance(table, dict)
        and (
            isinstance(table.get("password"), str)
            or (isinstance(url := table.get("url"), str) and "@" in url)
        )
        for table in tables
    )


def _check_mode(file: Path, descriptor: int) -> None:
    try:
        check_private(descriptor)
    except ConfigError:
        raise ConfigError(
            f"{file}: it contains a password, so it must belong to you or root, and others must have no access:"
            ' chmod 600 (640 lets its group read it), or use password = { file = "…" } or { env = "…" }'
        ) from None


_AT = re.compile(r"^(?P<text>.*?)(?: - at `\$(?P<at>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


def _converted(file: Path, at: str, values: object, kind: type[T]) -> T:
    """A table as its structure. Errors of msgspec contain no values, except those in place of a fixed word."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        found = _AT.match(str(error))
        assert found is not None
        text, inside = found["text"], found["at"] or ""
    where = at + inside
    unknown = _UNKNOWN.fullmatch(text)
    hint, known = _expected(kind, inside)
    if unknown is not None:
        raise ConfigError(f"{file}: {where}.{unknown[1]}: unknown key{_nearest(unknown[1], known)}")
    if text.startswith("Object missing required field"):
        raise ConfigError(f"{file}: [{where}]: {text.rsplit(' ', 1)[1].strip('`')} is missing")
    if text.startswith("Invalid enum value"):
        text = f"choose {' or '.join(map(repr, hint))}"
    text = text.replace("`", "").replace("Expected", "expected")
    raise ConfigError(f"{file}: {where}: {text}")


def _expected(kind: type[Struct], inside: str) -> tuple[list[str], list[str]]:
    """The fixed words of a key, and the keys of a table, that `inside` leads to, such as ``.journal.when_full``."""
    hint: Any = kind
    for name in re.findall(r"\.(\w+)", inside):
        tables = [each for each in _members(hint) if isinstance(each, type) and issubclass(each, Struct)]
        hint = get_type_hints(tables[0])[name]
    words = [word for each in _members(hint) for word in get_args(each) if isinstance(word, str)]
    tables = [each for each in _members(hint) if isinstance(each, type) and issubclass(each, Struct)]
    return words, list(tables[0].__struct_fields__) if tables else []


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the type itself."""
    return (
        (hint,)
        if isinstance(hint, type) or not hasattr(hint, "__args__") or _is_literal(hint)
        else get_args(hint)
    )


def _is_literal(hint: Any) -> bool:
    return getattr(hint, "__origin__", None) is Literal


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    found = difflib.get_close_matches(name, known, 1, 0.5)
    if found:
        return f"; did you mean {found[0]!r}?"
    return f" (known: {', '.join(known)})" if known else ""
