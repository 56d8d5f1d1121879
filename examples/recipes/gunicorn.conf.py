"""Opens a producer in each worker, after the fork, and closes it when the worker exits."""

import time

from gunicorn_app import messages

bind = "127.0.0.1:8000"
workers = 2
# After SIGTERM: time for the requests that were accepted, and for close() below. It returns within 15 seconds.
graceful_timeout = 30


def post_worker_init(worker):
    # On a reload (SIGHUP), the new workers start while the old ones still have the outboxes.
    while worker.alive and not messages.open(worker.cfg.workers):
        worker.notify()
        time.sleep(0.1)


def worker_exit(server, worker):
    if hasattr(messages, "producer"):
        # What is still unconfirmed after ten seconds stays in the outbox. The next worker sends it.
        messages.producer.close(timeout=10.0)
