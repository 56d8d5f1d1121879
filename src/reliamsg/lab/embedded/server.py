"""The process behind :class:`reliamsg.lab.EmbeddedBroker`: ``python -m reliamsg.lab.embedded.server``.

Requires the package amqtt (``pip install reliamsg[demo]``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
from pathlib import Path

from amqtt.plugins.base import BaseAuthPlugin  # type: ignore[import-untyped]

from reliamsg.lab.embedded.sessions import QueueingBroker, in_flight, queued

_STATUS_SECONDS = 0.2


class AllowEveryone(BaseAuthPlugin):  # type: ignore[misc]
    """Lets everyone connect, with or without a user name.

    amqtt's own plugin for this marks all clients as anonymous, and deletes their subscriptions and queued messages as
    soon as they disconnect, even in persistent sessions.
    """

    async def authenticate(self, *, session: object) -> bool:
        return True


async def _serve(port: int, status: Path | None) -> None:
    # Without this list, amqtt would log every packet, and publish its statistics as retained messages.
    broker = QueueingBroker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {f"{AllowEveryone.__module__}.{AllowEveryone.__name__}": {}},
        }
    )
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await broker.start()
    while not stopped.is_set():
        if status is not None:
            _report(broker, status)
        try:
            await asyncio.wait_for(stopped.wait(), _STATUS_SECONDS)
        except TimeoutError:
            continue
    await broker.shutdown()


def _report(broker: QueueingBroker, status: Path) -> None:
    sessions = [session for session, _ in broker.sessions.values()]
    new = status.with_suffix(".new")
    new.write_text(
        json.dumps(
            {
                "queued": sum(map(queued, sessions)),
                "in_flight": sum(map(in_flight, sessions)),
            }
        )
    )
    os.replace(new, status)


def main() -> None:
    parser = argparse.ArgumentParser(description="An MQTT 3.1.1 broker that keeps everything in memory")
    parser.add_argument("--port", type=int, required=True, help="TCP port to listen on, at 127.0.0.1")
    parser.add_argument("--status", type=Path, help="file for the numbers of queued messages")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(_serve(options.port, options.status))


if __name__ == "__main__":
    main()
