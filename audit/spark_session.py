"""One quiet SparkSession for the audit, or the one that is already there.

Owns: Spark's settings, its JVM's standard error (a file, shown only when something fails), and stopping what it began.
A master given by spark-submit, a notebook or SPARK_MASTER is left alone; without one it is local[*].
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from minibroker.audit.errors import AuditError
from minibroker.audit.prerequisites import check_spark, package_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
ERROR_LINES_SHOWN = 15
SETTINGS = {
    "spark.app.name": "minibroker audit",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.log.level": "ERROR",
}
LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The JVM only moves packed columns: starting fast is worth more than optimised code.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
    "spark.driver.memory": "1g",
}


@contextmanager
def spark_session(master: str | None = None) -> Iterator["SparkSession"]:
    """A session for one audit. A session that is already active is used and left running."""
    check_spark()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with tempfile.TemporaryFile("w+b") as standard_error:
        try:
            session = _start(master, standard_error)
        except Exception as error:
            raise AuditError(f"Spark did not start: {error}{_last_lines(standard_error)}") from error
        try:
            yield session
        except AuditError:
            raise
        except Exception as error:
            raise AuditError(f"Spark's job failed: {_first_line(error)}{_last_lines(standard_error)}") from error
        finally:
            _stop(session)


def _start(master: str | None, standard_error: Any) -> "SparkSession":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    wanted = master or os.environ.get("SPARK_MASTER") or DEFAULT_MASTER
    settings = dict(SETTINGS)
    if not submitted:
        settings["spark.master"] = wanted
        if wanted.startswith("local"):
            settings |= LOCAL_SETTINGS | {"spark.sql.shuffle.partitions": str(local_cores(wanted))}
    settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(
        path for path in (package_root(), os.environ.get("PYTHONPATH")) if path
    )
    if submitted:
        builder = SparkSession.builder
        for key, value in settings.items():
            builder = builder.config(key, value)
        if not SparkConf().contains("spark.master"):
            builder = builder.master(wanted)
        return _quiet(builder.getOrCreate())
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    launch: Any = launch_gateway
    gateway = launch(conf, popen_kwargs={"stderr": standard_error, "stdout": standard_error})
    SparkContext._ensure_initialized(gateway=gateway)
    return _quiet(SparkSession.builder.config(conf=conf).getOrCreate())


def _quiet(session: "SparkSession") -> "SparkSession":
    session.sparkContext.setLogLevel("OFF")
    return session


def local_cores(master: str) -> int:
    """How many threads a local master has."""
    inner = master.partition("[")[2].rstrip("]").split(",")[0]
    if inner == "*":
        return os.cpu_count() or 1
    return int(inner) if inner.isdigit() else 1


def _stop(session: "SparkSession") -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    session.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    # The JVM ends with its standard input; without this it would stay until this process ends.
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        process.stdin.close()
    with suppress(Exception):
        process.wait(10)
    SparkContext._gateway = SparkContext._jvm = None


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if line.startswith(("minibroker.", "OSError", "MemoryError", "AssertionError"))]
    return (python or lines or [type(error).__name__])[0].strip()


def _last_lines(file: Any) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").splitlines()[-ERROR_LINES_SHOWN:]
    return "".join(f"\n    {line}" for line in lines)
