"""The Kafka connector's jars: fetched once from Maven Central, pinned by SHA-256, kept beside Kafka's own."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from bridge.broker.jars import JarSet, Report, default_jar_folder, fetch_jars, parse_pins
from bridge.broker.maven import MavenRepository

_PINS = "connector-4.0.0.sha256"


def connector_jars(report: Report | None = None) -> Sequence[Path]:
    """The four jars that the job needs. Raises JarsUnavailable, JarCorrupt, CacheUnusable."""
    pins = parse_pins((files("spark") / _PINS).read_text())
    folder = fetch_jars(
        default_jar_folder().with_name("spark-connector-4.0.0"), report, JarSet(pins, MavenRepository())
    )
    return [folder / pin.name for pin in pins]
