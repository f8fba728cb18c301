"""Sends metrics with OpenTelemetry's Python SDK, as its documentation shows; run by tests/servers/senders.rs.

Usage: otlp_client.py URL TOKEN. Any exception, and an export that fails, ends it with an error.
"""

import logging
import sys

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

URL, TOKEN = sys.argv[1:3]
FAULTS = []


class Faults(logging.Handler):
    """The SDK only logs that an export has failed."""

    def emit(self, record):
        FAULTS.append(record.getMessage())


logging.getLogger().addHandler(Faults(logging.WARNING))


def export(name, compression):
    """A process of this name records each kind of instrument once."""
    exporter = OTLPMetricExporter(
        endpoint=f"{URL}/v1/metrics", headers={"authorization": f"Bearer {TOKEN}"}, compression=compression
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider(metric_readers=[reader], resource=Resource.create({"service.name": name, "site": "north"}))
    meter = provider.get_meter("boiler")
    meter.create_gauge("water.temperature", unit="Cel").set(61.5)
    meter.create_counter("burner.starts").add(3)
    meter.create_up_down_counter("pumps.running").add(-2)
    meter.create_observable_gauge("valve.open", callbacks=[lambda _: [Observation(40)]])
    histogram = meter.create_histogram("request.duration", unit="s")
    for seconds in (0.25, 0.5, 4.25):
        histogram.record(seconds)
    # Exports what was recorded.
    provider.shutdown()


export("boiler", Compression.Gzip)
export("heater", Compression.NoCompression)
assert not FAULTS, FAULTS
