"""Checks of an MQTT site, once it can be reached. Each looks at answers of the broker and returns one finding."""

from __future__ import annotations

from collections.abc import Sequence

from reliamsg.config import Endpoint, Site
from reliamsg.doctor.client import Client
from reliamsg.doctor.finding import Finding, by_hand, error, ok, unknown, warning
from reliamsg.transport.mqtt.examine import MqttExamined, examine
from reliamsg.transport.session import Ended

__all__ = ["check_mqtt"]

ACCESS = "grant the access in docs/how-to/permissions.md (for Mosquitto, in the file that acl_file names)"
DAY_S = 86_400


def check_mqtt(site: Site, endpoint: Endpoint, deadline: float, clients: Sequence[Client]) -> list[Finding]:
    """Log in, and check what the broker offers."""
    subject = f"site {site.name}"
    listens = sorted({address for client in clients for address in client.listens})
    found = examine(site, endpoint, deadline, listens)
    if isinstance(found, Ended):
        why = "the broker refuses this client, so messages wait in outboxes"
        remedy = "check user name and password, and mqtt_version; see the broker's log"
        return [error(subject, "login", f"{endpoint}: {found.reason}", why=why, remedy=remedy)]
    findings = [
        ok(subject, "login", "accepted"),
        _version(subject, clients, found),
        _session(subject, found),
        _retain(subject, site, found),
        _limits(subject, site, found),
        _proof(subject, site, found),
    ]
    if listens:
        findings.append(_listening(subject, listens, found))
    return [*findings, _queue_limit(subject), _access(subject, clients)]


def _version(subject: str, clients: Sequence[Client], found: MqttExamined) -> Finding:
    if found.version == "5":
        return ok(subject, "version", "MQTT 5")
    why = "with MQTT 3.1.1, a broker can't refuse a message, or say that nobody subscribes: it confirms and drops it"
    return warning(
        subject, "version", "MQTT 3.1.1", why=why, remedy="use a broker, and a listener, with MQTT 5"
    )


def _session(subject: str, found: MqttExamined) -> Finding:
    why = "a group whose consumer is away that long loses its session, with all messages in it"
    remedy = (
        "let sessions never expire: RabbitMQ mqtt.max_session_expiry_interval_seconds = infinity (before 3.13"
        " mqtt.subscription_ttl = undefined), Mosquitto no persistent_client_expiration"
    )
    if found.version != "5":
        return by_hand(subject, "session", why=why, remedy=f"MQTT 3.1.1 does not show it: {remedy}")
    expiry = found.connack.session_expiry
    if expiry is None or expiry == 0xFFFFFFFF:
        return ok(subject, "session", "the broker accepts sessions that never expire")
    seen = f"the broker ends sessions {expiry:,} s after the client has gone"
    if expiry < DAY_S:
        return error(subject, "session", seen, why=why, remedy=remedy)
    return warning(subject, "session", seen, why=why, remedy=remedy)


def _retain(subject: str, site: Site, found: MqttExamined) -> Finding:
    if found.connack.retain_available:
        return ok(subject, "retain", "retained messages are available")
    why = "groups can't leave the mark that shows producers that they exist, where the broker does not report it"
    remedy = 'allow retained messages, or use declare = "none" and make sure that groups exist'
    return warning(subject, "retain", "the broker has no retained messages", why=why, remedy=remedy)


def _limits(subject: str, site: Site, found: MqttExamined) -> Finding:
    connack = found.connack
    size = connack.maximum_packet_size
    seen = f"maximum QoS {connack.maximum_qos}, receive maximum {connack.receive_maximum:,}"
    seen += "" if size is None else f", maximum packet size {size:,}"
    seen += "" if connack.shared_subscriptions else ", no shared subscriptions (not needed)"
    if size is not None and size < 512 * 1024:
        why = "larger batches are split, and a stream stops here at a message that does not fit"
        remedy = f"raise the broker's limit (Mosquitto max_packet_size) to {site.max_frame_bytes} bytes"
        return warning(subject, "limits", seen, why=why, remedy=remedy)
    if connack.receive_maximum < 10:
        why = "so few unconfirmed batches at a time make publishing slow"
        remedy = "raise the broker's receive maximum (Mosquitto max_inflight_messages)"
        return warning(subject, "limits", seen, why=why, remedy=remedy)
    return ok(subject, "limits", seen)


def _proof(subject: str, site: Site, found: MqttExamined) -> Finding:
    if not found.proof_answered:
        why = "producers ask the broker in this way whether groups exist"
        remedy = "see the broker's log, and try again"
        return unknown(subject, "proof", "the broker did not answer a message", why=why, remedy=remedy)
    if found.proof_refused is not None:
        seen = f"may not publish to reliamsg:proof:/+: {found.proof_refused}"
        why = "a producer then sees only groups whose consumers run; others count as unseen, and fill the outbox"
        return warning(subject, "proof", seen, why=why, remedy=ACCESS)
    if found.reports_subscribers:
        return ok(subject, "proof", "the broker reports addresses without a subscriber")
    return ok(subject, "proof", "the broker does not report addresses without a subscriber: marks are used")


def _listening(subject: str, listens: Sequence[str], found: MqttExamined) -> Finding:
    why = "without control frames, lost messages can't be requested again, nor can consumers report progress"
    if found.refused:
        seen = ", ".join(f"{address} ({reason})" for address, reason in sorted(found.refused.items()))
        return error(subject, "control", f"may not listen at {seen}", why=why, remedy=ACCESS)
    if found.unanswered:
        seen = f"no answer to subscriptions: {', '.join(found.unanswered)}"
        return unknown(subject, "control", seen, why=why, remedy="see the broker's log, and try again")
    return ok(subject, "control", f"subscriptions are accepted: {', '.join(listens)}")


def _queue_limit(subject: str) -> Finding:
    why = "beyond such a limit, a broker silently drops messages for consumers that are away (Mosquitto: after 1,000)"
    remedy = (
        "Mosquitto: max_queued_messages 0, max_queued_bytes 0 and persistence true; other brokers likewise"
    )
    return by_hand(subject, "queue limit", why=why, remedy=remedy)


def _access(subject: str, clients: Sequence[Client]) -> Finding:
    topics = ", ".join(sorted({topic for client in clients for topic in client.groups})) or "topics"
    why = "MQTT has no way to ask, and brokers may accept a subscription without delivering anything"
    remedy = f"compare the access to {topics} and to control addresses with docs/how-to/permissions.md"
    return by_hand(subject, "access", why=why, remedy=remedy)
