"""``python -m benchmarks NAME|all``: measure, and print a table, or a line of JSON for each benchmark."""

from __future__ import annotations

import argparse
import json
import sys
import time

from benchmarks.catalogue import BENCHMARKS, chosen, measure
from benchmarks.environment import machine
from benchmarks.options import Options
from benchmarks.tables import markdown, row


def arguments() -> argparse.ArgumentParser:
    width = max(map(len, BENCHMARKS)) + 2
    names = "\n".join(
        f"  {each.name:{width}}{each.summary}{'' if each.in_all else ' (not in all)'}"
        for each in BENCHMARKS.values()
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Ratios against peers, in pairs that alternate in one run on this machine.",
        epilog=f"benchmarks:\n  {'all':{width}}all that are not marked otherwise\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="benchmarks to run, see below")
    parser.add_argument("--json", action="store_true", help="print only a line of JSON for each benchmark")
    parser.add_argument(
        "--markdown", action="store_true", help="finish with a table for the documentation, and the versions"
    )
    parser.add_argument(
        "--pairs", type=int, default=5, help="rounds, after one uncounted warm-up (default: 5)"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="fraction of the messages (default: 1); less only shows that it works",
    )
    parser.add_argument("--seconds", type=float, help="seconds that the soak lasts (default: 600)")
    return parser


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    try:
        names = chosen(given.names)
    except ValueError as error:
        parser.error(str(error))
    start = time.monotonic()
    lines = []
    silent = Options()
    options = Options(given.pairs, given.scale, given.seconds, silent.note if given.json else say)
    for line in measure(names, options):
        lines.append(line)
        print(json.dumps(line) if given.json else row(line), flush=True)
    if given.markdown:
        print(markdown(lines), machine(), sep="\n\n")
    options.note(f"{time.monotonic() - start:.0f} s")
    return int(any("error" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
