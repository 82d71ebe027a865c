"""The Kafka connector's jars: fetched once from Maven Central, pinned by SHA-256, kept beside Kafka's own."""

from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from api.cli.failures import CommandFailed, Exit
from bridge.broker.jars import JarSet, Report, default_jar_folder, fetch_jars, parse_pins
from bridge.broker.maven import MavenRepository

_PYSPARK = "4.0.0"
_PINS = f"connector-{_PYSPARK}.sha256"


def connector_jars(report: Report | None = None) -> Sequence[Path]:
    """The four jars that the job needs.

    Raises JarsUnavailable, JarCorrupt, CacheUnusable; CommandFailed where they do not fit PySpark, of which another
    version may not even have what the job imports.
    """
    found = version("pyspark")
    if found != _PYSPARK:
        remedy = "pip install 'outbox-bridge[spark]' brings the one that has."
        raise CommandFailed(Exit.NOT_FOUND, f"PySpark {found} has no matching Kafka connector", remedy)
    pins = parse_pins((files("spark") / _PINS).read_text())
    folder = fetch_jars(
        default_jar_folder().with_name(f"spark-connector-{_PYSPARK}"), report, JarSet(pins, MavenRepository())
    )
    return [folder / pin.name for pin in pins]
