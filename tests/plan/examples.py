"""Rates for tests. The numbers are invented."""

from __future__ import annotations

from pathlib import Path

from reliamsg.plan import Rates, read_rates

__all__ = ["ONE_SITE", "RATES", "rates_of", "write_rates"]

_SITE = """
crashes_per_year = 40.0
crash_loses_seconds = 1.0
losses_per_year = 20
outage_seconds = 900
confirm_seconds = 0.005
"""

RATES = f"""\
[traffic]
messages_per_second = 10
message_bytes = 200
[producer]
crashes_per_year = 120
restart_seconds = 30
disk_losses_per_year = 2
[consumer]
outages_per_year = 240
outage_seconds = 600
inbox_losses_per_year = 2
broker_wait_seconds = 0.5
inbox_wait_seconds = 2
handle_seconds = 0.02
[sites.dc1]{_SITE}
[sites.dc2]{_SITE}
[all_sites]
losses_per_year = 0.2
[cluster]{_SITE}
[cluster.partitions]
per_year = 30
seconds = 120
handling = "autoheal"
losing_share = 0.5
"""
ONE_SITE = RATES.replace(f"[sites.dc2]{_SITE}", "")
"""The same with one site, which takes less time."""


def write_rates(directory: Path, text: str = RATES) -> Path:
    path = directory / "rates.toml"
    path.write_text(text)
    return path


def rates_of(directory: Path, text: str = RATES) -> Rates:
    return read_rates(write_rates(directory, text))
