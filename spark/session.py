"""A Spark session whose parts fit together, or one line that says which part does not."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.errors import Indeterminate
from spark.options import SPARK_VERSION

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # a repeated property must not end the job
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # hashes and offsets are not worth the trial
}
_JAVA_OPTIONS = "-XX:+UseSerialGC"  # fewer threads and less memory than the others where there are few processors
# Spares half a minute of compiling, and needs twice as long for each record. Spark's code outgrows the 48 MB that Java
# sets aside for it then: what was thrown out is compiled again and again.
_BRIEFLY = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# The whole heap from the start, with much room for what is soon garbage, spares half of the collecting; inlining less,
# half of the compiling. A job ends soon after its code is compiled, and that code is hardly slower.
_AT_LENGTH = "-Xms{heap}m -Xmn{young}m -XX:InlineSmallCode=1000 -XX:FreqInlineSize=100"
BRIEF_OFFSETS = 1_500_000  # up to so many that is the better choice
# of a job on this machine: parts so small that what each adds up fits into the heap's share of a task
_HERE = {"spark.sql.files.maxPartitionBytes": "16m", "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m"}

_ENDED_REMEDY = "Was there too little memory (`dmesg` tells)? `--memory-mb` is Java's share. Run it again."


def start_session(
    jars: Sequence[Path] = (), *, cores: int = 0, memory_mb: int = 1_024, is_brief: bool = False
) -> SparkSession:
    """The session of this process: `spark-submit`'s if it was started so, else one on this machine.

    `jars`: JDBC drivers, where nobody else provides them. `cores` 0: all. `is_brief`: for little data.
    Raises Indeterminate.
    """
    if pyspark.__version__ != SPARK_VERSION:
        raise _wrong_spark(pyspark.__version__)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("outbox-bridge-report")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else `spark-submit` has started it, and said where to run
        _check_java()
        builder = builder.master(f"local[{cores or '*'}]").config("spark.driver.memory", f"{memory_mb}m")
        builder = builder.config("spark.driver.extraJavaOptions", java_flags(memory_mb, is_brief=is_brief))
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.sql.shuffle.partitions", str(4 * (cores or os.cpu_count() or 1)))
        for name, value in _HERE.items():
            builder = builder.config(name, value)
    if jars:
        builder = builder.config("spark.jars", ",".join(str(jar) for jar in jars))
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise Indeterminate(f"Spark does not start: {_first_line(error)}", "Spark 4.0 needs Java 17 or 21.") from error
    session.sparkContext.setLogLevel("ERROR")
    if session.version != SPARK_VERSION:  # SPARK_HOME, or a cluster's
        session.stop()
        raise _wrong_spark(session.version)
    return session


def java_flags(memory_mb: int, *, is_brief: bool) -> str:
    """How Java compiles and collects in a job on this machine, for little data or for much."""
    rest = _BRIEFLY if is_brief else _AT_LENGTH.format(heap=memory_mb, young=memory_mb * 2 // 5)
    return f"{_JAVA_OPTIONS} {rest}"


@contextmanager
def running_session(
    jars: Sequence[Path] = (), *, cores: int = 0, memory_mb: int = 1_024, is_brief: bool = False
) -> Iterator[SparkSession]:
    """`start_session`, stopped at the end. Ctrl-C ends at once and leaves Java to end with this process.

    PySpark's own handler first calls Java, on the connection whose answer is being waited for.
    """
    session = start_session(jars, cores=cores, memory_mb=memory_mb, is_brief=is_brief)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield session
    except KeyboardInterrupt:
        raise
    except BaseException:
        _stop(session)
        raise
    _stop(session)


def _stop(session: SparkSession) -> None:
    """Raises Indeterminate."""
    try:
        session.stop()
    except (OSError, Py4JError) as error:
        raise Indeterminate("Java has ended in the middle of its work", _ENDED_REMEDY) from error


def _wrong_spark(found: str) -> Indeterminate:
    return Indeterminate(f"this job does not know Spark {found}", f"Install pyspark=={SPARK_VERSION}.")


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        raise Indeterminate("no Java found", "Install a JDK 17 or 21 and set JAVA_HOME.")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
