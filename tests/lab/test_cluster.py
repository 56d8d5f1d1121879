"""A RabbitMQ cluster: formed, partitioned, healed, with a node killed and restarted. Runs with it are in tests/runs."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from reliamsg.lab import LabError, RabbitCluster, wait_until
from tests.lab.test_rabbitmq import channel_to


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_cluster_is_partitioned_and_healed_and_loses_a_node(tmp_path: Path) -> None:
    with RabbitCluster(tmp_path / "cluster", mode="pause_minority", mirrored=True) as cluster:
        assert all(node.members() == {1, 2, 3} for node in cluster.nodes)
        with channel_to(cluster.url(3)) as channel:
            channel.queue_declare("plain", durable=True)
            channel.basic_publish("", "plain", b"kept", pika.BasicProperties(delivery_mode=2))
        wait_until(lambda: cluster.mirrors("plain") == 2, 60, "the queue has mirrors", poll=0.5)
        with pytest.raises(LabError, match="no queue"):
            cluster.mirrors("other")

        cluster.isolate(3)
        cluster.wait_paused(3)
        cluster.wait_partitioned(3)
        assert cluster.node(1).members() == {1, 2}
        assert cluster.node(3).members() == set()
        cluster.heal()
        cluster.wait_whole()

        cluster.node(3).kill()
        cluster.wait_whole()
        with channel_to(cluster.url(1)) as channel:
            assert channel.basic_get("plain", auto_ack=True)[2] == b"kept"
        cluster.start(3)
        cluster.wait_whole()

        with channel_to(cluster.url(2)) as channel:
            channel.queue_declare("headless", durable=True)
        assert cluster.revive_queues() == []
        found = '{ok, Q} = rabbit_amqqueue:lookup({resource, <<"/">>, queue, <<"headless">>})'
        ended = "mnesia:dirty_write(rabbit_queue, amqqueue:set_pid(Q, spawn(fun() -> ok end)))"
        cluster.node(2).ctl("eval", f"{found}, {ended}.")
        assert cluster.node(2).leaderless() == {"headless"}
        assert cluster.revive_queues(timeout=1.0) == [2]
        assert cluster.node(2).leaderless() == set()
        with channel_to(cluster.url(1)) as channel:
            channel.basic_publish("", "headless", b"goes on")
            wait_until(
                lambda: channel.basic_get("headless", auto_ack=True)[2] == b"goes on", 60, "it is delivered"
            )
        with pytest.raises(LabError, match="rabbitmq_mqtt"):
            cluster.mqtt_url()
        network = cluster.network
    assert not any(node.alive for node in cluster.nodes)
    assert not Path(f"/run/netns/{network.namespace(1)}").exists()


def test_unknown_partition_mode(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="autoheal"):
        RabbitCluster(tmp_path, mode="hope")  # type: ignore[arg-type]
