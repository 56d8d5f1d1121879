"""``reliamsg config``: checks configuration files, and prints their schema."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import click

from reliamsg.cli.options import json_option
from reliamsg.cli.status import SEE_EXIT_CODES, Status
from reliamsg.configfile import ConfigFile, read_config
from reliamsg.errors import ConfigError
from reliamsg.terminal import say, say_json, say_text

__all__ = ["config"]


@click.group()
def config() -> None:
    """Check configuration files, and print their schema."""


@config.command(epilog=SEE_EXIT_CODES)
@click.argument("file", metavar="[FILE]", required=False, envvar="RELIAMSG_CONFIG")
@json_option
def check(file: str | None, as_json: bool) -> int:
    """Check a configuration file, by default the one that RELIAMSG_CONFIG names, without connecting.

    Reads the files and environment variables that it names, too, but opens no outbox or inbox. Exits with 64 at the
    first error. 'reliamsg doctor' also checks sites and files.
    """
    found = read_config(file)
    found.check()
    _check_clients(found)
    names = {
        "sites": list(found.site_names),
        "producers": list(found.producer_names),
        "consumers": list(found.consumer_names),
    }
    if as_json:
        say_json({"file": str(found.path), **names})
    else:
        say(f"{found.path}: valid")
        say(*[f"  {kind}: {', '.join(listed)}" for kind, listed in names.items() if listed])
    return Status.OK


@config.command(epilog=SEE_EXIT_CODES)
def schema() -> int:
    """Print the JSON Schema of configuration files, for editors."""
    from reliamsg.configschema import schema as file_schema

    say_text(json.dumps(file_schema(), indent=2))
    return Status.OK


def _check_clients(file: ConfigFile) -> None:
    """What constructors check beyond single values."""
    from reliamsg.consumer.api import check_signing, check_topics
    from reliamsg.producer.settings import Settings, check_groups

    def settings(found: dict[str, Any]) -> Settings:
        return Settings(
            **{field.name: found[field.name] for field in fields(Settings) if field.name in found}
        )

    at = ""
    try:
        for name in file.producer_names:
            at = f"producers.{name}"
            producer = file.producer(name)
            settings(producer).checked(producer["sites"])
            check_groups(producer.get("groups", {}))
        for name in file.consumer_names:
            at = f"consumers.{name}"
            consumer = file.consumer(name)
            check_topics(consumer["topics"])
            check_signing(consumer.get("keys"), consumer.get("unsequenced", "refuse"))
    except ConfigError as error:
        raise ConfigError(f"{file.path}: [{at}]: {error}") from None
