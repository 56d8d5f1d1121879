"""Publish from Celery tasks. Each process of the worker's pool has a producer of its own.

    $ pip install celery
    $ export SITES="dc1=amqp://localhost dc2=mqtt://localhost"
    $ celery --app celery_app worker --concurrency 2
    $ python -c 'from celery_app import ship; ship.delay("order-17")'

Environment: SITES; CELERY_BROKER, Celery's own broker; PRODUCER, this worker's permanent name; STATE_DIRECTORY, where
the outboxes are.
"""

import os
from pathlib import Path

from billiard.process import current_process
from celery import Celery, Task
from celery.signals import worker_process_init, worker_process_shutdown

from reliamsg import OutboxFull, Producer, Site

SITES = [Site(*site.split("=", 1)) for site in os.environ["SITES"].split()]
NAME = os.environ.get("PRODUCER", "shipping")
DIRECTORY = Path(os.environ.get("STATE_DIRECTORY", "."))

app = Celery("shipping", broker=os.environ.get("CELERY_BROKER", "amqp://localhost"))
# A task is acknowledged after it has run, and given to another process if its own is killed.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)


class Messages:
    """This process's producer."""

    producer: Producer


messages = Messages()


@worker_process_init.connect
def open_producer(**_: object) -> None:
    # The pool numbers its processes from 0. One that replaces a dead one gets its number, and so its outbox.
    name = f"{NAME}-{current_process().index}"
    outbox = DIRECTORY / f"{name}.db"
    messages.producer = Producer(name, SITES, outbox=outbox, groups={"shipments": ["billing"]})


@worker_process_shutdown.connect
def close_producer(**_: object) -> None:
    messages.producer.close(timeout=5.0)


@app.task(bind=True, autoretry_for=(OutboxFull,), retry_backoff=True, max_retries=None)
def ship(task: Task, order: str) -> str:
    # A task may run twice, and then publishes twice: consumers recognize that by its id, which stays the same.
    receipt = messages.producer.publish("shipments", order.encode(), key=task.request.id)
    return str(receipt.id)
