"""Name resolution, connections and TLS of a site's endpoints."""

from __future__ import annotations

import socket
import ssl
import time

from reliamsg.config import Endpoint, Site
from reliamsg.doctor.finding import Finding, error, ok, warning
from reliamsg.transport.network import DialError, Waker, dial

__all__ = ["certificate_finding", "check_endpoint", "is_reachable"]

EXPIRY_DAYS = 14
"""A certificate that expires sooner is a warning."""
_UNREACHABLE = "messages wait in outboxes until the site can be reached"


def is_reachable(findings: list[Finding]) -> bool:
    """Whether an endpoint with these findings can be used."""
    return all(found.severity != "error" for found in findings)


def check_endpoint(site: Site, endpoint: Endpoint, deadline: float) -> list[Finding]:
    """Resolve the name, connect, and with TLS verify the certificate, as clients do."""
    subject = f"site {site.name}"
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        remedy = f"correct the host in the site's URL, or the DNS: getent hosts {endpoint.host}"
        return [error(subject, "resolve", f"{endpoint.host}: {reason}", why=_UNREACHABLE, remedy=remedy)]
    addresses = ", ".join(sorted({str(address[0]) for *_, address in found}))
    findings = [ok(subject, "resolve", f"{endpoint.host} is {addresses}")]
    waker = Waker()
    try:
        dial(endpoint, None, deadline, waker, lambda: False).close()
    except DialError as problem:
        remedy = (
            f"check that the broker runs, and firewalls on the way: nc -vz {endpoint.host} {endpoint.port}"
        )
        return [
            *findings,
            error(subject, "connect", f"{endpoint}: {problem}", why=_UNREACHABLE, remedy=remedy),
        ]
    finally:
        waker.close()
    findings.append(ok(subject, "connect", f"{endpoint} accepts connections"))
    context = site.tls_context()
    if context is not None:
        findings.append(_check_tls(subject, endpoint, context, deadline))
    return findings


def _check_tls(subject: str, endpoint: Endpoint, context: ssl.SSLContext, deadline: float) -> Finding:
    waker = Waker()
    try:
        secured = dial(endpoint, context, deadline, waker, lambda: False)
    except DialError as problem:
        return error(
            subject, "tls", f"{endpoint}: {problem}", why=_UNREACHABLE, remedy=_tls_remedy(str(problem))
        )
    finally:
        waker.close()
    with secured:
        assert isinstance(secured, ssl.SSLSocket)
        certificate = secured.getpeercert() or {}
    expiry = certificate.get("notAfter")
    if not isinstance(expiry, str):
        remedy = "verify certificates: remove verify_mode = CERT_NONE from the context"
        why = "anyone on the way can pose as the broker"
        return warning(subject, "tls", f"{endpoint}: the certificate is not verified", why=why, remedy=remedy)
    return certificate_finding(subject, endpoint, ssl.cert_time_to_seconds(expiry) - time.time())


def certificate_finding(subject: str, endpoint: Endpoint, seconds_left: float) -> Finding:
    """The finding for a valid certificate that expires in `seconds_left`."""
    days = seconds_left / 86_400
    seen = f"{endpoint}: the certificate is valid for another {days:.1f} days"
    if days >= EXPIRY_DAYS:
        return ok(subject, "tls", seen)
    why = "after that, no client connects"
    return warning(
        subject, "tls", seen, why=why, remedy="renew the broker's certificate, and have the broker load it"
    )


def _tls_remedy(problem: str) -> str:
    text = problem.lower()
    if "expired" in text:
        return "renew the broker's certificate, and have the broker load it"
    if "mismatch" in text or "not valid for" in text:
        return (
            "use a host name in the site's URL that the certificate has, or issue a certificate for this name"
        )
    if "issuer" in text or "self-signed" in text or "self signed" in text:
        return "name the authority that issued the certificate: tls = { cafile = … }, or --cafile"
    if "certificate_required" in text or "certificate required" in text:
        return "give a client certificate: tls = { certfile = …, keyfile = … }, or --certfile and --keyfile"
    return "check that this port speaks TLS, and the clocks of both machines: openssl s_client -connect HOST:PORT"
