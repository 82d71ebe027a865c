"""The jars of the Kafka connector and of databases' drivers: fetched once from Maven Central, pinned by SHA-256, kept
beside Kafka's own.
"""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from api.cli.failures import CommandFailed, Exit
from bridge.broker.jars import JarSet, Report, default_jar_folder, fetch_jars, parse_pins
from bridge.broker.maven import MavenRepository
from spark.table_list import MARIADB, POSTGRESQL, SQLITE
from spark.versions import SPARK_VERSION

_PINS = f"connector-{SPARK_VERSION}.sha256"
_DRIVER_PINS = "jdbc-drivers.sha256"
_DRIVERS = {POSTGRESQL: "postgresql", SQLITE: "sqlite-jdbc", MARIADB: "mariadb-java-client"}


def connector_jars(report: Report | None = None) -> Sequence[Path]:
    """The four jars that the job needs.

    Raises JarsUnavailable, JarCorrupt, CacheUnusable; CommandFailed where they do not fit PySpark, of which another
    version may not even have what the job imports.
    """
    found = version("pyspark")
    if found != SPARK_VERSION:
        remedy = "pip install 'outbox-bridge[spark]' brings the one that has."
        raise CommandFailed(Exit.NOT_FOUND, f"PySpark {found} has no matching Kafka connector", remedy)
    pins = parse_pins((files("spark") / _PINS).read_text())
    folder = fetch_jars(
        default_jar_folder().with_name(f"spark-connector-{SPARK_VERSION}"), report, JarSet(pins, MavenRepository())
    )
    return [folder / pin.name for pin in pins]


def driver_jars(kinds: Iterable[str], report: Report | None = None) -> Sequence[Path]:
    """A JDBC driver for each kind of database. Raises JarsUnavailable, JarCorrupt, CacheUnusable."""
    pins = parse_pins((files("spark") / _DRIVER_PINS).read_text())
    jars = []
    for kind in sorted(kinds):
        wanted = tuple(pin for pin in pins if pin.name.startswith(f"{_DRIVERS[kind]}-"))
        name = f"jdbc-{wanted[0].name.removesuffix('.jar')}"
        folder = fetch_jars(default_jar_folder().with_name(name), report, JarSet(wanted, MavenRepository()))
        jars += [folder / pin.name for pin in wanted]
    return jars
