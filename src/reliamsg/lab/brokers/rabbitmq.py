"""A RabbitMQ node on this machine, isolated from everything else that runs here.

It has its own directory, ports, Erlang cookie and port mapper daemon (epmd), so several nodes can run at the same time,
and nothing remains when they stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from reliamsg.lab.brokers.base import Broker, TlsFiles
from reliamsg.lab.brokers.modules import link_modules
from reliamsg.lab.process import Child, LabError, free_port, program, wait_until

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

__all__ = ["RabbitNode"]

_PLACES = ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin")
"""Directories with the server's own scripts. Debian's wrappers on PATH change the user and the directory."""

_STARTING = "requires the 'rabbit' app to be running"
"""What rabbitmqctl reports about a node that is still starting."""

_QUIET_SCHEDULERS = "+sbwt none +sbwtdcpu none +sbwtdio none"
"""No busy waiting: otherwise idle Erlang schedulers use processors that others need."""

_LEADERLESS = re.compile(r"(\S+ \S+) \[\w+\] \S+ \{'([^']+)',[^}]+\}: leader call - leader not known")
"""A log entry about a quorum queue without a leader that a client uses: its time, and the queue."""


class RabbitNode(Broker):
    """A RabbitMQ node at ``127.0.0.1``, with user and password ``guest``.

    >>> with RabbitNode(directory) as node:                        # doctest: +SKIP
    ...     Producer("p", [Site("dc1", node.url)], outbox="p.db")
    """

    _KIND: ClassVar[str] = "RabbitMQ"
    _NAMES: ClassVar[str] = "-sname"
    """The option for the kind of its Erlang name."""
    _STOP_SECONDS: ClassVar[float] = 60.0
    _POLL_SECONDS: ClassVar[float] = 0.1

    def __init__(
        self,
        directory: Path | str,
        name: str = "rabbit",
        *,
        port: int | None = None,
        config: Sequence[str] = (),
        plugins: Sequence[str] = (),
        tls: TlsFiles | None = None,
        schedulers: int = 1,
        start_timeout: float = 120.0,
    ) -> None:
        """Prepare a node in `directory`; :meth:`start` starts it.

        `config`: additional lines of rabbitmq.conf. `plugins`: such as ``rabbitmq_mqtt`` and ``rabbitmq_stream``,
        which get their own ports (`mqtt_url`, `stream_port`). `tls`: adds a TLS listener (`tls_url`). `schedulers`:
        how many processors it uses. `start_timeout`: seconds.
        """
        self._server = program("rabbitmq-server", "rabbitmq-server", *_PLACES)
        self._ctl = program("rabbitmqctl", "rabbitmq-server", *_PLACES)
        self._epmd_program = program("epmd", "erlang-base")
        self._erl_call = program("erl_call", "erlang-base")
        super().__init__(directory, name, port, start_timeout)
        self._mqtt_port = self._pick_port(1883) if "rabbitmq_mqtt" in plugins else None
        self._stream_port = self._pick_port(5552) if "rabbitmq_stream" in plugins else None
        self._tls_port = self._pick_port(5671) if tls else None
        self._dist_port = self._pick_port(25672)
        self._epmd_port = self._pick_port(4369)
        self._epmd: Child | None = None
        self._complete = False
        """Whether the node is known to have started completely, so that rabbitmqctl works."""
        self._write_files(config, plugins, tls)
        self._environment = self._make_environment(schedulers) | self._link_modules(plugins)

    # Where it runs: on this machine itself, unless a subclass overrides these.

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return "127.0.0.1"

    def _pick_port(self, usual: int) -> int:
        """A port for the service whose default port is `usual`."""
        return free_port()

    @property
    def _nodename(self) -> str:
        return f"{self._name}@localhost"

    def _inside(self, command: Sequence[str]) -> list[str]:
        """The command that runs `command` where the node runs."""
        return list(command)

    def _write_files(self, config: Sequence[str], plugins: Sequence[str], tls: TlsFiles | None) -> None:
        home = self.directory / "home"
        home.mkdir(parents=True, exist_ok=True)
        cookie = home / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)
        lines = [
            f"listeners.tcp.1 = {self.host}:{self._port}",
            # The defaults are for a dedicated machine: half a gigabyte per write-ahead log, and an alarm that blocks
            # all publishers when disk space is low.
            "raft.wal_max_size_bytes = 67108864",
            "disk_free_limit.absolute = 50MB",
        ]
        if self._mqtt_port is not None:
            lines.append(f"mqtt.listeners.tcp.1 = {self.host}:{self._mqtt_port}")
        if self._stream_port is not None:
            lines += [
                f"stream.listeners.tcp.1 = {self.host}:{self._stream_port}",
                # The address that clients are given for a stream.
                f"stream.advertised_host = {self.host}",
                f"stream.advertised_port = {self._stream_port}",
            ]
        if tls is not None:
            lines += [
                f"listeners.ssl.1 = {self.host}:{self._tls_port}",
                f"ssl_options.cacertfile = {tls.authority}",
                f"ssl_options.certfile = {tls.certificate}",
                f"ssl_options.keyfile = {tls.key}",
                "ssl_options.verify = verify_none",
                "ssl_options.fail_if_no_peer_cert = false",
            ]
        self._place("rabbitmq.conf").write_text("\n".join([*lines, *config]) + "\n")
        self._place("enabled_plugins").write_text(f"[{','.join(plugins)}].\n")

    def _make_environment(self, schedulers: int) -> dict[str, str]:
        return {
            "HOME": str(self.directory / "home"),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": self.host,
            "ERL_CRASH_DUMP": str(self._place("erl_crash.dump")),
            "RABBITMQ_NODENAME": self._nodename,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONFIG_FILE": str(self._place("rabbitmq")),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._place("enabled_plugins")),
            "RABBITMQ_MNESIA_BASE": str(self._place("data")),
            "RABBITMQ_LOG_BASE": str(self._place("log")),
            "RABBITMQ_PID_FILE": str(self._place("pid")),
            # With input allowed, the script replaces itself with the Erlang machine, so that our child is the node
            # itself; -noinput then disables input.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S {schedulers}:{schedulers} {_QUIET_SCHEDULERS}"
            # Quorum queues report their length at every tick, by default every 5 s.
            " -rabbit quorum_tick_interval 1000 -noinput",
            "RABBITMQ_CTL_ERL_ARGS": f"+S 1:1 {_QUIET_SCHEDULERS}",
        }

    def _link_modules(self, plugins: Sequence[str]) -> dict[str, str]:
        erlang = program("erl", "erlang-base")
        return link_modules(self._server, erlang, plugins, self._place("plugins"))

    def _place(self, name: str) -> Path:
        return self.directory / name

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self._port}/%2F"

    @property
    def mqtt_url(self) -> str:
        """For the plugin ``rabbitmq_mqtt``."""
        if self._mqtt_port is None:
            raise LabError(f"{self._name} was created without the plugin rabbitmq_mqtt")
        return f"mqtt://guest:guest@{self.host}:{self._mqtt_port}"

    @property
    def stream_port(self) -> int:
        """For the plugin ``rabbitmq_stream``."""
        if self._stream_port is None:
            raise LabError(f"{self._name} was created without the plugin rabbitmq_stream")
        return self._stream_port

    @property
    def tls_url(self) -> str:
        """For the TLS listener; the certificate must be valid for ``127.0.0.1``."""
        if self._tls_port is None:
            raise LabError(f"{self._name} was created without tls")
        return f"amqps://guest:guest@{self.host}:{self._tls_port}/%2F"

    def _launch(self) -> Child:
        self._kill_epmd()
        self._complete = False
        epmd = [self._epmd_program, "-port", str(self._epmd_port), "-address", self.host]
        self._epmd = Child(f"epmd of {self._name}", self._inside(epmd), output=self._place("epmd.out"))
        wait_until(lambda: _listens(self.host, self._epmd_port), 60.0, "epmd answers", self._epmd)
        server = self._inside([self._server])
        return Child(self._name, server, output=self._place("out"), environment=self._environment)

    def _ready(self) -> str:
        return f"{super()._ready()} (its log: {self._place('log')})"

    def _answers(self) -> bool:
        """Whether an AMQP handshake is answered; the listener is opened last."""
        with contextlib.suppress(OSError), _connect(self.host, self._port) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            return client.recv(1) == b"\x01"
        return False

    def kill(self) -> None:
        """Send SIGKILL to the node."""
        super().kill()
        self._kill_epmd()

    def stop(self) -> None:
        """Stop the node cleanly; kill it if that takes longer than a minute."""
        super().stop()
        self._kill_epmd()

    def _kill_epmd(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd = None

    def _delete_data(self) -> None:
        """Queues, messages and users."""
        shutil.rmtree(self._place("data"), ignore_errors=True)

    def ctl(self, *args: str, timeout: float = 120.0) -> str:
        """Run ``rabbitmqctl -q ARGS`` on this node, and return its output. It takes a second or two.

        Raises LabError if that fails or takes longer than `timeout` seconds.
        """
        try:
            return self._run_ctl(args, timeout)
        except LabError as error:
            if self._complete or _STARTING not in str(error):
                raise
        # The node accepts clients as soon as it listens, and commands a moment later, once it has started completely.
        self._run_ctl(("await_startup",), timeout)
        self._complete = True
        return self._run_ctl(args, timeout)

    def _run_ctl(self, args: Sequence[str], timeout: float) -> str:
        command = self._inside([self._ctl, "-q", *args])
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"rabbitmqctl {' '.join(args)}: no answer within {timeout:g} s") from None
        if done.returncode:
            raise LabError(f"rabbitmqctl {' '.join(args)} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def leaderless_queues(self, since: datetime) -> set[str]:
        """Quorum queues, as ``vhost_queue``, for which the node has logged since then that it knows no leader. RabbitMQ
        3.10 can leave a queue in this state for good if it is killed soon after it has created it: messages for it are
        never confirmed."""
        found = set()
        for file in self._place("log").glob("*.log"):
            for line in file.read_text(errors="replace").splitlines():
                entry = _LEADERLESS.match(line)
                if entry and datetime.fromisoformat(entry[1]) >= since:
                    found.add(entry[2])
        return found

    def evaluate(self, expression: str) -> str:
        """Evaluate an Erlang expression in the node itself. It takes milliseconds, unlike rabbitmqctl.

        Raises LabError if that fails.
        """
        answer = self._erl(["-e"], expression + "\n")
        if not answer.startswith("{ok, "):
            raise LabError(f"{self._nodename}: {expression} failed: {answer}")
        return answer.removeprefix("{ok, ").removesuffix("}")

    def _erl(self, what: Sequence[str], stdin: str) -> str:
        cookie = (self.directory / "home" / ".erlang.cookie").read_text()
        command = [self._erl_call, "-c", cookie, self._NAMES, self._nodename, *what]
        try:
            done = subprocess.run(
                self._inside(command), env={**os.environ, **self._environment}, input=stdin,
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LabError(f"{self._nodename}: no answer to {what} {stdin} within 60 s") from None
        if done.returncode:
            raise LabError(f"{self._nodename}: {what} failed: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout.strip()

    def memory_alarm(self, on: bool) -> None:
        """Raise or clear the node's memory alarm, which blocks publishers."""
        self.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({0.0001 if on else 0.4}).")

    def has_recorded(self, queue: str) -> bool:
        """Whether the node has recorded on disk that this quorum queue exists; takes milliseconds.

        RabbitMQ 3.10 does so up to a second after it has created a queue, but confirms messages before. If it is killed
        in between, it restarts with an empty queue of that name that never elects a leader: confirmed messages are
        lost, and new ones are neither confirmed nor returned until the queue is deleted. Wait for this before a kill
        that is meant to test something else.
        """
        files = self._place("data").glob("*/quorum/*/names.dets")
        return any(queue.encode() in path.read_bytes() for path in files)

    def queues(self, vhost: str = "/") -> dict[str, int]:
        """All queues with their number of messages, including unacknowledged ones.

        Takes half a second or more; the numbers of quorum queues may be a second old.
        """
        rows = json.loads(self.ctl("list_queues", "-p", vhost, "--formatter", "json", "name", "messages"))
        return {row["name"]: int(row["messages"]) for row in rows}

    def queue_depth(self, queue: str, vhost: str = "/") -> int:
        """The number of messages that are ready in one queue, without unacknowledged ones; takes milliseconds.

        Raises LabError if there is no such queue. For half a second after a restart, a quorum queue has no leader, and
        RabbitMQ reports 0: wait for the number that you expect.
        """
        from pika.exceptions import ChannelClosedByBroker

        with self.channel(vhost) as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).method.message_count)
            except ChannelClosedByBroker as error:
                raise LabError(f"{self._name}: queue {queue!r}: {error.reply_text}") from None

    @contextlib.contextmanager
    def channel(self, vhost: str = "/") -> Iterator[BlockingChannel]:
        """A channel for administration, on a connection of its own."""
        import pika

        login = pika.PlainCredentials("guest", "guest")
        parameters = pika.ConnectionParameters(
            self.host, self._port, vhost, login, heartbeat=0, blocked_connection_timeout=30
        )
        with contextlib.closing(pika.BlockingConnection(parameters)) as connection:
            yield connection.channel()


def _connect(host: str, port: int) -> socket.socket:
    return socket.create_connection((host, port), timeout=2.0)


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), _connect(host, port):
        return True
    return False
