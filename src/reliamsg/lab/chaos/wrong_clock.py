"""Runs an application with a wrong wall clock: ``python -m reliamsg.lab.chaos.wrong_clock CONFIG``.

In the configuration, `application` is the module to run and `shift` is the clock's error in seconds. With `jumps`, the
error changes every 50 ms to one of these values.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import threading
import time
from typing import Any

from reliamsg.lab.chaos.processes import App

__all__ = ["wrong_clock"]


def wrong_clock(app: App) -> None:
    """Have `app` run with a wrong clock from its next start on."""
    app.run_under("reliamsg.lab.chaos.wrong_clock")


def shift_clock(shift: float, jumps: list[float]) -> None:
    """Make this process's wall clock wrong."""
    true_time, true_time_ns = time.time, time.time_ns
    error = [shift]
    time.time = lambda: true_time() + error[0]
    time.time_ns = lambda: true_time_ns() + int(error[0] * 1e9)

    def jump() -> None:
        while True:
            time.sleep(0.05)
            error[0] = random.choice(jumps)

    if jumps:
        threading.Thread(target=jump, daemon=True).start()


def main(config: dict[str, Any]) -> None:
    """Run the application that `config` names."""
    shift_clock(config.get("shift", 0.0), config.get("jumps", []))
    importlib.import_module(config["application"]).main(config)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
