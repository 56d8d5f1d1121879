"""A WSGI application in several worker processes, each with a producer of its own.

    $ pip install gunicorn
    $ SITES="dc1=amqp://localhost dc2=mqtt://localhost" gunicorn --config gunicorn.conf.py gunicorn_app:app
    $ curl --data '42 widgets' localhost:8000/orders

Order is per worker: two requests that different workers take may be consumed in either order.

Environment: SITES; PRODUCER, this instance's permanent name; STATE_DIRECTORY, where the outboxes are.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from reliamsg import FatalError, MessageTooLarge, OutboxFull, OutboxLocked, Producer, Site

SITES = [Site(*site.split("=", 1)) for site in os.environ["SITES"].split()]
NAME = os.environ.get("PRODUCER", "orders-web")
DIRECTORY = Path(os.environ.get("STATE_DIRECTORY", "."))


class Messages:
    """This process's producer."""

    producer: Producer

    def open(self, slots: int) -> bool:
        """Open the first outbox of `slots` that no other process has open; False if there is none.

        An outbox outlives its process: the worker that replaces a dead one finds its outbox free, opens it, and sends
        what is left in it. As many outboxes as workers: none is left alone, and none is opened twice.
        """
        for slot in range(slots):
            name = f"{NAME}-{slot}"
            with contextlib.suppress(OutboxLocked):
                self.producer = Producer(
                    name,
                    SITES,
                    outbox=DIRECTORY / f"{name}.db",
                    groups={"orders": ["billing"]},
                    block_timeout=2.0,
                    on_error=stop_worker,
                )
                return True
        return False


def stop_worker(error: BaseException) -> None:
    """After a fatal error every publish fails. gunicorn replaces the worker, which opens the outbox anew."""
    if isinstance(error, FatalError):
        os.kill(os.getpid(), signal.SIGTERM)


messages = Messages()  # opens nothing yet: with `preload_app`, this runs before the fork


def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/orders"):
        start_response("404 Not Found", [])
        return []
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        receipt = messages.producer.publish("orders", body)  # on disk when this returns
    except MessageTooLarge:
        start_response("413 Content Too Large", [])
        return []
    except OutboxFull:
        start_response("503 Service Unavailable", [("Retry-After", "10")])
        return []
    start_response("202 Accepted", [("Content-Type", "text/plain")])
    return [f"{receipt.id}\n".encode()]
