"""Run a part of the campaign for the evidence: ``python -m tests.evidence.campaign A:B DIR``.

Runs what ``reliamsg lab chaos campaign --black-box --seeds A:B --dir DIR`` runs, without the command line, whose text
decides no outcome. Each run is a line on standard error; the last line on standard output is the summary as JSON. Exit
status: 0; 1 when a run was not ok; 2 when this machine lacks something.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from reliamsg.lab.chaos.campaign import campaign, run_line
from reliamsg.lab.chaos.result import Result


def main(seeds: range, directory: Path) -> int:
    """See the module."""

    def show(result: Result) -> None:
        print(json.dumps(run_line(result)), file=sys.stderr, flush=True)

    summary = campaign(seeds, directory.resolve(), black_box=True, on_result=show)
    print(json.dumps(summary.as_dict()))
    return 2 if summary.missing else 0 if summary.ok else 1


if __name__ == "__main__":
    # A request to end cleans up brokers, disks and networks, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first, last = map(int, sys.argv[1].split(":"))
    sys.exit(main(range(first, last), Path(sys.argv[2])))
