"""The process behind :class:`reliamsg.lab.EmbeddedBroker`: ``python -m reliamsg.lab.embedded.server``.

Needs the package amqtt (``pip install reliamsg[demo]``).
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

from reliamsg.lab.embedded.sessions import KeepingBroker, in_flight, waiting

_STATUS_SECONDS = 0.2


class EveryoneIsKnown(BaseAuthPlugin):  # type: ignore[misc]
    """Lets everybody connect, with a user name or without.

    amqtt's own plugin for this marks all clients as anonymous, and from those it takes subscriptions and
    waiting messages away as soon as they disconnect, persistent session or not.
    """

    async def authenticate(self, *, session: object) -> bool:
        return True


async def _serve(port: int, status: Path | None) -> None:
    # Without plugins named here, amqtt would log every packet and publish its statistics as retained
    # messages.
    broker = KeepingBroker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {f"{EveryoneIsKnown.__module__}.{EveryoneIsKnown.__name__}": {}},
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


def _report(broker: KeepingBroker, status: Path) -> None:
    sessions = [session for session, _ in broker.sessions.values()]
    aside = status.with_suffix(".new")
    aside.write_text(
        json.dumps(
            {
                "queued": sum(map(waiting, sessions)),
                "in_flight": sum(map(in_flight, sessions)),
            }
        )
    )
    os.replace(aside, status)


def main() -> None:
    parser = argparse.ArgumentParser(description="An MQTT 3.1.1 broker that keeps everything in memory")
    parser.add_argument("--port", type=int, required=True, help="TCP port to listen at, on 127.0.0.1")
    parser.add_argument("--status", type=Path, help="file to write the numbers of waiting messages to")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    asyncio.run(_serve(options.port, options.status))


if __name__ == "__main__":
    main()
