"""Creating and deleting groups at MQTT sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from reliamsg.config import Endpoint, Site
from reliamsg.errors import ConfigError, TransientError
from reliamsg.keys import KeyRing
from reliamsg.logs import Log
from reliamsg.transport.base import Binding
from reliamsg.transport.mqtt.connection import MqttConnection
from reliamsg.transport.mqtt.connector import Connector
from reliamsg.transport.mqtt.receive_window import window_of
from reliamsg.transport.mqtt.topology import proofs_of, subscribe, topics_of
from reliamsg.transport.network import Waker
from reliamsg.transport.session import Ended
from reliamsg.wire.address import client_id, created_address
from reliamsg.wire.control import encode_mark

__all__ = ["create_group", "delete_group", "turn_until"]

log: Log = Log(__name__)

Work = Callable[[MqttConnection, Sequence[Binding], float], str | None]
"""What to do for one group by a deadline; returns the problem, if there is one."""


def create_group(
    site: Site, bindings: Sequence[Binding], timeout: float, keys: KeyRing | None = None
) -> None:
    """Create the persistent sessions of the groups in `bindings`, so that `site` stores messages for them from now on,
    and leave marks that tell producers so, signed if `keys` are given.

    Connects as each group, subscribes, and disconnects, within `timeout` seconds in total. A group whose
    consumer is connected at the time is interrupted: it loses its connection to this call and reconnects,
    and unacknowledged messages are delivered to it again.

    Raises :class:`ConfigError` for a refused login, :class:`TransientError` for a site that can't be reached
    or refuses the subscription.
    """
    marks = {address: encode_mark(address, keys) for address in map(_mark_of, bindings)}

    def create(connection: MqttConnection, its: Sequence[Binding], deadline: float) -> str | None:
        wrong = subscribe(connection, topics_of(its), deadline, lambda: False, window_of(site))
        if wrong is None:
            _leave_marks(
                connection, site, {_mark_of(binding): marks[_mark_of(binding)] for binding in its}, deadline
            )
            asked = connection.collect(proofs_of(its))
            if (
                not turn_until(connection, deadline, lambda: asked in connection.answered)
                or asked in connection.denied
            ):
                log.warning(
                    "transport.proof_refused",
                    "site %(site)s: the broker refuses the subscription to the group's proof address",
                    site=site.name,
                )
        return wrong

    _for_each_group(site, bindings, timeout, "created", create, keep=True)


def delete_group(site: Site, bindings: Sequence[Binding], timeout: float) -> None:
    """Delete the persistent sessions of the groups in `bindings`, with everything stored in them for any topic, and
    their marks. Blocks and raises as :func:`create_group` does."""

    def delete(connection: MqttConnection, its: Sequence[Binding], deadline: float) -> str | None:
        _leave_marks(connection, site, {_mark_of(binding): b"" for binding in its}, deadline)
        return None

    _for_each_group(site, bindings, timeout, "deleted", delete, keep=False)


def _mark_of(binding: Binding) -> str:
    return created_address(binding.topic, binding.partition, binding.group)


def _for_each_group(
    site: Site, bindings: Sequence[Binding], timeout: float, what: str, work: Work, keep: bool
) -> None:
    """Connect as each group in turn and do its `work`, which returns the problem, if there is one. Without `keep`, the
    group's session ends with the connection."""
    deadline = time.monotonic() + timeout
    waker = Waker()
    try:
        for group in sorted({binding.group for binding in bindings}):
            its = [binding for binding in bindings if binding.group == group]
            connector = Connector(site, client_id(group), waker, lambda: False, prefetch=site.prefetch)
            if not keep:
                connector = connector.without_session(client_id(group))
            ended = Ended("no time left")
            for number, endpoint in enumerate(site.endpoints):
                now = time.monotonic()
                share = (deadline - now) / (len(site.endpoints) - number)
                until = now + min(site.connect_timeout, share)
                ended_or_none = _work_once(connector, endpoint, site, its, work, until)
                if ended_or_none is None:
                    break
                ended = ended_or_none
            else:
                error = ConfigError if ended.credentials else TransientError
                raise error(f"site {site.name}: group {group!r} could not be {what}: {ended.reason}")
    finally:
        waker.close()


def _work_once(
    connector: Connector,
    endpoint: Endpoint,
    site: Site,
    bindings: Sequence[Binding],
    work: Work,
    deadline: float,
) -> Ended | None:
    connection = connector.open(endpoint, site.login(), deadline)
    if isinstance(connection, Ended):
        return connection
    try:
        wrong = work(connection, bindings, deadline)
        if wrong is not None:
            return Ended(wrong)
        connection.disconnect(deadline)
        return None
    finally:
        connection.close()


def _leave_marks(connection: MqttConnection, site: Site, marks: Mapping[str, bytes], deadline: float) -> None:
    """Have the broker retain these. A refusal is not a failure: producers may not need marks."""
    waiting = {connection.publish(address, body, b"\0", retain=True) for address, body in marks.items()}
    refusals: list[str] = []

    def answered() -> bool:
        for puback in connection.take_pubacks():
            waiting.discard(puback.mid)
            refusals.extend([puback.refusal] if puback.refusal else [])
        return not waiting

    if not turn_until(connection, deadline, answered) or refusals:
        log.warning(
            "transport.mark_not_changed",
            "site %(site)s: the group's mark could not be changed (%(reason)s)",
            site=site.name,
            reason="; ".join(refusals) or connection.reason,
        )


def turn_until(connection: MqttConnection, deadline: float, done: Callable[[], bool]) -> bool:
    """Serve the connection until `done`; return False if it is not by the deadline."""
    while not done():
        left = deadline - time.monotonic()
        if left <= 0 or not connection.turn(left):
            return done()
    return True
