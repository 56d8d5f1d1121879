"""Accept orders over HTTP. The answer 202 means: the order is on this machine's disk, and will reach every group.

    $ pip install fastapi uvicorn
    $ SITES="dc1=amqp://localhost dc2=mqtt://localhost" uvicorn fastapi_app:app --port 8000
    $ curl --data '42 widgets' -H 'Idempotency-Key: 7f9c' localhost:8000/orders

Environment: SITES; PRODUCER, this instance's permanent name; STATE_DIRECTORY, where its outbox is. One process: to have
more, start more instances, each with its own name and directory.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request

from reliamsg import MessageTooLarge, OutboxFull, Site
from reliamsg.aio import Producer

SITES = [Site(*site.split("=", 1)) for site in os.environ["SITES"].split()]
NAME = os.environ.get("PRODUCER", "orders-api")
OUTBOX = Path(os.environ.get("STATE_DIRECTORY", ".")) / "outbox.db"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # A request that finds the outbox full waits for at most two seconds. On shutdown, the server first answers the
    # requests that it has accepted. Then the producer waits up to ten seconds for confirms, and keeps the rest.
    groups = {"orders": ["billing"]}
    async with Producer(NAME, SITES, outbox=OUTBOX, groups=groups, block_timeout=2.0) as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def create_order(
    request: Request, idempotency_key: Annotated[str | None, Header(pattern="^[ -~]{1,255}$")] = None
) -> dict[str, str]:
    producer: Producer = request.app.state.producer
    # A client that gets no answer repeats its request, which is then published twice. The key shows it to consumers.
    try:
        receipt = await producer.publish("orders", await request.body(), key=idempotency_key)
    except MessageTooLarge as error:
        raise HTTPException(413, str(error)) from None
    except OutboxFull:
        raise HTTPException(503, "the outbox is full", {"Retry-After": "10"}) from None
    return {"id": str(receipt.id)}


@app.get("/healthz")
async def healthz(request: Request) -> dict[str, int]:
    """Fails if the producer was stopped by an error; only a restart helps. Sites that are down are no failure: orders
    wait in the outbox, and a restart would not help."""
    producer: Producer = request.app.state.producer
    return {"pending": producer.pending()}
