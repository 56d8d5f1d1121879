"""Runs an application of the chaos laboratory with its clients observed: ``python -m tests.monitoring.scraped CONFIG``.

In the configuration, `scraped` is the module to run, `scraped_log` the log of the application that is scraped, and
`metrics_port` the port that serves its metrics. The file `scraped_until` is created when the application has exited
without an error: its target would be removed then.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from reliamsg import Consumer, Producer
from reliamsg.prometheus import Collector


def observe_in(application: Any, collector: Collector) -> None:
    """Observe every client that a module opens."""

    class ObservedProducer(Producer):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            collector.observe(self)

    class ObservedConsumer(Consumer):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            collector.observe(self)

    for name, kind in (("Producer", ObservedProducer), ("Consumer", ObservedConsumer)):
        if hasattr(application, name):
            setattr(application, name, kind)


def main(config: dict[str, Any]) -> None:
    """Serve metrics, and run the application that `config` names."""
    application = importlib.import_module(config["scraped"])
    registry = CollectorRegistry()
    observe_in(application, Collector(registry=registry))
    if (
        config["log"] != config["scraped_log"]
    ):  # a second process, or a forger, with a copy of the configuration
        application.main(config)
        return
    Path(config["scraped_until"]).unlink(missing_ok=True)
    start_http_server(config["metrics_port"], "127.0.0.1", registry)
    application.main(config)
    Path(config["scraped_until"]).touch()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
