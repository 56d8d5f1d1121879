"""A small MQTT broker, played by scripts, that closes the connection over what it does not permit."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tests.transport.mqtt_scripted import Peer


@dataclass
class Client:
    """One connection."""

    name: str
    peer: Peer
    v5: bool
    addresses: set[str] = field(default_factory=set)


class Picky:
    """A script for :class:`~tests.transport.mqtt_scripted.ScriptedBroker`, the same for all connections.

    Hands control frames at QoS 0 to those who have subscribed, answers pings, and ends a connection that publishes or
    subscribes to what is forbidden, without a word.
    """

    def __init__(self) -> None:
        self.forbidden: set[str] = set()
        """Addresses that nobody may publish to."""
        self.private: set[str] = set()
        """Addresses that nobody may subscribe to."""
        self.connects: list[str] = []
        """Client ids, in the order in which they connected."""
        self.closed: list[tuple[str, str]] = []
        """Client id and address of each connection that was ended over one."""
        self.taken: list[tuple[str, str]] = []
        """Client id and address of each control frame that was let through."""
        self.stored: list[bytes] = []
        """Messages of the group's session that are not acknowledged; sent on every connect, all at once."""
        self.acknowledged = 0
        """How many messages have been acknowledged, and are not sent any more."""
        self.clients: list[Client] = []
        self._lock = threading.Lock()

    def __call__(self, peer: Peer) -> None:
        body = peer.expect(1)
        v5 = body[6] == 5
        at = 10 + (1 + body[10] if v5 else 0)
        name = body[at + 2 : at + 2 + int.from_bytes(body[at : at + 2], "big")].decode()
        client = Client(name, peer, v5)
        with self._lock:
            self.connects.append(name)
            self.clients.append(client)
        try:
            self._send(client, 0x20, b"\1\0" + (b"\0" if v5 else b""))
            while self._packet(client):
                pass
        finally:
            with self._lock:
                self.clients.remove(client)

    def _send(self, client: Client, first: int, body: bytes) -> None:
        with self._lock:
            client.peer.send(first, body)

    def _packet(self, client: Client) -> bool:
        first, body = client.peer.packet()
        kind = first >> 4
        if kind == 3:
            return self._published(client, first, body)
        if kind == 4:
            with self._lock:
                self.acknowledged += 1
        elif kind == 8:
            return self._subscribed(client, body)
        elif kind == 10:
            for address in _filters(body, client.v5, options=False):
                client.addresses.discard(address)
            self._send(client, 0xB0, body[:2] + (b"\0\0" if client.v5 else b""))
        elif kind == 12:
            self._send(client, 0xD0, b"")
        return kind != 14

    def _published(self, client: Client, first: int, body: bytes) -> bool:
        end = 2 + int.from_bytes(body[:2], "big")
        address = body[2:end].decode()
        if address in self.forbidden:
            self.closed.append((client.name, address))
            return False
        if first >> 1 & 3:
            self._send(client, 0x40, body[end : end + 2])
            return True
        self.taken.append((client.name, address))
        self.say(address, body[end + (1 + body[end] if client.v5 else 0) :])
        return True

    def _subscribed(self, client: Client, body: bytes) -> bool:
        wanted = _filters(body, client.v5, options=True)
        for address in wanted:
            if address in self.private:
                self.closed.append((client.name, address))
                return False
        client.addresses.update(wanted)
        data = any(":" not in address for address in wanted)
        grants = b"".join(b"\0" if ":" in address else b"\1" for address in wanted)
        self._send(client, 0x90, body[:2] + (b"\0" if client.v5 else b"") + grants)
        if data:
            self._send_stored(client)
        return True

    def _send_stored(self, client: Client) -> None:
        """Everything that is not acknowledged, with no regard to what a client can hold."""
        topic = next(address for address in client.addresses if ":" not in address).encode()
        for mid in range(self.acknowledged + 1, len(self.stored) + 1):
            head = len(topic).to_bytes(2, "big") + topic + mid.to_bytes(2, "big")
            self._send(client, 0x32, head + (b"\0" if client.v5 else b"") + self.stored[mid - 1])

    def say(self, address: str, body: bytes) -> int:
        """Hand a control frame to those who listen; returns their number."""
        with self._lock:
            found = [client for client in self.clients if address in client.addresses]
        head = len(address.encode()).to_bytes(2, "big") + address.encode()
        for client in found:
            self._send(client, 0x30, head + (b"\0" if client.v5 else b"") + body)
        return len(found)


def _filters(body: bytes, v5: bool, *, options: bool) -> list[str]:
    at, found = 2 + (1 + body[2] if v5 else 0), []
    while at < len(body):
        size = int.from_bytes(body[at : at + 2], "big")
        found.append(body[at + 2 : at + 2 + size].decode())
        at += 2 + size + (1 if options else 0)
    return found
