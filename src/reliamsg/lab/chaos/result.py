"""What came out of a scenario: for people, and as one line of JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reliamsg.lab.chaos.scenario import Scenario
from reliamsg.lab.chaos.settings import Drawn

__all__ = ["Control", "Result", "Sample"]

Sample = tuple[float, dict[str, int]]
"""Seconds since the start, and how many messages by then, by what became of them."""


@dataclass(frozen=True)
class Control:
    """What plain clients got of the same fault."""

    name: str
    """Which clients, in words."""
    accepted: int
    """Messages that the plain client took for published."""
    lost: int
    """How many of these never came."""
    duplicates: int = 0
    out_of_order: int = 0

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.accepted:,} accepted, {self.lost:,} lost, {self.duplicates:,} doubled,"
            f" {self.out_of_order:,} out of order"
        )


@dataclass
class Result:
    """How a scenario went. `ok` only when the promise held, and something was at stake."""

    scenario: Scenario
    seed: int
    """Of this run: what was repeated took the next one each time."""
    verdict: str = "failed"
    """The checker's: ``complete``, ``lost``, ``violated``, ``unknown``; ``failed`` when the run did not get that far,
    ``missing`` when it could not begin."""
    expected: tuple[str, ...] = ("complete",)
    unproven: tuple[str, ...] = ()
    """What the checker may call unknown, in its own words, where ``unknown`` is expected, and nothing else."""
    tries: int = 1
    """How often it was run, this time included: what proves nothing is repeated."""
    messages: int = 0
    lost: int = 0
    declared: int = 0
    held: int = 0
    """Held back, with status() naming the gap, for a cause that the fault log confirms."""
    operated: int = 0
    """How often an operator had to do what a client's last error asked for."""
    duplicates: int = 0
    out_of_order: int = 0
    seconds: float = 0.0
    drain_seconds: float = 0.0
    """From the end of the faults until everything had been handed out."""
    events: list[tuple[float, str]] = field(default_factory=list)
    stakes: list[tuple[int, str]] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """What the checker says where that is not what was expected."""
    files: str = ""
    """Where its files are."""
    drawn: Drawn | None = None
    """The settings of its clients, where they were drawn at random."""

    @property
    def mattered(self) -> bool:
        """Whether every fault had something to hit, and did the harm to plain clients that is its point."""
        return not self.hollow

    @property
    def hollow(self) -> str:
        """Why the run proves nothing; empty where it does."""
        if not self.stakes or not all(count > 0 for count, _ in self.stakes):
            return "nothing was at stake"
        harm = self.scenario.harm
        if harm is None or any(getattr(control, harm) for control in self.controls):
            return ""
        return {
            "lost": "plain clients lost nothing", "duplicates": "plain clients got nothing twice",
            "out_of_order": "plain clients got everything in order",
        }[harm]  # fmt: skip

    @property
    def staked(self) -> dict[str, int]:
        """Messages at stake, by why."""
        found: dict[str, int] = {}
        for count, what in self.stakes:
            found[what] = found.get(what, 0) + count
        return found

    @property
    def ok(self) -> bool:
        return not self.problems and not self.missing and self.mattered and self.verdict in self.expected

    def as_dict(self) -> dict[str, Any]:
        """For the last line of ``--json``."""
        return {
            "scenario": self.scenario.name,
            "seed": self.seed,
            "ok": self.ok,
            "verdict": self.verdict,
            "messages": self.messages,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "out_of_order": self.out_of_order,
            "control": {"lost": sum(c.lost for c in self.controls) if self.controls else None},
            "seconds": round(self.seconds, 1),
            "declared_gaps": self.declared,
            "held": self.held,
            "at_stake": self.staked,
            "tries": self.tries,
            "problems": self.problems,
            "missing": self.missing,
        }

    def text(self) -> str:
        """A report for people."""
        s = self.scenario
        about = ", ".join(map(str, s.numbers)) or "several faults"
        lines = [f"{s.name} ({about}; {s.promises}; seed {self.seed})", f"  {s.title}"]
        if self.missing:
            return "\n".join([*lines, f"  not run, this machine lacks: {'; '.join(self.missing)}"])
        lines += [f"  {when:7.1f} s  {what}" for when, what in self.events]
        lines += [f"  at stake: {count:,} {what}" for what, count in self.staked.items()]
        lines += [f"  plain clients: {control}" for control in self.controls]
        if self.hollow:
            lines.append(f"  {self.hollow}: this run proves nothing")
        if self.tries > 1:
            lines.append(f"  run {self.tries} times: what proves nothing is repeated")
        lines.append(
            f"  ours: {self.messages:,} messages, {self.lost:,} lost, {self.declared:,} declared lost,"
            f" {self.duplicates:,} doubled, {self.out_of_order:,} out of order: {self.verdict}"
        )
        if self.expected != ("complete",):
            lines.append(f"  expected: {' or '.join(self.expected)}")
        lines += [f"  wrong: {problem}" for problem in self.problems]
        lines += [f"  the checker: {finding}" for finding in self.findings]
        lines.append(
            f"  {'ok' if self.ok else 'NOT OK'} in {self.seconds:.1f} s; files: {self.files or 'none'}"
        )
        return "\n".join(lines)
