"""The pytest fixtures, as an application's own test suite would use them."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from reliamsg.testing import pytest_plugin
from tests.children import run_child

CONFTEST = 'pytest_plugins = ["reliamsg.testing.pytest_plugin"]\n'

TEST = """
from reliamsg import Consumer, Producer


def test_clients_are_closed(memory_producer, memory_consumer, tmp_path):
    producer = memory_producer("shop", groups={"orders": ["billing"]}, confirm="any")
    consumer = memory_consumer("billing", topics=["orders"])
    producer.publish("orders", b"one").wait(timeout=120)
    assert consumer.get(timeout=120).body == b"one"
    assert sorted(each.name for each in tmp_path.glob("*.db")) == ["billing.inbox.db", "shop.outbox.db"]


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


SIMULATIONS = """
import pytest

runs = []


@pytest.mark.reliamsg_simulate(seeds=3, messages=5)
def test_correct(simulation, tmp_path):
    effects = simulation.durable_dict()
    simulation.run(lambda message: effects.update({message.body: tmp_path}), effects=lambda: effects)
    runs.append(simulation.seed)


class TestLedger:
    @pytest.mark.reliamsg_simulate(seeds=range(5, 7), messages=5)
    def test_wrong(self, simulation):
        simulation.run(lambda message: None, effects=list)


def test_without_a_marker(simulation):
    pass


@pytest.mark.reliamsg_simulate
def test_without_the_fixture():
    pass


def test_runs():
    print("seeds", sorted(set(runs)))
"""


def pytest_run(directory: Path, *arguments: str) -> str:
    """The output of pytest, without the plugins that happen to be installed here: some of them take seconds to
    start."""
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *arguments]
    return run_child(command, env=environment, cwd=directory, text=True).stdout


def test_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_application.py").write_text(TEST)
    assert "2 passed" in pytest_run(tmp_path)


@pytest.mark.integrations
def test_simulations(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_application.py").write_text(SIMULATIONS)
    output = pytest_run(tmp_path)
    assert "seeds [0, 1, 2]" in output
    assert "seed 5: effect_lost" in output
    assert "the fixture simulation is for tests with @pytest.mark.reliamsg_simulate" in output
    assert "@pytest.mark.reliamsg_simulate is for functions with the fixture simulation" in output
    assert "2 failed, 2 passed, 1 error" in output
    failures = output.split("short test summary info")[0]  # which repeats whole messages where CI is set
    (again,) = [line for line in failures.splitlines() if line.startswith("again: ")]  # once
    _, program, *arguments = shlex.split(again)
    assert program == "pytest"
    assert arguments[0] == "test_application.py::TestLedger::test_wrong"
    assert again in pytest_run(tmp_path, *arguments)
    assert "seed 8: effect_lost" in pytest_run(tmp_path, "--reliamsg-seeds", "8:9", arguments[0])


def test_pytest_loads_the_plugin_by_itself() -> None:
    (found,) = entry_points(group="pytest11", module="reliamsg.testing.pytest_plugin")
    assert found.name == found.value, "else pytest would load it twice where a conftest.py names it, too"
    assert found.load() is pytest_plugin


def test_what_is_not_used_is_not_loaded() -> None:
    code = (
        "import sys\n"
        "import reliamsg.testing\n"
        "print('reliamsg.simulation' in sys.modules, 'reliamsg.transport' in sys.modules)\n"
        "for name in reliamsg.testing.__all__: getattr(reliamsg.testing, name)\n"
        "print('reliamsg.simulation' in sys.modules, 'pytest' in sys.modules)\n"
        "before = set(sys.modules)\n"
        "import reliamsg.testing.pytest_plugin\n"
        "print({name for name in set(sys.modules) - before if name.startswith('reliamsg')})\n"
    )
    lines = run_child([sys.executable, "-c", code], text=True, check=True).stdout.splitlines()
    assert lines == ["False False", "True False", "{'reliamsg.testing.pytest_plugin'}"]
