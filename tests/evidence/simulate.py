"""Simulate seeds for the evidence: ``python -m tests.evidence.simulate A:B MESSAGES``.

Runs what ``reliamsg lab simulate --seeds A:B --messages MESSAGES`` runs, without the command line, whose text decides
no outcome. The last line is JSON: the summary; `replay`, commands that repeat the runs that failed; and `opened`, the
files of the project that this process used. Exit status: 0, or 1 when a run failed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from reliamsg.simulation.runner import Outcome, run_many
from tests.opened import Opened

ROOT = Path(__file__).parents[2]


def main(seeds: range, messages: int) -> int:
    """See the module."""
    opened = Opened(ROOT)
    replay: list[str] = []

    def note(outcome: Outcome) -> None:
        if outcome.violations:
            scenario = outcome.scenario
            for violation in outcome.violations[:10]:
                print(f"seed {scenario.seed}: {violation}")
            if outcome.error:
                print(outcome.error)
            replay.append(
                f"reliamsg lab simulate --seed {scenario.seed} --messages {scenario.messages}"
                f" --faults {','.join(scenario.faults) or 'none'} --trace"
            )

    summary = run_many(seeds, messages, on_outcome=note)
    print(json.dumps({**summary.as_dict(), "replay": replay, "opened": sorted(opened.paths())}))
    return 1 if replay else 0


if __name__ == "__main__":
    first, last = map(int, sys.argv[1].split(":"))
    sys.exit(main(range(first, last), int(sys.argv[2])))
