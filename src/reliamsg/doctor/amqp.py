"""Checks of an AMQP site, once it can be reached. Each looks at answers of the broker and returns one finding."""

from __future__ import annotations

from collections.abc import Sequence

from reliamsg.config import Endpoint, Site
from reliamsg.doctor.client import Client
from reliamsg.doctor.finding import Finding, by_hand, error, ok, unknown, warning
from reliamsg.transport.amqp.examine import Answer, Examined, Questions, QueueAnswers, examine
from reliamsg.transport.base import Binding
from reliamsg.transport.session import Ended
from reliamsg.wire.address import EXCHANGE, group_queue

__all__ = ["check_amqp"]

PERMISSIONS = (
    "grant the permissions in docs/how-to/permissions.md (rabbitmqctl set_permissions, set_topic_permissions)"
)
CREATE = "reliamsg group create, with an account that may declare queues"


def check_amqp(site: Site, endpoint: Endpoint, deadline: float, clients: Sequence[Client]) -> list[Finding]:
    """Log in, and check what each client needs."""
    subject = f"site {site.name}"
    findings: list[Finding] = []
    each: Sequence[Client | None] = clients or [None]
    for client in each:
        found = examine(site, endpoint, deadline, _questions(client))
        if isinstance(found, Ended):
            return [*findings, _not_logged_in(subject, endpoint, found)]
        if not findings:
            findings += [_logged_in(subject, site, found), _exchange(subject, site, found)]
        if client is not None and found.exchange.done:
            findings += _of_client(site, client, found)
    if clients:
        findings.append(_policies(subject))
    return findings


def _questions(client: Client | None) -> Questions:
    if client is None:
        return Questions((), (), (), False)
    return Questions(client.publishes, client.listens, client.bindings, client.role == "group")


def _of_client(site: Site, client: Client, found: Examined) -> list[Finding]:
    subject = f"site {site.name}, {client.subject}"
    findings = [_listening(subject, found), _publishing(subject, found)]
    for binding, answers in found.queues.items():
        findings.append(_queue(subject, site, binding, answers))
        if answers.read is not None:
            findings.append(_reading(subject, binding, answers.read))
        if answers.lock is not None:
            findings.append(_locking(subject, binding, answers.lock))
    return findings


def _not_logged_in(subject: str, endpoint: Endpoint, ended: Ended) -> Finding:
    if ended.credentials:
        remedy = (
            "check user name, password and virtual host: rabbitmqctl authenticate_user, list_user_permissions"
        )
        why = "the broker refuses this client, so messages wait in outboxes"
        return error(subject, "login", f"{endpoint}: {ended.reason}", why=why, remedy=remedy)
    why = "messages wait in outboxes until the site can be used"
    return error(subject, "login", f"{endpoint}: {ended.reason}", why=why, remedy="see the broker's log")


def _logged_in(subject: str, site: Site, found: Examined) -> Finding:
    version = ".".join(map(str, found.version))
    return ok(subject, "login", f"accepted at virtual host {site.vhost}, server version {version}")


def _exchange(subject: str, site: Site, found: Examined) -> Finding:
    declared = found.exchange_declared
    if found.exchange.missing:
        seen = f"exchange {EXCHANGE} does not exist yet"
        if site.declare == "create":
            why = "the first client that connects creates it; until then, permissions can't be checked"
            return warning(subject, "exchange", seen, why=why, remedy=CREATE)
        why = f"no client can connect, since declare={site.declare!r} does not create it"
        return error(subject, "exchange", seen, why=why, remedy=CREATE)
    if not found.exchange.done:
        why = "clients can't use the site"
        return error(subject, "exchange", found.exchange.reason, why=why, remedy=PERMISSIONS)
    if declared is not None and declared.forbidden:
        why = "clients declare it when they connect, and are refused"
        remedy = 'use declare = "passive" (or "none"), or grant the right to configure it'
        return error(subject, "exchange", declared.reason, why=why, remedy=remedy)
    if declared is not None and not declared.done:
        why = "messages may not be routed as clients expect"
        remedy = f"delete exchange {EXCHANGE} while all clients are stopped; the next one creates it (durable, topic)"
        return warning(subject, "exchange", declared.reason, why=why, remedy=remedy)
    return ok(subject, "exchange", f"exchange {EXCHANGE} exists")


def _refused(answers: dict[str, Answer], accepted: str) -> list[str]:
    """The addresses that were refused, with reasons."""
    return [f"{address} ({a.reason})" for address, a in answers.items() if not getattr(a, accepted)]


def _listening(subject: str, found: Examined) -> Finding:
    why = "without control frames, lost messages can't be requested again, nor can consumers report progress"
    if not found.control_queue.done:
        return error(subject, "control", found.control_queue.reason, why=why, remedy=PERMISSIONS)
    refused = _refused(found.listens, "done")
    if refused:
        seen = f"may not listen at {', '.join(refused)}"
        return error(subject, "control", seen, why=why, remedy=PERMISSIONS)
    return ok(subject, "control", f"may listen at {', '.join(found.listens)}")


def _publishing(subject: str, found: Examined) -> Finding:
    unclear = [address for address, answer in found.publishes.items() if answer.done]
    refused = _refused({a: x for a, x in found.publishes.items() if a not in unclear}, "permitted")
    if refused:
        why = "frames to these addresses are refused: messages stay in the outbox, or losses are not repaired"
        return error(
            subject, "publish", f"may not publish to {', '.join(refused)}", why=why, remedy=PERMISSIONS
        )
    if unclear:
        why = "this broker does not behave like RabbitMQ, so the permission is not known"
        return unknown(subject, "publish", f"not checked: {', '.join(unclear)}", why=why, remedy=PERMISSIONS)
    return ok(subject, "publish", f"may publish to {', '.join(found.publishes)}")


def _queue(subject: str, site: Site, binding: Binding, answers: QueueAnswers) -> Finding:
    queue = group_queue(binding.topic, binding.partition, binding.group)
    exists, declared = answers.exists, answers.declared
    if exists.missing:
        return _missing_queue(subject, site, queue, declared)
    if not exists.done:
        why = "clients can't use the queue"
        return error(subject, "queue", f"{queue}: {exists.reason}", why=why, remedy=PERMISSIONS)
    seen = f"{queue}: messages ready: {exists.messages:,}, consumers: {exists.consumers:,}"
    if declared.forbidden and site.declare == "create":
        why = "clients declare the queue when they connect, and are refused"
        remedy = 'use declare = "passive" (or "none"), or grant the right to configure it'
        return error(subject, "queue", f"{queue}: {declared.reason}", why=why, remedy=remedy)
    if declared.forbidden:
        remedy = f"rabbitmqctl list_queues name durable arguments, for {queue}"
        return by_hand(subject, "queue", why=f"{seen}; this account may not see its arguments", remedy=remedy)
    if not declared.done:
        why = (
            "clients use the queue as it is: a delivery limit, a TTL or a maximum length may discard messages without a"
            " trace, and a queue that is not a quorum queue is lost with its node"
        )
        remedy = f"stop the group's consumer once the queue is empty, delete {queue}, and run: reliamsg group create"
        return warning(subject, "queue", f"{queue} differs: {declared.reason}", why=why, remedy=remedy)
    return ok(subject, "queue", seen)


def _missing_queue(subject: str, site: Site, queue: str, declared: Answer) -> Finding:
    seen = f"{queue} does not exist"
    if site.declare != "create":
        why = f"messages for the group are not kept at this site, and declare={site.declare!r} does not create it"
        return error(subject, "queue", seen, why=why, remedy=CREATE)
    if declared.forbidden:
        why = "no message is kept for the group at this site, and this account may not declare the queue"
        return error(
            subject, "queue", f"{seen}: {declared.reason}", why=why, remedy=f"{PERMISSIONS}, or {CREATE}"
        )
    why = "no message is kept for the group until a client that names it connects"
    return warning(subject, "queue", seen, why=why, remedy="start the client, or run: reliamsg group create")


def _reading(subject: str, binding: Binding, read: Answer) -> Finding:
    queue = group_queue(binding.topic, binding.partition, binding.group)
    if read.forbidden:
        return error(subject, "read", read.reason, why="the group gets no messages here", remedy=PERMISSIONS)
    if not read.permitted:
        why = "this broker does not behave like RabbitMQ, so the permission is not known"
        return unknown(subject, "read", f"not checked: {queue}", why=why, remedy=PERMISSIONS)
    return ok(subject, "read", f"may read {queue}")


def _locking(subject: str, binding: Binding, lock: Answer) -> Finding:
    if lock.forbidden:
        why = "the group's consumer can't take the lock that lets it read, so it gets no messages here"
        return error(subject, "lock", lock.reason, why=why, remedy=PERMISSIONS)
    held = " (a consumer holds it)" if lock.code == 405 else ""
    return ok(subject, "lock", f"may take the lock of {binding.topic}{held}")


def _policies(subject: str) -> Finding:
    remedy = "no TTL, length limit or expiry: rabbitmqctl list_queues name effective_policy_definition"
    return by_hand(subject, "policies", why="a policy can make queues discard messages", remedy=remedy)
