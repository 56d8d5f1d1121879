"""Publishing 100-byte messages: ours, fsynced and confirmed at two RabbitMQ sites, against plain pika at one.

Ours: one process, an fsynced outbox, journals on, until both sites have confirmed all. The peer: pika with pipelined
publisher confirms to one site, nothing durable on the client. They alternate in one run. The last line is
``{"name", "ours", "peer", "ratio", "target", "met", …}`` with medians in messages per second.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import pika

if not __package__:  # run as a script: make `benchmarks` importable, here and in children
    import os

    root = str(Path(__file__).resolve().parent.parent)
    sys.path.insert(0, root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))

from benchmarks.pairs import Run, arguments, run_child, verdict
from reliamsg import Site
from reliamsg.lab import RabbitNode
from reliamsg.transport.base import Binding
from reliamsg.transport.factory import create_group
from reliamsg.wire.address import group_queue

TARGET = 10.0
SIZE = 100


def delete_queue(url: str, queue: str) -> None:
    """So that no run works on what an earlier one left."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        connection.channel().queue_delete(queue)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--messages", type=int, default=200_000, help="messages of ours per run")
    parser.add_argument("--peer-messages", type=int, default=20_000, help="messages of the peer per run")
    options = parser.parse_args()
    ours: list[Run] = []
    peer: list[Run] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        RabbitNode(Path(directory) / "dc1", "dc1") as dc1,
        RabbitNode(Path(directory) / "dc2", "dc2") as dc2,
    ):
        urls = [dc1.url, dc2.url]
        for pair in range(options.pairs + 1):
            topic = f"bench-{pair}"
            for url in urls:  # the same quorum queue for both, so that both are confirmed after the same work
                create_group(Site("bench", url), [Binding(topic, 0, "bench")], timeout=30.0)
            first = run_child("benchmarks.publish_ours", topic, str(options.messages), str(SIZE), *urls)
            second = run_child(
                "benchmarks.publish_pika", topic, str(options.peer_messages), str(SIZE), urls[0]
            )
            for url in urls:
                delete_queue(url, group_queue(topic, 0, "bench"))
            if pair:
                ours.append(first)
                peer.append(second)
            if not options.json:
                note = "" if pair else "  (warm-up)"
                print(
                    f"ours {first.rate:10,.0f}/s   pika {second.rate:10,.0f}/s   {first.rate / second.rate:.1f}x{note}"
                )
    print(json.dumps(verdict("throughput", ours, peer, TARGET)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
