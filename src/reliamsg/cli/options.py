"""Options that are shared by several commands."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import click

from reliamsg.config import JournalExport, Site, check_name, check_sites
from reliamsg.configfile import tls_context
from reliamsg.errors import ConfigError
from reliamsg.keys import KeyRing, read_key_ring
from reliamsg.policy import Confirm, Quorum

__all__ = [
    "ConfirmType", "NameType", "SeedsType", "SiteGiven", "SiteType", "Tls", "build_sites", "journal_key_option",
    "journal_keys_options", "journal_option", "json_option", "keys_option", "optional_site_options",
    "site_options", "timeout_option",
]  # fmt: skip

IN_MEMORY = "other processes can't reach an in-memory site; use a broker"

F = TypeVar("F", bound=Callable[..., Any])


class NameType(click.ParamType[str]):
    """The name of a topic, producer or group."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_name(self.name, value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class SeedsType(click.ParamType[range]):
    """``A:B``: from A up to, but not including, B."""

    name = "A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        found = re.fullmatch(r"(\d{1,12}):(\d{1,12})", str(value))
        if found is None or int(found[1]) >= int(found[2]):
            self.fail(f"{value!r}: expected two numbers, the second one higher, such as 0:2000", param, ctx)
        return range(int(found[1]), int(found[2]))


SiteGiven = tuple[str, str] | Site
"""A site of ``--site``, or of a configuration file."""


class SiteType(click.ParamType[SiteGiven]):
    """``NAME=URL``. Errors do not contain the value, because it may contain a password."""

    name = "NAME=URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> SiteGiven:
        if isinstance(value, (tuple, Site)):
            return value
        name, sep, url = str(value).partition("=")
        if not sep or "://" in name:
            self.fail("a site has the form NAME=URL, such as dc1=amqp://localhost:5672", param, ctx)
        try:
            site = Site(name, url)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if site.scheme == "memory":
            self.fail(f"site {name}: {IN_MEMORY}", param, ctx)
        return name, url


class ConfirmType(click.ParamType[Confirm]):
    """The sites that must confirm: a word or a number of sites."""

    name = "all|any|all-active|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Confirm:
        if isinstance(value, Quorum) or value in ("all", "any", "all-active"):
            return value  # type: ignore[no-any-return]  # a value of Confirm
        if isinstance(value, str) and value.isascii() and value.isdigit() and int(value) > 0:
            return Quorum(int(value))
        return self.fail(f"{value!r}: choose all, any, all-active or a number of sites", param, ctx)


class KeysType(click.ParamType[KeyRing]):
    """A file of keys. Errors contain nothing of the file except ids."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> KeyRing:
        if isinstance(value, KeyRing):
            return value
        try:
            return read_key_ring(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def keys_option(command: F) -> F:
    """``--keys``; the command gets a :class:`KeyRing` or None as `keys`."""
    return click.option(
        "--keys",
        type=KeysType(),
        help="A file of keys, one per line: ID SECRET, in hexadecimal. Signs with the first and trusts all. The file"
        " must belong to you or root, with mode 600 or 640.",
    )(command)


@dataclass(frozen=True)
class Tls:
    """The options for TLS and for authentication by certificate."""

    cafile: str | None
    certfile: str | None
    keyfile: str | None
    external: bool


def site_options(command: F) -> F:
    """``--site`` and the options for TLS; the command gets them as `site` and `tls` for :func:`build_sites`."""
    return _site_options(command, required=True)


def optional_site_options(command: F) -> F:
    """The same for a command that can do without sites."""
    return _site_options(command, required=False)


def _site_options(command: F, required: bool) -> F:
    @functools.wraps(command)
    def gathered(
        *args: Any, cafile: str | None, certfile: str | None, keyfile: str | None, auth: str, **others: Any
    ) -> Any:
        return command(*args, tls=Tls(cafile, certfile, keyfile, auth == "external"), **others)

    file = click.Path(exists=True, dir_okay=False)
    for option in (
        click.option(
            "--auth",
            type=click.Choice(("password", "external")),
            default="password",
            show_default=True,
            help="Authentication at amqps:// sites; external: with the certificate of --certfile (SASL EXTERNAL).",
        ),
        click.option(
            "--keyfile", type=file, help="The private key of --certfile, in PEM format and not encrypted."
        ),
        click.option(
            "--certfile",
            type=file,
            help="A client certificate for amqps:// and mqtts:// sites, as a PEM file with its intermediate"
            " certificates; it may also contain the key.",
        ),
        click.option(
            "--cafile",
            type=file,
            help="Certificate authorities for amqps:// and mqtts:// sites, as a PEM file; the default is the system's.",
        ),
        click.option(
            "--site",
            type=SiteType(),
            multiple=True,
            required=required,
            envvar="RELIAMSG_SITES",
            help="A site, as NAME=URL: amqp, amqps, mqtt or mqtts; several hosts are separated by commas. Can be"
            " repeated.",
        ),
    ):
        option(gathered)
    return cast(F, gathered)


def build_sites(given: Sequence[SiteGiven], tls: Tls) -> tuple[Site, ...]:
    """The sites of ``--site`` or of a configuration file, with the options for TLS.

    Raises :class:`~reliamsg.errors.ConfigError` for duplicate names and unusable files.
    """
    if tls.keyfile is not None and tls.certfile is None:
        raise ConfigError("--keyfile needs --certfile")
    if tls.external and tls.certfile is None:
        raise ConfigError("--auth external needs --certfile")
    context = None
    if tls.cafile is not None or tls.certfile is not None:
        context = tls_context(tls.cafile, tls.certfile, tls.keyfile)
    sites = []
    for one in given:
        site = one if isinstance(one, Site) else Site(*one)
        if site.scheme == "memory":
            raise ConfigError(f"site {site.name}: {IN_MEMORY}")
        if context is not None and site.secure:
            external = tls.external and site.scheme == "amqps"
            site = replace(site, tls=context, auth="external" if external else site.auth)
        sites.append(site)
    return check_sites(sites)


class JournalType(click.ParamType[JournalExport]):
    """A directory or fsspec URL."""

    name = "TARGET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> JournalExport:
        return value if isinstance(value, JournalExport) else JournalExport(value)


def journal_option(command: F) -> F:
    """``--journal`` and ``--journal-key``; the command gets them as `journal`."""

    @functools.wraps(command)
    def gathered(
        *args: Any, journal: JournalExport | None, journal_key: KeyRing | None, **others: Any
    ) -> Any:
        if journal is None and journal_key is not None:
            raise ConfigError("--journal-key needs --journal")
        if journal is not None and journal_key is not None:
            journal = replace(journal, key=journal_key)
        return command(*args, journal=journal, **others)

    with_target = click.option(
        "--journal",
        type=JournalType(),
        help="Export the journal to this directory or fsspec URL, for an audit; by default it stays in the file.",
    )(gathered)
    return cast(F, journal_key_option(with_target))


def journal_key_option(command: F) -> F:
    """``--journal-key``; the command gets a :class:`KeyRing` or None as `journal_key`."""
    return click.option(
        "--journal-key",
        type=KeysType(),
        help="Sign the exported journal with the client's own key: the first in this file, which has the same form as"
        " that of --keys.",
    )(command)


def journal_keys_options(command: F) -> F:
    """``--journal-keys`` and ``--unsigned-before``; the command gets them as they are, for
    :func:`~reliamsg.trust.make_trust`."""
    before = click.option(
        "--unsigned-before",
        multiple=True,
        metavar="ROLE/NAME@SEGMENT",
        help="With --journal-keys, accept unsigned segments of a client (producer/NAME or group/NAME) up to this one."
        " Can be repeated.",
    )(command)
    return click.option(
        "--journal-keys",
        metavar="FILE",
        help="The keys of all clients, one per line: producer/NAME ID SECRET or group/NAME ID SECRET. Segments and"
        " heads that their client has not signed count as damaged.",
    )(before)


def json_option(command: F) -> F:
    """``--json``; the command gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")(command)


def timeout_option(default: float | None, text: str) -> Callable[[F], F]:
    """``--timeout`` in seconds."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=text,
    )
