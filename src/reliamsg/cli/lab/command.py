"""``reliamsg lab``: the commands for fault injection."""

from __future__ import annotations

import click

from reliamsg.cli.lab.chaos import chaos
from reliamsg.cli.lab.simulate import simulate
from reliamsg.cli.status import SEE_EXIT_CODES

__all__ = ["lab"]


@click.group(epilog=SEE_EXIT_CODES)
def lab() -> None:
    """Inject faults into simulated worlds, or into real brokers."""


lab.add_command(chaos)
lab.add_command(simulate)
