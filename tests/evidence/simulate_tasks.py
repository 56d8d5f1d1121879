"""Simulate seeds of applications that consist of tasks, for the evidence: ``python -m tests.evidence.simulate_tasks A:B
MESSAGES``.

Runs what ``python -m tests.aio.simulated A:B --messages MESSAGES`` runs. The last line is JSON: `seeds`, how many;
`failing_seeds`; `states`, how often a task was cancelled in each; `replay`, commands that repeat the runs that failed;
and `opened`, the files of the project that this process used. Exit status: 0, or 1 when a run failed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from tests.aio.simulated import STATES, replay, simulate
from tests.opened import Opened

ROOT = Path(__file__).parents[2]


def main(seeds: range, messages: int) -> int:
    """See the module."""
    opened = Opened(ROOT)
    failed: dict[int, str] = {}
    states = Counter[str]()
    for seed in seeds:
        outcome = simulate(seed, messages)
        states.update({state: outcome.reached.get(state, 0) for state in STATES})
        if outcome.violations:
            failed[seed] = replay(outcome)
            for violation in outcome.violations[:10]:
                print(f"seed {seed}: {violation}")
            if outcome.error:
                print(outcome.error)
    found = {
        "seeds": len(seeds),
        "failing_seeds": list(failed),
        "states": states,
        "replay": list(failed.values()),
    }
    print(json.dumps({**found, "opened": sorted(opened.paths())}))
    return 1 if failed else 0


if __name__ == "__main__":
    first, last = map(int, sys.argv[1].split(":"))
    sys.exit(main(range(first, last), int(sys.argv[2])))
