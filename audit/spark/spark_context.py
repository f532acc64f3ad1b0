"""One quiet SparkContext for the audit, or the active one.

Owns: Spark's settings, its JVM's standard error (a file, shown only when something fails), the first Python workers,
and stopping what it started. A master from spark-submit, a notebook or SPARK_MASTER is kept; without one it is
local[*]. No SparkSession: the audit needs no SQL, and loading its classes takes longer than reading a small log.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from minibroker.audit.errors import AuditError
from minibroker.audit.spark.prerequisites import check_spark, package_root
from minibroker.audit.spark.ship_package import ship
from minibroker.audit.spark.spark_cluster import is_local, local_address_towards, wanted_master, watched_executors
from minibroker.audit.spark.spark_failures import sentence_of, start_sentence

if TYPE_CHECKING:
    from pyspark import SparkContext

DEFAULT_MASTER = "local[*]"
END_TIMEOUT_S = 5.0
"""A JVM that is still starting ends immediately on SIGTERM."""
STOP_TIMEOUT_S = 10.0
PY4J_LOGGERS = (None, "py4j.clientserver", "py4j.java_gateway")
"""A logger's filter sees only records logged to that logger; None is the root."""
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
def spark_context(master: str | None = None, *, ship_package: bool = False) -> Iterator["SparkContext"]:
    """A context for one audit; with `ship_package` its executors get this package. A context that is already active
    (such as a notebook session's) is used and left running."""
    wanted = wanted_master(master, DEFAULT_MASTER)
    check_spark(local_workers=is_local(wanted) and not is_submitted())
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    if active is not None:
        with _shipped(active, ship_package), watched_executors(active):
            yield active
        return
    with tempfile.TemporaryFile("w+b") as standard_error, quiet_interrupts(), ExitStack() as behind, _no_orphans():
        try:
            context = _start(wanted, standard_error)
            behind.enter_context(_silent_accumulators(context))
        except AuditError:
            raise
        except Exception as error:
            raise AuditError(f"Spark did not start: {start_sentence(str(error), _text(standard_error))}") from error
        try:
            with _shipped(context, ship_package), watched_executors(context):
                yield context
        except AuditError:
            raise
        except Exception as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from None
            raise AuditError(f"Spark's job failed: {sentence_of(str(error), _text(standard_error))}") from error
        except BaseException:
            raise  # interrupted: the connection may wait for an answer, so the JVM is ended without a request
        else:
            _stop(context)
        finally:
            _clear_context()


@contextmanager
def _silent_accumulators(context: "SparkContext") -> Iterator[None]:
    """pyspark's accumulator server (the audit has no accumulators) prints a stack trace when the JVM closes its
    connection first, as it does after every failure. Enter this before the JVM ends, and leave it afterwards."""
    server: Any = context._accumulatorServer
    server.handle_error = lambda *_: None
    try:
        yield
    finally:
        if context._accumulatorServer is not None:  # stop() has not closed it
            server.shutdown()


@contextmanager
def _shipped(context: "SparkContext", wanted: bool) -> Iterator[None]:
    """Workers of a local master are this Python: they need nothing."""
    if not wanted or is_local(context.master):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="minibroker-audit-") as directory:
        ship(context, directory)
        yield


def is_submitted() -> bool:
    """Whether this runs under spark-submit, which has started the JVM and chosen the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def _no_orphans() -> Iterator[None]:
    """End the JVM with the block, however the block ends. Code that is interrupted while Spark starts the JVM (Ctrl-C,
    a deadline) has no process to end yet, and a JVM whose parent disappears before it has reported its port never ends
    by itself. The JVM is a process group of its own, because it starts as a shell script with children. From here on
    another Ctrl-C cannot interrupt the cleanup."""
    from pyspark import java_gateway

    launched: list[subprocess.Popen[bytes]] = []

    class RecordedPopen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            launched.append(self)  # first: the interrupt may come before this returns
            super().__init__(*arguments, **{**options, "process_group": 0})

    original = vars(java_gateway)["Popen"]
    vars(java_gateway)["Popen"] = RecordedPopen
    try:
        yield
    finally:
        with _ignored_interrupts():
            vars(java_gateway)["Popen"] = original
            for process in launched:
                _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    pid = getattr(process, "pid", None)
    if pid is None:
        return
    if process.poll() is None:
        _signal_group(pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
    _signal_group(pid, signal.SIGKILL)  # what is left of it, usually nothing
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Ctrl-C is not an error: py4j, which waits for the JVM, would log it with a stack trace before passing it on."""
    loggers = [logging.getLogger(name) for name in PY4J_LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return not (record.exc_info and _was_interrupted(record.exc_info[1]))


def _was_interrupted(error: BaseException | None) -> bool:
    """By Ctrl-C, or by its consequences in pyspark and py4j: they continue to use the connection that they just closed,
    and the resulting errors replace the interrupt."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def warm_up(context: "SparkContext") -> None:
    """Second half of Spark's start: a Python worker on every core that has imported the audit, and the JVM's classes
    for a job with a shuffle, loaded by a job that reads nothing."""
    cores = context.defaultParallelism
    rows = context.parallelize(range(cores), cores).flatMap(_import_audit)
    rows.partitionBy(cores).mapPartitions(list).collect()


def _import_audit(number: int) -> list[tuple[int, bytes]]:
    import gc

    import minibroker.audit.checks.partition_check
    import minibroker.audit.reading.segment_reader  # noqa: F401

    # A worker collects garbage after each task; scanning pyspark's imports takes as long as reading 100 MB of logs.
    gc.freeze()
    return [(number, b"")]


def _start(wanted: str, standard_error: Any) -> "SparkContext":
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(SETTINGS)
    settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(
        path for path in (package_root(), os.environ.get("PYTHONPATH")) if path
    )
    if is_submitted():
        SparkContext._ensure_initialized()  # SparkConf reads spark-submit's options from its JVM
    else:
        settings |= _launch_settings(wanted)
        launched = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        launch: Any = launch_gateway
        gateway = launch(launched, popen_kwargs={"stderr": standard_error, "stdout": standard_error})
        SparkContext._ensure_initialized(gateway=gateway)
    conf = SparkConf().setAll(list(settings.items()))
    if not conf.contains("spark.master"):
        conf.setMaster(wanted)
    elif is_submitted():
        local_address_towards(conf.get("spark.master") or wanted)
    on_interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=conf)
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler sends a cancel over the connection that is being read, and fails with a stack trace.
        signal.signal(signal.SIGINT, on_interrupt)
    context.setLogLevel("OFF")
    return context


def _launch_settings(master: str) -> dict[str, str]:
    address = local_address_towards(master)
    if is_local(master):
        return {"spark.master": master, **LOCAL_SETTINGS}
    if address is not None and "SPARK_LOCAL_IP" not in os.environ:
        return {"spark.master": master, "spark.driver.host": address}
    return {"spark.master": master}


def _stop(context: "SparkContext") -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    with suppress(Exception):  # after Ctrl-C the connection may be unusable; the JVM is ended below
        context.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    # The JVM ends when its standard input closes; otherwise it would stay until this process ends.
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        process.stdin.close()
    with suppress(Exception):
        process.wait(STOP_TIMEOUT_S)


def _clear_context() -> None:
    """So that the next audit in this process starts a JVM of its own."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None and getattr(SparkContext._gateway, "proc", None) is not None:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
