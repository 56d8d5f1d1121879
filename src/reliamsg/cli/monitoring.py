"""``reliamsg monitoring``: prints the alerts and the dashboard that the package contains."""

from __future__ import annotations

from importlib import resources

import click

from reliamsg.cli.status import SEE_EXIT_CODES
from reliamsg.terminal import say_text

__all__ = ["monitoring"]


@click.group(epilog=SEE_EXIT_CODES)
def monitoring() -> None:
    """Print alerts for Prometheus, and a dashboard for Grafana."""


@monitoring.command(epilog=SEE_EXIT_CODES)
def alerts() -> None:
    """Print alerting rules for Prometheus, as YAML.

    Name the file in rule_files of prometheus.yml. `promtool check rules` checks it. docs/reference/alerts.md explains
    each alert.
    """
    say_text(_file("alerts.yml"))


@monitoring.command(epilog=SEE_EXIT_CODES)
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON.

    Import it, and choose a Prometheus data source.
    """
    say_text(_file("dashboard.json"))


def _file(name: str) -> str:
    return resources.files("reliamsg.metrics").joinpath(name).read_text(encoding="utf-8").rstrip("\n")
