"""Report the fate of every message from the journals of producers and consumers.

    python examples/audit.py JOURNALS [--out DIR] [--master local[2]]

JOURNALS is the directory that clients were given as `journal=`. Requires `pip install 'reliamsg[audit]'` and Java 17 or
21. `reliamsg audit` does the same, with more options. Exits with 0 if nothing is lost, violated or unknown.
"""

import argparse
import sys

from reliamsg.audit.job import audit
from reliamsg.audit.session import make_session


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("journals")
    parser.add_argument("--out", help="directory for tables, verdict.json and report.html")
    parser.add_argument(
        "--master", default="local[*]", help="Spark's master (default: all cores of this machine)"
    )
    arguments = parser.parse_args()

    spark = make_session(arguments.master, journals=arguments.journals)
    try:
        verdict = audit(spark, arguments.journals, out=arguments.out)
    finally:
        spark.stop()

    messages, evidence = verdict["messages"], verdict["evidence"]
    print(f"{verdict['verdict']}: {messages['enqueued']:,} messages in {verdict['streams']:,} streams")
    for group, delivered in messages["delivered"].items():
        print(f"  delivered to {group}: {delivered:,}")
    for lost in verdict["lost_ranges"][:10]:
        print(f"  {lost['text']}; last hop: {lost['hop']} {', '.join(lost['sites'])}")
    for line in [*evidence["missing"], *evidence["broken"]][:10]:
        print(f"  {line}")
    return 0 if verdict["verdict"] == "complete" else 1


if __name__ == "__main__":
    sys.exit(main())
