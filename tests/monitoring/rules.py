"""Reads the rules without a parser of YAML, which the project needs for nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Rule", "read_rules"]


@dataclass(frozen=True)
class Rule:
    """One alert."""

    name: str
    for_s: int
    severity: str
    runbook: str


def read_rules(text: str) -> list[Rule]:
    """All alerts of a file."""
    found = []
    for name, body in re.findall(
        r"^ +- alert: (\w+)\n(.*?)(?=^ +- alert: |\Z)", text, re.MULTILINE | re.DOTALL
    ):
        minutes = re.search(r"^ +for: (\d+)m$", body, re.MULTILINE)
        severity, runbook = (
            re.search(rf"^ +{key}: (\S+)$", body, re.MULTILINE) for key in ("severity", "runbook")
        )
        assert severity is not None
        assert runbook is not None
        found.append(Rule(name, 60 * int(minutes[1]) if minutes else 0, severity[1], runbook[1]))
    return found
