"""A Kafka connector of another version, or without one of its parts, is told before anything is read."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from api.cli.reports import connector_jars
from spark.errors import Indeterminate
from spark.session import check_connector
from spark.versions import SPARK_VERSION

_MANIFEST = "META-INF/MANIFEST.MF"


@contextmanager
def connector_of(spark: SparkSession, jars: Sequence[Path]) -> Iterator[None]:
    """Java's thread of this one sees Spark, and these jars as its connector."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    thread = jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, len(jars))
    for number, jar in enumerate(jars):
        urls[number] = jvm.java.net.URL(jar.as_uri())
    thread.setContextClassLoader(jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getSystemClassLoader()))
    try:
        yield
    finally:
        thread.setContextClassLoader(before)


def test_connector_of_spark_is_taken(spark: SparkSession) -> None:
    """As `report run` brings it, and as the same four jars elsewhere."""
    check_connector(spark)
    with connector_of(spark, connector_jars()):
        check_connector(spark)


def test_connector_of_another_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """It may load, and fail somewhere in the middle."""
    jars = [_as_version(jar, "3.5.6", tmp_path) if "sql-kafka" in jar.name else jar for jar in connector_jars()]
    with connector_of(spark, jars), pytest.raises(Indeterminate) as told:
        check_connector(spark)
    assert told.value.reason == f"the Kafka connector is 3.5.6, Spark is {SPARK_VERSION}"
    assert f"spark-sql-kafka-0-10_2.13:{SPARK_VERSION}" in told.value.remedy


@pytest.mark.parametrize("missing", ["commons-pool2", "kafka-clients", "spark-sql-kafka", "spark-token-provider"])
def test_connector_without_one_of_its_jars_is_refused(spark: SparkSession, missing: str) -> None:
    """Whoever gives `--jars` by hand forgets one."""
    jars = [jar for jar in connector_jars() if not jar.name.startswith(missing)]
    assert len(jars) == 3
    with connector_of(spark, jars), pytest.raises(Indeterminate, match="not there, or not whole: no org"):
        check_connector(spark)


def _as_version(jar: Path, version: str, folder: Path) -> Path:
    """The same jar, said to be of another version."""
    made = folder / jar.name
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == _MANIFEST:
                content = content.replace(SPARK_VERSION.encode(), version.encode())
            target.writestr(name, content)
    return made
