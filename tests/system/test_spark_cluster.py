"""The audit on a real standalone master: workers that are killed halfway, workers without any package."""

import os
import re
import subprocess
import sys
import threading
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minibroker.audit.errors import AuditError
from minibroker.audit.reports.report import AuditReport
from minibroker.audit.run import run_audit
from minibroker.audit.spark import spark_cluster
from minibroker.audit.spark.prerequisites import package_root
from minibroker.protocol.ids import TopicPartition
from tests.audit import damage
from tests.audit.planted_cluster import PlantedCluster, encode, restamped

pyspark = pytest.importorskip("pyspark")
pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(180)]

from tests.system.standalone_spark import StandaloneSpark, standalone_spark  # noqa: E402

LINES = TopicPartition("lines", 0)
RECORDS = 500
BATCHES = 500
"""Decoding them one by one takes some seconds."""
SUBMIT = Path(package_root(), "minibroker", "audit", "submit.py").resolve()
SPARK_HOME = Path(pyspark.__file__).parent


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path_factory.mktemp("long"))
    (batch,) = encode([(0, [b"x"] * RECORDS)])
    copies = [restamped(batch, number * RECORDS, 0) for number in range(BATCHES)]
    for number in range(4):
        cluster.write(TopicPartition("lines", number), copies)
    return cluster


def audit_and_kill(cluster: PlantedCluster, spark: StandaloneSpark, when: str) -> AuditReport:
    """Audit; kill the first worker as soon as the progress matches `when`."""
    killed = threading.Event()

    def look(sentence: str) -> None:
        if re.search(when, sentence) and not killed.is_set():
            killed.set()
            spark.kill(spark.workers[0])

    try:
        return run_audit([str(cluster.root)], records=True, master=spark.url, progress=look)
    finally:
        assert killed.is_set()


def test_an_audit_survives_the_kill_of_one_of_two_workers(tmp_path: Path, long_log: PlantedCluster) -> None:
    with standalone_spark(tmp_path, workers=2) as spark:
        report = audit_and_kill(long_log, spark, r"^Spark: [1-9]\d* of \d+ portions")
    assert (report.summary, report.exit_code) == (
        f"consistent: 12 replicas of 4 partitions were compared below their committed offsets"
        f" ({4 * BATCHES * RECORDS} of {4 * BATCHES * RECORDS} offsets), all agree",
        0,
    )


def test_the_kill_of_the_last_worker_is_reported_in_one_sentence(
    tmp_path: Path, long_log: PlantedCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_cluster, "EXECUTOR_SECONDS", 15.0)
    with standalone_spark(tmp_path, workers=1) as spark:
        words = f"the last executor of {spark.url} is gone, and no other has registered within 15 s"
        with pytest.raises(AuditError, match=f"^{re.escape(words)}$"):
            audit_and_kill(long_log, spark, r"^Spark: [1-9]\d* of \d+ portions")
    assert capfd.readouterr() == ("", "")


def by_command_line(url: str, directory: str) -> list[str]:
    return [sys.executable, "-m", "minibroker", "audit", directory, "--master", url]


def by_spark_submit(url: str, directory: str) -> list[str]:
    return [str(SPARK_HOME / "bin" / "spark-submit"), "--master", url, str(SUBMIT), directory]


@pytest.fixture(scope="module")
def spark_of_one_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with standalone_spark(tmp_path_factory.mktemp("spark"), workers=1) as spark:
        yield spark


@pytest.mark.parametrize("command", [by_command_line, by_spark_submit])
def test_workers_with_a_bare_python_get_the_package(
    tmp_path: Path, spark_of_one_worker: StandaloneSpark, command: Callable[[str, str], list[str]]
) -> None:
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, damage.ENCODED)
    expected = damage.flip_bit(cluster.replica(damage.BROKER, LINES))
    venv.create(tmp_path / "bare", symlinks=True)
    environment = os.environ | {
        "PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK_HOME),
    }
    probe = [environment["PYSPARK_PYTHON"], "-c", "import msgspec"]
    assert subprocess.run(probe, capture_output=True, check=False).returncode == 1, "the workers have msgspec"
    program = [*command(spark_of_one_worker.url, str(cluster.root)), "--ship-package"]
    ended = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (10, False), ended.stderr
    assert f"{expected.file} at {expected.position}" in ended.stdout
