"""One quiet SparkContext for the audit, or the one that is already there.

Owns: Spark's settings, its JVM's standard error (a file, shown only when something fails), the first Python workers,
and stopping what it began. A master given by spark-submit, a notebook or SPARK_MASTER is left alone; without one it is
local[*]. No SparkSession: the audit needs no SQL, and its classes take longer to load than a small log to read.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from minibroker.audit.errors import AuditError
from minibroker.audit.prerequisites import check_spark, package_root

if TYPE_CHECKING:
    from pyspark import SparkContext

DEFAULT_MASTER = "local[*]"
ERROR_LINES_SHOWN = 15
END_TIMEOUT_S = 5.0
"""A JVM that starts ends at once when it is told to."""
SETTINGS = {
    "spark.app.name": "minibroker audit",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
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
def spark_context(master: str | None = None) -> Iterator["SparkContext"]:
    """A context for one audit. A context that is already active (a notebook's session has one) is used and left
    running."""
    check_spark()
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    if active is not None:
        yield active
        return
    with tempfile.TemporaryFile("w+b") as standard_error, quiet_interrupts(), _no_orphans():
        try:
            context = _start(master, standard_error)
        except Exception as error:
            raise AuditError(f"Spark did not start: {error}{_last_lines(standard_error)}") from error
        try:
            yield context
        except AuditError:
            raise
        except Exception as error:
            raise AuditError(f"Spark's job failed: {_first_line(error)}{_last_lines(standard_error)}") from error
        finally:
            _stop(context)


@contextmanager
def _no_orphans() -> Iterator[None]:
    """End the JVM with the block, however it ends. Whoever is interrupted while Spark starts it (Ctrl-C, a deadline)
    knows no process to end, and a JVM that misses its parent before it has told its port never ends by itself."""
    from pyspark import java_gateway

    launched: list[subprocess.Popen[bytes]] = []

    class Remembered(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            launched.append(self)  # first: the interrupt may come before this returns
            super().__init__(*arguments, **options)

    original = vars(java_gateway)["Popen"]
    vars(java_gateway)["Popen"] = Remembered
    try:
        yield
    finally:
        vars(java_gateway)["Popen"] = original
        for process in launched:
            _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if getattr(process, "pid", None) is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Ctrl-C is no error: py4j, which waits for the JVM, would log it with a stack trace before it passes it on."""
    root = logging.getLogger()
    root.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        root.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def warm_up(context: "SparkContext") -> None:
    """Spark's start, second half: a Python worker on every core that has imported the audit, and the JVM's classes for
    a job with a shuffle, by one that reads nothing."""
    cores = context.defaultParallelism
    rows = context.parallelize(range(cores), cores).flatMap(_import_audit)
    rows.partitionBy(cores).mapPartitions(list).collect()


def _import_audit(number: int) -> list[tuple[int, bytes]]:
    import gc

    import minibroker.audit.judge
    import minibroker.audit.segment_reader  # noqa: F401

    # A worker collects garbage after each task, and what pyspark has imported takes as long as reading 100 MB of logs.
    gc.freeze()
    return [(number, b"")]


def _start(master: str | None, standard_error: Any) -> "SparkContext":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    wanted = master or os.environ.get("SPARK_MASTER") or DEFAULT_MASTER
    settings = dict(SETTINGS)
    if not submitted:
        settings["spark.master"] = wanted
        if wanted.startswith("local"):
            settings |= LOCAL_SETTINGS
    settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(
        path for path in (package_root(), os.environ.get("PYTHONPATH")) if path
    )
    if not submitted:
        launched = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        launch: Any = launch_gateway
        gateway = launch(launched, popen_kwargs={"stderr": standard_error, "stdout": standard_error})
        SparkContext._ensure_initialized(gateway=gateway)
    conf = SparkConf().setAll(list(settings.items()))
    if not conf.contains("spark.master"):
        conf.setMaster(wanted)
    on_interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=conf)
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler asks the JVM to cancel over the connection that is being read, and fails with a trace.
        signal.signal(signal.SIGINT, on_interrupt)
    context.setLogLevel("OFF")
    return context


def _stop(context: "SparkContext") -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    with suppress(Exception):  # after Ctrl-C the connection may be of no use; the JVM is ended below
        context.stop()
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
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if line.startswith(("minibroker.", "OSError", "MemoryError", "AssertionError"))]
    return (python or lines or [type(error).__name__])[0].strip()


def _last_lines(file: Any) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").splitlines()[-ERROR_LINES_SHOWN:]
    return "".join(f"\n    {line}" for line in lines)
