"""The pytest fixtures, as an application's own test suite would use them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.children import run_child

CONFTEST = 'pytest_plugins = ["reliamsg.testing.pytest_plugin"]\n'

TEST = """
from reliamsg import Consumer, Producer


def test_orders(memory_network, memory_sites, tmp_path):
    groups = {"orders": ["billing"]}
    with (
        Producer("p", memory_sites, outbox=tmp_path / "p.db", groups=groups) as producer,
        Consumer(
            "billing", memory_sites, topics=["orders"], inbox=tmp_path / "c.db"
        ) as consumer,
    ):
        memory_network["dc1"].down()
        receipts = [producer.publish("orders", b"%d" % n) for n in range(10)]
        for n in range(10):
            with consumer.get(timeout=120).process() as message:
                assert message.body == b"%d" % n
        assert not receipts[-1].done
        memory_network["dc1"].up()
        receipts[-1].wait(timeout=120)
"""


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_application.py").write_text(TEST)
    # Without the plugins that happen to be installed here: some of them take seconds to start.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run_child(command, env=environment, cwd=tmp_path, check=True)
