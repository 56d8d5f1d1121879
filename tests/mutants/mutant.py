"""What a deliberate defect is, and what has to convict it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BySimulator", "ByTest", "DoesNotFit", "Mutant"]


class DoesNotFit(Exception):
    """The sources no longer have what a defect replaces."""


@dataclass(frozen=True)
class BySimulator:
    """The simulator convicts, with a violation of one of these kinds; see :mod:`tests.mutants.search`."""

    kinds: tuple[str, ...]
    seed: int | None = field(default=None, compare=False, repr=False)
    """The one that is tried first: a hint that decides nothing. ``python -m tests.mutants.run --refresh`` writes it."""

    def __init__(self, *kinds: str, seed: int | None = None) -> None:
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "seed", seed)

    def __str__(self) -> str:
        return " or ".join(self.kinds)


@dataclass(frozen=True)
class ByTest:
    """A test convicts, by failing where it has to fail."""

    test: str
    """The node id, below ``tests/``; of a test with parameters, with or without them."""
    statement: str
    """Part of the statement in ``tests/`` that fails, with single blanks: the one that asserts what is broken."""
    error: str = "AssertionError"
    """The exception's name."""

    def __str__(self) -> str:
        return f"{self.test}: {self.statement}"


@dataclass(frozen=True)
class Mutant:
    """One defect."""

    name: str
    file: str
    """Below ``src/reliamsg``."""
    old: str
    """What it replaces; occurs exactly once in the file."""
    new: str
    breaks: str
    """The promise of the design that it breaks, and how."""
    expected: BySimulator | ByTest
    """What has to convict it. Nothing else does."""

    def applied(self, text: str) -> str:
        """The text of the file with the defect."""
        if text.count(self.old) != 1:
            raise DoesNotFit(f"what it replaces occurs {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)
