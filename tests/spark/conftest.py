"""One Spark session for all tests of this folder."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from api.cli.reports import driver_jars
from spark.session import start_session

_PATIENCE_S = 900
# runs in one session repeat their plans: a hundred classes, as many as Spark keeps, are those of one run
_MANY_RUNS = "--conf spark.sql.codegen.cache.maxEntries=3000 pyspark-shell"
# py4j leaves its sockets to the garbage collector, which complains in whatever test it happens to run
_QUIET = "ignore::pytest.PytestUnraisableExceptionWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Filters and patience for the tests of this folder alone."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(_QUIET))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            if item.get_closest_marker("timeout") is None:  # whoever comes first starts Spark and a broker
                item.add_marker(pytest.mark.timeout(_PATIENCE_S))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of one core with the drivers of all databases."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java: install a JDK 17 or 21")
    jars = driver_jars(["postgresql", "sqlite", "mariadb"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", _MANY_RUNS)
        session = start_session(jars, cores=1, is_brief=True)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    session.stop()
