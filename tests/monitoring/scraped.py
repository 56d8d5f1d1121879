"""Runs an application of the chaos laboratory with its clients observed: ``python -m tests.monitoring.scraped CONFIG``.

In the configuration, `scraped` is the module to run, and `metrics_port` the port to serve metrics at. The file
`scraped_until` is created when the application has exited without an error: its target would be removed then.
"""

from __future__ import annotations

import contextlib
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
    with contextlib.suppress(OSError):  # a second process of the same application, which is to be refused
        start_http_server(config["metrics_port"], "127.0.0.1", registry)
        Path(config["scraped_until"]).unlink(missing_ok=True)
    application.main(config)
    Path(config["scraped_until"]).touch()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
