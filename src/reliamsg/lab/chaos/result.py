"""The result of a scenario: a frozen value, available as a report and as one line of JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.settings import Drawn

__all__ = ["Baseline", "Judgement", "Observations", "Result", "Sample"]

Sample = tuple[float, dict[str, int]]
"""Seconds since the start, and the value of each counter then."""

_UNHARMED = {
    "lost": "plain clients lost nothing",
    "duplicates": "plain clients received no duplicates",
    "out_of_order": "plain clients received everything in order",
}


@dataclass(frozen=True)
class Baseline:
    """How plain clients fared under the same fault."""

    name: str
    """Which clients, in words."""
    accepted: int
    """Messages that the plain client considered published."""
    lost: int
    """How many of these never arrived."""
    duplicates: int = 0
    out_of_order: int = 0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.accepted:,} accepted, {self.lost:,} lost, {self.duplicates:,} duplicated,"
            f" {self.out_of_order:,} out of order"
        )


@dataclass(frozen=True)
class Observations:
    """The record of a scenario's run."""

    events: tuple[tuple[float, str], ...] = ()
    """Seconds since the start, and what happened."""
    stakes: tuple[tuple[int, str], ...] = ()
    """How many messages were at stake, and why."""
    baselines: tuple[Baseline, ...] = ()
    problems: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    expected: tuple[str, ...] = ("complete",)
    """The acceptable verdicts."""
    expected_unknown: tuple[str, ...] = ()
    """The only findings that the checker may report as unknown, in its own words."""
    interventions: int = 0
    """How often an operator had to follow the advice in a client's error message."""
    seconds: float = 0.0
    drain_seconds: float = 0.0
    """From the end of the faults until everything had been delivered."""
    drawn: Drawn | None = None
    """The clients' settings, if they were drawn at random."""


@dataclass(frozen=True)
class Judgement:
    """What a judge found in the files that a run left behind."""

    verdict: str = "failed"
    """``complete``, ``lost``, ``violated``, ``unknown``, or ``failed`` if the run ended too early to be judged."""
    messages: int = 0
    lost: int = 0
    declared: int = 0
    held: int = 0
    """Held back by a gap that status() names, for a cause that the fault log confirms."""
    duplicates: int = 0
    out_of_order: int = 0
    problems: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """What the checker reported that was not expected."""


@dataclass(frozen=True)
class Result:
    """The outcome of a scenario. `ok` only if the promise held and something was at stake."""

    scenario: Scenario
    seed: int
    """Of the run that counts: each repetition uses the next seed."""
    observed: Observations = field(default_factory=Observations)
    judgement: Judgement = field(default_factory=Judgement)
    tries: int = 1
    """How often the scenario was run; a run that proves nothing is repeated."""
    missing: tuple[str, ...] = ()
    """Prerequisites that this machine does not meet; the scenario was not run."""
    files: str = ""
    """The directory with its files."""

    @property
    def verdict(self) -> str:
        """The judge's verdict, or ``missing`` if the scenario could not run."""
        return "missing" if self.missing else self.judgement.verdict

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that went wrong, in the run and in the judgement."""
        return (*self.observed.problems, *self.judgement.problems)

    @property
    def inconclusive(self) -> str:
        """Why the run proves nothing; empty if it does prove something."""
        stakes = self.observed.stakes
        if not stakes or not all(count > 0 for count, _ in stakes):
            return "nothing was at stake"
        harm = self.scenario.harm
        if harm is None or any(getattr(baseline, harm) for baseline in self.observed.baselines):
            return ""
        return _UNHARMED[harm]

    @property
    def at_stake(self) -> dict[str, int]:
        """Messages at stake, by reason."""
        found: dict[str, int] = {}
        for count, what in self.observed.stakes:
            found[what] = found.get(what, 0) + count
        return found

    @property
    def ok(self) -> bool:
        """Whether the promise held, and the run proves it."""
        return (
            not self.problems
            and not self.missing
            and not self.inconclusive
            and self.verdict in self.observed.expected
        )

    def as_dict(self) -> dict[str, Any]:
        """The object of ``--json``."""
        judged, baselines = self.judgement, self.observed.baselines
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "ok": self.ok,
            "verdict": self.verdict,
            "messages": judged.messages,
            "lost": judged.lost,
            "duplicates": judged.duplicates,
            "out_of_order": judged.out_of_order,
            "control": {"lost": sum(one.lost for one in baselines) if baselines else None},
            "seconds": round(self.observed.seconds, 1),
            "declared_gaps": judged.declared,
            "held": judged.held,
            "at_stake": self.at_stake,
            "tries": self.tries,
            "problems": list(self.problems),
            "missing": list(self.missing),
        }

    def text(self) -> str:
        """A report for people."""
        scenario, observed, judged = self.scenario, self.observed, self.judgement
        about = ", ".join(map(str, scenario.numbers)) or "several faults"
        lines = [
            f"{scenario.name} ({about}; {scenario.promises}; seed {self.seed})",
            f"  {scenario.title}",
        ]
        if self.missing:
            return "\n".join([*lines, f"  not run, this machine lacks: {'; '.join(self.missing)}"])
        lines += [f"  {when:7.1f} s  {what}" for when, what in observed.events]
        lines += [f"  at stake: {count:,} {what}" for what, count in self.at_stake.items()]
        lines += [f"  plain clients: {baseline}" for baseline in observed.baselines]
        if self.inconclusive:
            lines.append(f"  {self.inconclusive}: this run proves nothing")
        if self.tries > 1:
            lines.append(f"  run {self.tries} times: a run that proves nothing is repeated")
        lines.append(
            f"  reliamsg: {judged.messages:,} messages, {judged.lost:,} lost, {judged.declared:,} declared lost,"
            f" {judged.duplicates:,} duplicated, {judged.out_of_order:,} out of order: {self.verdict}"
        )
        if observed.expected != ("complete",):
            lines.append(f"  expected: {' or '.join(observed.expected)}")
        lines += [f"  problem: {problem}" for problem in self.problems]
        lines += [f"  checker: {finding}" for finding in judged.findings]
        lines.append(
            f"  {'ok' if self.ok else 'NOT OK'} in {observed.seconds:.1f} s; files: {self.files or 'none'}"
        )
        return "\n".join(lines)
