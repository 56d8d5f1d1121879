"""The producer of a worker process, opened by its first publish: by then, the server has forked its workers."""

import atexit
import contextlib
import os
import signal
import threading
import time
from functools import cache

from django.conf import settings

from reliamsg import FatalError, OutboxLocked, Producer

WAIT_SECONDS = 10.0

_lock = threading.Lock()


def worker_producer() -> Producer:
    """Raises OutboxLocked if other processes keep all outboxes open, as old workers may do during a reload."""
    with _lock:
        return _open()


@cache
def _open() -> Producer:
    """The first outbox that no other process has open. An outbox outlives its process: the worker that replaces a dead
    one finds its outbox free, opens it, and sends what is left in it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        for slot in range(settings.MESSAGE_OUTBOXES):
            name = f"{settings.MESSAGE_PRODUCER}-{slot}"
            with contextlib.suppress(OutboxLocked):
                producer = Producer(
                    name,
                    settings.MESSAGE_SITES,
                    outbox=settings.STATE_DIRECTORY / f"{name}.db",
                    groups={"orders": ["billing"]},
                    on_error=_stop_worker,
                )
                atexit.register(producer.close, timeout=10.0)
                return producer
        if time.monotonic() > deadline:
            raise OutboxLocked("other processes have all outboxes open")
        time.sleep(0.1)


def _stop_worker(error: BaseException) -> None:
    """After a fatal error every publish fails. gunicorn replaces the worker, which opens the outbox anew."""
    if isinstance(error, FatalError):
        os.kill(os.getpid(), signal.SIGTERM)
