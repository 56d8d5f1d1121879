"""The chaos laboratory: named faults at real brokers and real processes, each judged by what it leaves behind.

:func:`scenarios` lists them, :func:`find` knows one by its name, :func:`run_scenario` runs it.
"""

from reliamsg.lab.chaos.catalogue import find, scenarios
from reliamsg.lab.chaos.result import Control, Result
from reliamsg.lab.chaos.runner import run_scenario
from reliamsg.lab.chaos.scenario import Scenario

__all__ = ["Control", "Result", "Scenario", "find", "run_scenario", "scenarios"]
