"""An application of the runs whose wall clock is wrong: ``python -m reliamsg.lab.chaos.wrong_clock CONFIG``.

`application` is the module to run, `shift` how many seconds the clock is off; with `jumps` it jumps every 50 ms, to
one of so many seconds.
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


def wrong_clock(app: App) -> None:
    """Have `app` start with a clock of its own."""
    app.config["application"], app.module = app.module, "reliamsg.lab.chaos.wrong_clock"


def shift_clock(shift: float, jumps: list[float]) -> None:
    """Put this process's clock wrong."""
    true_time, true_time_ns = time.time, time.time_ns
    off = [shift]
    time.time = lambda: true_time() + off[0]
    time.time_ns = lambda: true_time_ns() + int(off[0] * 1e9)

    def jump() -> None:
        while True:
            time.sleep(0.05)
            off[0] = random.choice(jumps)

    if jumps:
        threading.Thread(target=jump, daemon=True).start()


def main(config: dict[str, Any]) -> None:
    """Run the application with its wrong clock."""
    shift_clock(config.get("shift", 0.0), config.get("jumps", []))
    importlib.import_module(config["application"]).main(config)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
