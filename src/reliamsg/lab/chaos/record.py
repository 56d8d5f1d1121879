"""What a scenario records while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from reliamsg.lab.chaos.result import Baseline, Observations, Sample
from reliamsg.lab.chaos.settings import Drawn

__all__ = ["Record"]


class Record:
    """The log of one run. Several threads may add to it at the same time; :meth:`observations` returns a snapshot."""

    def __init__(self, on_event: Callable[[str], object] = lambda text: None) -> None:
        """`on_event`: called with each event as it is recorded."""
        self._on_event = on_event
        self._started = time.monotonic()
        self._events: list[tuple[float, str]] = []
        self._stakes: list[tuple[int, str]] = []
        self._baselines: list[Baseline] = []
        self._problems: list[str] = []
        self._samples: list[Sample] = []
        self._expected: tuple[str, ...] = ("complete",)
        self._expected_unknown: tuple[str, ...] = ()
        self._interventions = 0
        self._seconds = 0.0
        self._drain_seconds = 0.0
        self._drawn: Drawn | None = None

    def add_event(self, what: str) -> None:
        """Record that something happened now."""
        self._events.append((self._elapsed(), what))
        self._on_event(what)

    def add_stake(self, count: int, what: str) -> None:
        """Record how many messages a fault could have lost, duplicated or reordered."""
        self._stakes.append((count, what))

    def add_baseline(self, baseline: Baseline) -> None:
        """Record how plain clients fared."""
        self._baselines.append(baseline)

    def add_problem(self, what: str) -> None:
        """Record that something went wrong: the run is not ok."""
        self._problems.append(what)

    def add_sample(self, counts: Mapping[str, int]) -> None:
        """Record the current values of the counters."""
        self._samples.append((self._elapsed(), dict(counts)))

    def add_intervention(self) -> None:
        """Record that an operator followed the advice in a client's error message."""
        self._interventions += 1

    def expect_verdict(self, *verdicts: str) -> None:
        """Accept these verdicts instead of ``complete``."""
        self._expected = verdicts

    def expect_unknown(self, *findings: str) -> None:
        """Expect the verdict ``unknown``, for no other reason than these findings, in the checker's words."""
        self._expected, self._expected_unknown = ("unknown",), findings

    def set_drawn(self, drawn: Drawn) -> None:
        """Record the settings that were drawn for the clients."""
        self._drawn = drawn

    def set_drain_seconds(self, seconds: float) -> None:
        """Record the time from the end of the faults until everything had been delivered."""
        self._drain_seconds = seconds

    def end(self) -> None:
        """Record that the scenario has ended; what follows is clean-up."""
        self._seconds = self._elapsed()

    def events(self) -> list[str]:
        """All events so far, in order."""
        return [what for _, what in list(self._events)]

    def observations(self) -> Observations:
        """What has been recorded so far."""
        return Observations(
            events=tuple(self._events),
            stakes=tuple(self._stakes),
            baselines=tuple(self._baselines),
            problems=tuple(self._problems),
            samples=tuple(self._samples),
            expected=self._expected,
            expected_unknown=self._expected_unknown,
            interventions=self._interventions,
            seconds=self._seconds,
            drain_seconds=self._drain_seconds,
            drawn=self._drawn,
        )

    def _elapsed(self) -> float:
        return time.monotonic() - self._started
