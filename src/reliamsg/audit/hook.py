"""Runs an operator's command for every incident that is new or has grown."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from reliamsg.audit.accepted import Acceptances, Brief
from reliamsg.audit.windows import Audited
from reliamsg.errors import ConfigError
from reliamsg.terminal import say

__all__ = ["TIMEOUT_S", "Hook", "news"]

TIMEOUT_S = 60.0
"""The maximum time that one call may take."""
_MAX_FAILURES = 3
"""After so many failures in a row, the other incidents wait for the next audit."""


def news(
    incidents: Iterable[Mapping[str, Any]],
    briefs: Iterable[Brief],
    acceptances: Acceptances,
    before: Audited | None,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The incidents that somebody should know of and was not told by earlier audits, each with ``new`` or ``grown``."""
    by_id = {each.id: each for each in briefs}
    known = {each.id: each for each in before.incidents} if before is not None else {}
    unreported = before.unreported if before is not None else set()
    for each in incidents:
        brief = by_id[each["id"]]
        if brief.severity == "remark" or brief.is_open or acceptances.covers(brief):
            continue
        earlier = known.get(brief.id)
        if earlier is None or brief.id in unreported:
            yield "new", each
        elif not brief.is_within(earlier):
            yield "grown", each


class Hook:
    """Calls `command`, which is split into words as a shell does, but not run by one.

    Raises :class:`ConfigError` if it can't be split.
    """

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--hook {command}: {error}") from None
        if not self._words:
            raise ConfigError("--hook: an empty command")

    def report(self, found: Iterable[tuple[str, Mapping[str, Any]]], verdict: Mapping[str, Any]) -> set[str]:
        """Call the command for each incident in turn; returns the ids of those for which it failed, which are to be
        reported again.

        It gets a JSON object on standard input: `news` (``new`` or ``grown``), `incident`, `verdict` and `through`, and
        the environment variables ``RELIAMSG_INCIDENT``, ``RELIAMSG_SEVERITY`` and ``RELIAMSG_NEWS``.
        """
        failed: set[str] = set()
        failures = 0
        for what, incident in found:
            if failures >= _MAX_FAILURES:
                failed.add(incident["id"])
                continue
            problem = self._call(what, incident, verdict)
            failures = failures + 1 if problem else 0
            if problem:
                failed.add(incident["id"])
                say(f"reliamsg: the hook failed for incident {incident['id']}: {problem}", err=True)
        return failed

    def _call(self, what: str, incident: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
        """Call the command for one incident; returns why it failed."""
        data = {
            "news": what, "incident": incident, "verdict": verdict["verdict"], "through": verdict["through"],
        }  # fmt: skip
        environment = {
            **os.environ, "RELIAMSG_INCIDENT": incident["id"], "RELIAMSG_SEVERITY": incident["severity"],
            "RELIAMSG_NEWS": what,
        }  # fmt: skip
        try:
            done = subprocess.run(
                self._words,
                input=json.dumps(data, ensure_ascii=True).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {TIMEOUT_S:.0f} s"
        except OSError as error:
            return str(error)
        if done.returncode == 0:
            return ""
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return " ".join([f"exit code {done.returncode}", *said])
