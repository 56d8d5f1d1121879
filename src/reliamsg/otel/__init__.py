"""Metrics and spans for OpenTelemetry. Needs the extra ``otel``, which installs OpenTelemetry's API alone: the
application chooses and configures the SDK."""

try:
    import opentelemetry.trace  # noqa: F401  (to name the extra)
except ImportError as error:
    raise ImportError("reliamsg.otel needs the extra: pip install 'reliamsg[otel]'") from error

from reliamsg.otel.metrics import Metrics
from reliamsg.otel.tracing import Tracing

__all__ = ["Metrics", "Tracing"]
