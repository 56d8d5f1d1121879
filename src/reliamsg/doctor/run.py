"""Runs the checks: those of each site in a thread with a time limit, then those of files."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from reliamsg.config import Site
from reliamsg.doctor.amqp import check_amqp
from reliamsg.doctor.client import Client
from reliamsg.doctor.files import check_files
from reliamsg.doctor.finding import Finding, by_hand, error, ok, unknown
from reliamsg.doctor.mqtt import check_mqtt
from reliamsg.doctor.network import check_endpoint, is_reachable
from reliamsg.errors import ReliamsgError

__all__ = ["check_all"]

GRACE_S = 8.0
"""How long after its time limit a site's checks may clean up."""


def check_all(sites: Sequence[Site], clients: Sequence[Client], timeout: float) -> list[Finding]:
    """Examine sites, each within about `timeout` seconds and side by side, and the files of clients.

    Nothing is consumed, and nothing stays at brokers or on disks. Clients may run meanwhile.
    """
    runs = [_SiteRun(site, [client for client in clients if client.uses(site)], timeout) for site in sites]
    local = [finding for client in clients for finding in check_files(client)]
    findings = [finding for run in runs for finding in run.result()] + local
    if sites:
        findings.append(_clocks())
    return findings


class _SiteRun:
    """The checks of one site, in a thread: a name look-up, for example, can't be interrupted."""

    def __init__(self, site: Site, clients: Sequence[Client], timeout: float) -> None:
        self._site, self._clients, self._timeout = site, clients, timeout
        self._findings: list[Finding] | None = None
        self._latest = time.monotonic() + timeout + GRACE_S
        self._thread = threading.Thread(target=self._run, name=f"reliamsg-doctor-{site.name}", daemon=True)
        self._thread.start()

    def result(self) -> list[Finding]:
        """What was found, once the checks are done or the time is up."""
        self._thread.join(max(0.0, self._latest - time.monotonic()))
        findings = self._findings
        if findings is not None:
            return findings
        why = "clients wait as long when they connect"
        remedy = "check name servers and the network, or give more time with --timeout"
        seen = f"the checks did not end within {self._timeout:g} s"
        return [unknown(f"site {self._site.name}", "timeout", seen, why=why, remedy=remedy)]

    def _run(self) -> None:
        deadline = time.monotonic() + self._timeout
        try:
            self._findings = check_site(self._site, self._clients, deadline)
        except ReliamsgError as problem:  # of a password that can't be read
            why, remedy = "no client can log in", "correct the configuration"
            self._findings = [error(f"site {self._site.name}", "login", str(problem), why=why, remedy=remedy)]
        except Exception as problem:  # noqa: BLE001  # must not vanish with the thread
            why, remedy = "this is a defect of reliamsg doctor", "report it"
            seen = f"internal error: {type(problem).__name__}: {problem}"
            self._findings = [unknown(f"site {self._site.name}", "internal", seen, why=why, remedy=remedy)]


def check_site(site: Site, clients: Sequence[Client], deadline: float) -> list[Finding]:
    """Check all endpoints of a site, and at the first that can be used what clients may do there."""
    if site.scheme == "memory":
        return [ok(f"site {site.name}", "connect", "in the memory of the client's process: nothing to check")]
    findings: list[Finding] = []
    usable = []
    for number, endpoint in enumerate(site.endpoints):
        now = time.monotonic()
        share = now + (deadline - now) / (len(site.endpoints) - number + 1)
        found = check_endpoint(site, endpoint, share)
        findings += found
        if is_reachable(found):
            usable.append(endpoint)
    if usable:
        check = check_amqp if site.protocol == "amqp" else check_mqtt
        findings += check(site, usable[0], deadline, clients)
    return findings


def _clocks() -> Finding:
    why = (
        "neither AMQP nor MQTT shows the broker's clock; certificates and the latency in audits depend on clocks, the"
        " order of messages does not"
    )
    return by_hand(
        "all machines", "clock", why=why, remedy="timedatectl, or chronyc tracking, on each machine"
    )
