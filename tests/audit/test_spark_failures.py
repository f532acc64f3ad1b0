"""Spark's pages of stack traces as one sentence each, and the waits around a cluster."""

import re
import socket
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.audit.errors import AuditError
from minibroker.audit.spark import spark_cluster
from minibroker.audit.spark.ship_package import build_archive
from minibroker.audit.spark.spark_cluster import ExecutorWatch, is_local, local_address_towards
from minibroker.audit.spark.spark_failures import LENGTH_MAX, sentence_of, start_sentence

ABORTED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 0.0 (TID 7) (127.0.0.1 executor 1): {cause}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:764)

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""
PYTHON = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 3320, in main
    func, profiler, deserializer, serializer = read_command(pickleSer, infile)
{error}
"""
NO_PYTHON = 'java.io.IOException: Cannot run program "/nowhere/python": error=2, No such file or directory'
LOST = "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: worker lost: 10.0.0.7"
CASES = {
    PYTHON.format(error="ModuleNotFoundError: No module named 'msgspec'"): "lacks the module msgspec: .*--ship-package",
    PYTHON.format(error="ValueError: a column is cut"): "^ValueError: a column is cut$",
    PYTHON.format(error="OSError: [Errno 5] Input/output error"): r"^OSError: \[Errno 5\] Input/output error$",
    NO_PYTHON: "cannot start its Python /nowhere/python .*PYSPARK_PYTHON",
    LOST: "^the executors of a task were lost again and again: worker lost: 10.0.0.7$",
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)": "out of memory",
    "java.lang.OutOfMemoryError: Java heap space": "spark.executor.memory",
}


@pytest.mark.parametrize("cause", CASES)
def test_the_cause_of_a_failed_task_is_one_sentence(cause: str) -> None:
    sentence = sentence_of(ABORTED.format(cause=cause))
    assert re.search(CASES[cause], sentence), sentence
    assert "\n" not in sentence
    assert len(sentence) <= LENGTH_MAX
    assert "py4j" not in sentence
    assert "Traceback" not in sentence


def test_an_unknown_failure_is_one_line() -> None:
    assert sentence_of("An error occurred while calling o1.x.\n: java.lang.Weird: what\n\tat a.b.C\n") == (
        ": java.lang.Weird: what"
    )
    assert sentence_of("") == "no cause was given"


def test_an_application_ended_by_its_master_is_reported() -> None:
    written = (
        "26/11/22 ERROR StandaloneSchedulerBackend: Application has been killed. Reason: Master removed it: FAILED\n"
    )
    assert "executors end as soon as they start" in sentence_of("An error occurred", written)


def test_a_rejected_master_is_reported_in_spark_submits_words() -> None:
    written = 'Exception in thread "main" org.apache.spark.SparkException: Master must be local\n\tat x.Y\n'
    assert start_sentence("[JAVA_GATEWAY_EXITED] ...", written) == "Master must be local"


def test_an_unreachable_master_is_reported_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(AuditError, match=f"cannot be reached .127.0.0.1:{port}: Connection refused"):
        local_address_towards(f"spark://127.0.0.1:{port}")
    with pytest.raises(AuditError, match="is not an address"):
        local_address_towards("spark://somewhere")


def test_the_drivers_address_is_the_one_that_reaches_the_master() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert local_address_towards(f"spark://127.0.0.1:{server.getsockname()[1]}") == "127.0.0.1"
    assert local_address_towards("yarn") is None


@pytest.mark.parametrize(
    ("master", "local"), [("local", True), ("local[*]", True), ("localhost:1", False), (None, False)]
)
def test_local_masters(master: str | None, local: bool) -> None:
    assert is_local(master) is local


class FakeContext:
    """A context with as many executors as the test sets."""

    master = "spark://m:7077"
    _conf = SimpleNamespace(get=lambda _, default: default)

    def __init__(self) -> None:
        self.cancelled = 0

    def cancelAllJobs(self) -> None:
        self.cancelled += 1


@pytest.mark.parametrize(("before", "words"), [(0, "no executor has registered"), (2, "the last executor of")])
def test_a_job_without_executors_is_cancelled_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, before: int, words: str
) -> None:
    counts = {"executors": before}
    monkeypatch.setattr(spark_cluster, "count_executors", lambda _: counts["executors"])
    now = [0.0]
    context: Any = FakeContext()
    watch = ExecutorWatch(context, clock=lambda: now[0], limit_s=30.0)
    watch.poll()
    counts["executors"] = 0
    for now[0] in (10.0, 29.0):
        watch.poll()
    assert (context.cancelled, watch.problem) == (0, None)
    for now[0] in (31.0, 32.0):
        watch.poll()
    assert context.cancelled == 1
    assert words in (watch.problem or "")


def test_the_archive_contains_everything_a_worker_needs(tmp_path: Path) -> None:
    with tarfile.open(build_archive(str(tmp_path))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no filters
        archive.extractall(tmp_path / "there")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import minibroker.audit.spark.spark_job;"
        "import minibroker.audit.checks.partition_check;"
        "print(minibroker.audit.spark.spark_job.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "there")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.stdout.startswith(str(tmp_path / "there")), ran.stderr
