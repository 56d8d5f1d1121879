"""Numbers about producers and consumers, for Prometheus (:mod:`reliamsg.prometheus`) and OpenTelemetry
(:mod:`reliamsg.otel`). This package depends on neither."""
