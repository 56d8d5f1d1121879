"""Handle messages of a group until Ctrl-C or SIGTERM:

$ python consumer.py billing orders dc1=amqp://localhost dc2=mqtt://localhost
"""

import argparse
import signal
import sys

from reliamsg import Consumer, Message, Site


def handle(message: Message) -> None:
    """Returning acknowledges the message. If this raises, the message is delivered again, before the rest of its
    stream."""
    # After a crash, messages that were handled but not yet acknowledged are delivered once more, flagged.
    again = " (again)" if message.redelivered else ""
    print(f"{message.id}{again}: {message.body.decode()}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Handle messages of a group.")
    parser.add_argument("group")
    parser.add_argument("topic")
    parser.add_argument("sites", nargs="+", metavar="NAME=URL")
    parser.add_argument("--inbox", help="a file for this group only (default: GROUP.inbox.db)")
    parser.add_argument(
        "--standby", action="store_true", help="wait while another consumer reads for the group"
    )
    options = parser.parse_args()

    inbox = options.inbox or f"{options.group}.inbox.db"
    sites = [Site(*site.split("=", 1)) for site in options.sites]
    with Consumer(
        options.group, sites, topics=[options.topic], inbox=inbox, standby=options.standby
    ) as consumer:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: consumer.stop())
        consumer.run(handle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
