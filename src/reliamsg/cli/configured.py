"""``--config``: commands whose options have their defaults in a configuration file.

What applies, first: an option on the command line, its environment variable, the file, the option's default. Click
itself has this order, so the file only replaces defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from reliamsg.configfile import ConfigFile, read_config

__all__ = [
    "Chosen", "ConfiguredCommand", "chosen_settings", "config_option", "of_consumer", "of_producer", "only_sites",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])

Chosen = Mapping[str, Any]
"""The values of a command's parameters as far as they are given, not converted; arguments as well."""

_MORE = "reliamsg.cli.configured"


class ConfiguredCommand(click.Command):
    """A command with :func:`config_option`.

    `defaults` takes from the file what the command needs, by the names of the command's parameters. The rest of what it
    returns are settings without an option: :func:`chosen_settings`.
    """

    defaults: Callable[[ConfigFile, Chosen], dict[str, Any]]

    def __init__(
        self, *args: Any, defaults: Callable[[ConfigFile, Chosen], dict[str, Any]], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.defaults = defaults

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, once the file that they name has been read."""
        if not ctx.resilient_parsing and not set(ctx.help_option_names) & set(args):
            given = self._given(ctx, args)
            if given.get("config"):
                found = self.defaults(read_config(given["config"]), given)
                names = {param.name for param in self.params}
                ctx.default_map = {name: found[name] for name in names & found.keys() if name is not None}
                ctx.meta[_MORE] = {name: found[name] for name in found.keys() - names}
        return super().parse_args(ctx, args)

    def _given(self, ctx: click.Context, args: list[str]) -> dict[str, Any]:
        given = dict(self.make_parser(ctx).parse_args(list(args))[0])
        for param in self.params:
            if param.name is not None and not isinstance(given.get(param.name), (str, int, list, tuple)):
                given[param.name] = param.value_from_envvar(ctx)
        return given


def of_producer(file: ConfigFile, name: str | None, elsewhere: bool) -> dict[str, Any]:
    """The arguments of the producer `name`, or of the only one; with `elsewhere`, only sites if the file has none."""
    known = bool(file.producer_names) if name is None else name in file.producer_names
    return only_sites(file) if elsewhere and not known else file.producer(name)


def of_consumer(file: ConfigFile, name: str | None, elsewhere: bool) -> dict[str, Any]:
    """The same for a consumer, by its group."""
    known = bool(file.consumer_names) if name is None else name in file.consumer_names
    return only_sites(file) if elsewhere and not known else file.consumer(name)


def only_sites(file: ConfigFile) -> dict[str, Any]:
    """All sites of the file."""
    return {"sites": tuple(file.site(name) for name in file.site_names)}


def config_option(command: F) -> F:
    """``--config``."""
    return click.option(
        "--config",
        envvar="RELIAMSG_CONFIG",
        expose_value=False,
        metavar="FILE",
        help="A configuration file with sites and settings, which options override.",
    )(command)


def chosen_settings() -> dict[str, Any]:
    """Settings of the file for which the running command has no option."""
    found: dict[str, Any] = click.get_current_context().meta.get(_MORE, {})
    return found
