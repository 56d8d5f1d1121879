"""Publish lines of standard input to a topic, for the groups that must receive them.

An MQTT broker keeps messages only for groups that it knows, so create these first; at RabbitMQ, the producer does so:

    $ reliamsg group create billing --topic orders --site dc2=mqtt://localhost
    $ seq 3 | python producer.py orders dc1=amqp://localhost dc2=mqtt://localhost --group billing

Repeat --group for more groups. Without any group, brokers would not keep the messages.
"""

import argparse
import sys

from reliamsg import ConfirmTimeout, Producer, Site


def main() -> int:
    parser = argparse.ArgumentParser(description="Publish lines of standard input.")
    parser.add_argument("topic")
    parser.add_argument("sites", nargs="+", metavar="NAME=URL")
    parser.add_argument("--producer", default="example", help="a name that no other producer uses")
    parser.add_argument("--outbox", default="example.outbox.db", help="a file for this producer only")
    parser.add_argument(
        "--group", action="append", required=True, help="a group that must receive the messages"
    )
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds to wait for confirms at the end")
    options = parser.parse_args()

    sites = [Site(*site.split("=", 1)) for site in options.sites]
    groups = {options.topic: options.group}
    with Producer(options.producer, sites, outbox=options.outbox, groups=groups) as producer:
        for line in sys.stdin:
            # The message is on disk when this returns, and will be sent even after a crash.
            receipt = producer.publish(options.topic, line.rstrip("\n").encode(), headers={"source": "stdin"})
            print(f"durable here: {receipt.id}")
        try:
            producer.flush(timeout=options.timeout)
        except ConfirmTimeout:
            # Neither a success nor a failure: unconfirmed messages stay in the outbox, and are sent next time.
            print(f"not confirmed by all sites yet: {producer.close(timeout=0.0)}", file=sys.stderr)
            return 1
    print("confirmed by all sites")
    return 0


if __name__ == "__main__":
    sys.exit(main())
