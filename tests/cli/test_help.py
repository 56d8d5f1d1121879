"""The sections of ``reliamsg --help``."""

from __future__ import annotations

import re

import click

from reliamsg.cli.app import root
from reliamsg.cli.sections import SectionedGroup
from reliamsg.cli.status import Status
from tests.cli.commands import refused, reliamsg_here, succeeded

SECTIONS = {
    "Use": ["pub", "sub"],
    "Operate": ["config", "doctor", "plan", "group", "outbox", "inbox", "journal", "monitoring", "top"],
    "Prove": ["audit", "demo", "lab"],
}


def listed(text: str) -> dict[str, list[str]]:
    """The commands in each section of a help text."""
    found = {}
    for title, body in re.findall(r"^(\w+):\n((?:  \S.*\n)+)", f"{text}\n", re.MULTILINE):
        found[title] = [line.split()[0] for line in body.splitlines()]
    return {title: names for title, names in found.items() if title != "Options"}


def test_commands_are_listed_by_their_use() -> None:
    assert listed(succeeded(reliamsg_here("--help")).decode()) == SECTIONS


def test_every_command_is_in_a_section() -> None:
    assert sorted(root.commands) == sorted(name for names in SECTIONS.values() for name in names)


def test_a_command_without_a_section_is_listed_last() -> None:
    group = SectionedGroup("tool")
    group.add_section("Use", [click.Command("open", help="Open it.")])
    group.add_command(click.Command("close", help="Close it."))
    group.add_command(click.Command("secret", hidden=True))
    text = group.get_help(click.Context(group))
    assert listed(text) == {"Use": ["open"], "Commands": ["close"]}
    assert "Close it." in text


def test_simulate_and_chaos_are_commands_of_the_laboratory_only() -> None:
    assert listed(succeeded(reliamsg_here("lab", "--help")).decode()) == {"Commands": ["chaos", "simulate"]}
    for command in ("chaos", "simulate"):
        refused(reliamsg_here(command, "--help"), Status.USAGE, command)
