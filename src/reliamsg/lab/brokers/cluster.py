"""RabbitMQ clusters on this machine. Each node runs in its own network namespace and can be isolated or killed.

Requires root, as :mod:`reliamsg.lab.faults.network` does. Clients can reach every node, even one that is isolated from
the other nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal, Self, get_args

from reliamsg.lab.brokers.rabbitmq import RabbitNode
from reliamsg.lab.faults.network import Network
from reliamsg.lab.process import LabError, wait_until

__all__ = ["ClusterNode", "PartitionMode", "RabbitCluster"]

PartitionMode = Literal["ignore", "autoheal", "pause_minority", "pause_if_all_down"]
"""What nodes do in a partition: RabbitMQ's ``cluster_partition_handling``."""

_TICK_SECONDS = 8
"""How long nodes take to detect that they can't reach each other, plus or minus a quarter; the default is 60."""

_COOKIE = "reliamsg-lab"
"""Nodes that share it can communicate; they are alone in their network."""

_POLL_S = 0.5
"""Between two queries of a node while waiting: each query starts two processes."""
_TIMEOUT_S = 240.0
"""How long a cluster may take to form, to detect a partition, or to recover."""


class ClusterNode(RabbitNode):
    """A node of a :class:`RabbitCluster`, at its own address, with the default ports."""

    _NAMES: ClassVar[str] = "-name"

    def __init__(
        self, directory: Path, network: Network, number: int, *, config: Sequence[str], plugins: Sequence[str],
        start_timeout: float = _TIMEOUT_S,
    ) -> None:  # fmt: skip
        """Prepare a node that runs on host `number` of `network`."""
        self.number = number
        self._network = network
        home = Path(directory).resolve() / "home"
        home.mkdir(parents=True, exist_ok=True)
        if not (home / ".erlang.cookie").exists():
            (home / ".erlang.cookie").write_text(_COOKIE)
            (home / ".erlang.cookie").chmod(0o400)
        config = ["loopback_users.guest = false", *config]
        super().__init__(
            directory, "rabbit", port=5672, config=config, plugins=plugins, start_timeout=start_timeout
        )
        self._environment["RABBITMQ_USE_LONGNAME"] = "true"
        self._environment["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] += f" -kernel net_ticktime {_TICK_SECONDS}"

    @property
    def host(self) -> str:
        return self._network.address(self.number)

    def _pick_port(self, usual: int) -> int:
        return usual

    @property
    def _nodename(self) -> str:
        return f"rabbit@{self.host}"

    def _inside(self, command: Sequence[str]) -> list[str]:
        return self._network.inside(self.number, command)

    @property
    def mqtt_address(self) -> tuple[str, int]:
        """Host and port of the plugin ``rabbitmq_mqtt``."""
        if self._mqtt_port is None:
            raise LabError(f"{self._nodename} was made without the plugin rabbitmq_mqtt")
        return self.host, self._mqtt_port

    def serving(self) -> bool:
        """Whether clients can connect: not while it is down, starting, or paused by itself; takes milliseconds."""
        return self._answers()

    def members(self) -> set[int]:
        """The numbers of the nodes that this one is clustered with now, itself included; none while it is paused.

        Takes milliseconds. Raises LabError while the node is down.
        """
        if not self.serving():
            return set()
        return self._ask("rabbit_mnesia cluster_nodes [running]")

    def partitioned_from(self) -> set[int]:
        """The numbers of the nodes from which it is partitioned, by its own knowledge. Takes milliseconds."""
        return self._ask("rabbit_node_monitor partitions []")

    def leaderless(self) -> set[str]:
        """Its classic queues whose leader is gone without a successor. Raises LabError while the node is down."""
        pid = "amqqueue:get_pid(Q)"
        dead = f"is_pid({pid}), node({pid}) =:= node(), not is_process_alive({pid})"
        found = self.evaluate(
            f"[binary_to_list(element(4, amqqueue:get_name(Q))) || Q <- rabbit_amqqueue:list(), {dead}]."
        )
        return set(re.findall(r'"(.*?)"', found))

    def _ask(self, call: str) -> set[int]:
        """The node numbers in the result of a call in the node itself, which is much faster than rabbitmqctl."""
        answer = self._erl(["-a", call], "")
        if not answer.startswith("["):
            raise LabError(f"{self._nodename}: {call} failed: {answer}")
        return {int(number) - 10 for number in re.findall(r"rabbit@\d+\.\d+\.\d+\.(\d+)", answer)}


class RabbitCluster:
    """RabbitMQ nodes, numbered from 1, each in its own network namespace; user and password ``guest``.

    >>> with RabbitCluster(directory, mode="autoheal", mirrored=True) as cluster:     # doctest: +SKIP
    ...     cluster.isolate(3)
    ...     cluster.wait_partitioned(3)
    ...     cluster.heal()
    ...     cluster.wait_whole()

    A context manager: entering starts it and waits until it has formed, leaving kills it and removes its network.
    """

    def __init__(
        self, directory: Path | str, *, mode: PartitionMode, nodes: int = 3, mirrored: bool = False,
        config: Sequence[str] = (), plugins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Prepare a cluster in `directory`.

        `mode`: what nodes do in a partition; with ``pause_if_all_down``, nodes pause if they can't reach node 1.
        `mirrored`: classic queues named ``reliamsg:…`` or ``plain…`` get a mirror on each node (policy
        ``ha-mode: all``). `config`: additional lines of rabbitmq.conf. `plugins`: such as ``rabbitmq_mqtt``.
        """
        if mode not in get_args(PartitionMode):
            raise LabError(f"partition mode {mode!r}: {', '.join(get_args(PartitionMode))} are possible")
        self.mode = mode
        self.mirrored = mirrored
        self.directory: Path = Path(directory).resolve()
        self.network: Network = Network(nodes)
        self.nodes: list[ClusterNode] = [
            ClusterNode(
                self.directory / str(number),
                self.network,
                number,
                config=[*self._config(number), *config],
                plugins=plugins,
            )
            for number in self.network.hosts
        ]

    def _config(self, number: int) -> list[str]:
        first = f"rabbit@{self.network.address(1)}"
        lines = [
            f"cluster_partition_handling = {self.mode}",
            "cluster_formation.peer_discovery_backend = classic_config",
            # All nodes join the first, which searches for none: a node that finds no other waits for a minute.
            f"cluster_formation.classic_config.nodes.1 = {first}",
        ]
        if number > 1:
            own = f"rabbit@{self.network.address(number)}"
            lines.append(f"cluster_formation.classic_config.nodes.2 = {own}")
        if self.mode == "pause_if_all_down":
            lines += [
                "cluster_partition_handling.pause_if_all_down.recover = autoheal",
                f"cluster_partition_handling.pause_if_all_down.nodes.1 = {first}",
            ]
        return lines

    def node(self, number: int) -> ClusterNode:
        """A node by its number, from 1."""
        return self.nodes[number - 1]

    def url(self, *numbers: int) -> str:
        """An AMQP URL for ``Site(name, url)``: these nodes in this order, or all."""
        hosts = ",".join(self.node(number).host for number in numbers or self.network.hosts)
        return f"amqp://guest:guest@{hosts}/%2F"

    def mqtt_url(self, *numbers: int) -> str:
        """An MQTT URL for the plugin ``rabbitmq_mqtt``: these nodes in this order, or all."""
        hosts = ",".join(self.node(number).mqtt_address[0] for number in numbers or self.network.hosts)
        return f"mqtt://guest:guest@{hosts}"

    def start(self, *numbers: int) -> None:
        """Start these nodes, or all, at the same time, and wait until clients can connect to each."""
        chosen = [self.node(number) for number in numbers or self.network.hosts]
        with ThreadPoolExecutor(len(chosen)) as pool:
            for started in [pool.submit(node.start) for node in chosen]:
                started.result()

    def form(self) -> None:
        """Start all nodes of a new cluster, and wait until it has formed and has its policies."""
        self.node(1).start()
        if len(self.nodes) > 1:
            self.start(*[node.number for node in self.nodes[1:]])
        self.wait_whole()
        if self.mirrored:
            policy = {"ha-mode": "all", "ha-sync-mode": "automatic"}
            self.node(1).ctl("set_policy", "mirrored", "^(reliamsg:|plain)", json.dumps(policy),
                             "--apply-to", "queues")  # fmt: skip

    def isolate(self, *numbers: int) -> None:
        """Isolate these nodes from the others, but not from clients: :meth:`Network.isolate`."""
        self.network.isolate(*numbers)

    def heal(self, *numbers: int) -> None:
        """End the isolation of these nodes, or of all: :meth:`Network.heal`."""
        self.network.heal(*numbers)

    def wait_partitioned(self, *numbers: int, timeout: float = _TIMEOUT_S) -> None:
        """Wait until every running node has detected that these nodes are isolated from the others."""
        apart = set(numbers)
        for node in self.nodes:
            if node.alive:
                far = {
                    other.number for other in self.nodes if (other.number in apart) != (node.number in apart)
                }
                self._wait(lambda node=node, far=far: not node.members() & far,  # type: ignore[misc]
                           timeout, f"node {node.number} detects that it can't reach {sorted(far)}")  # fmt: skip

    def wait_paused(self, number: int, timeout: float = _TIMEOUT_S) -> None:
        """Wait until a node that can't reach the others has paused itself, in a mode in which it does."""
        self._wait(lambda: not self.node(number).serving(), timeout, f"node {number} pauses")

    def wait_whole(self, timeout: float = _TIMEOUT_S) -> None:
        """Wait until all running nodes form one cluster, without any partition, and serve clients."""

        def whole() -> bool:
            up = [node for node in self.nodes if node.alive]
            everyone = {node.number for node in up}
            for node in up:
                members, others = node.members(), node.partitioned_from()
                if members != everyone or others:
                    raise LabError(
                        f"node {node.number} runs with {members or 'none'}, partitioned from {others or 'none'}"
                    )
            return True

        self._wait(whole, timeout, "all running nodes form one cluster")

    def revive_queues(self, timeout: float = 15.0) -> list[int]:
        """Restart nodes with unusable queues, if they stay unusable for `timeout` seconds; returns their numbers.

        RabbitMQ 3.10 heals a partition in two rounds if some nodes find each other before others do. In the second
        round, mirrored queues may stop on their leader's node without any mirror taking over. Clients can't fix that;
        an operator has to restart the node.
        """
        restarted = []
        for node in self.nodes:
            if not node.alive:
                continue
            try:
                self._wait(lambda node=node: not node.leaderless(), timeout, "queues have leaders")  # type: ignore[misc]
            except LabError:
                node.stop()
                node.start()
                self.wait_whole()
                restarted.append(node.number)
        return restarted

    @staticmethod
    def _wait(condition: Callable[[], bool], timeout: float, what: str) -> None:
        latest = [""]

        def holds() -> bool:
            # A node that pauses, or restarts its inner application, answers with errors meanwhile.
            try:
                return condition()
            except LabError as error:
                latest[0] = f" ({error})"
                return False

        try:
            wait_until(holds, timeout, what, poll=_POLL_S)
        except LabError as error:
            raise LabError(f"{error}{latest[0]}") from None

    def mirrors(self, queue: str, vhost: str = "/") -> int:
        """The number of synchronized mirrors of a classic queue, without the leader; takes a second or two."""
        serving = next((node for node in self.nodes if node.serving()), None)
        if serving is None:
            raise LabError("no node of the cluster serves clients")
        columns = ("name", "synchronised_slave_pids")
        rows = json.loads(serving.ctl("list_queues", "-p", vhost, "--formatter", "json", *columns))
        for row in rows:
            if row["name"] == queue:
                return len(row["synchronised_slave_pids"] or [])
        raise LabError(f"no queue {queue!r} in the cluster")

    def close(self) -> None:
        """Kill all nodes, remove the network, and delete the data; may be called again."""
        for node in self.nodes:
            node.kill()
        self.network.close()
        for node in self.nodes:
            node.wipe()

    def __enter__(self) -> Self:
        try:
            self.form()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
