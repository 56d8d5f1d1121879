"""The pytest fixtures, as an application's own test suite would use them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
