"""The audit as a process: under spark-submit, and on its own without any foreign output."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.audit.spark.prerequisites import package_root
from minibroker.protocol.ids import TopicPartition
from tests.audit import damage
from tests.audit.damage import BATCHES, ENCODED
from tests.audit.planted_cluster import PlantedCluster

pyspark = pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

LINES = TopicPartition("lines", 0)
SUBMIT = Path(package_root(), "minibroker", "audit", "submit.py").resolve()


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, ENCODED)
    return cluster


def run(command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**inherited, **environment}, check=False
    )


def test_under_spark_submit_findings_exit_with_10(cluster: PlantedCluster, tmp_path: Path) -> None:
    expected = damage.flip_bit(cluster.replica(damage.BROKER, LINES))
    acked = cluster.write_acked(LINES, BATCHES)
    home = Path(pyspark.__file__).parent
    program = [str(home / "bin" / "spark-submit"), "--master", "local[1]", str(SUBMIT), str(cluster.root)]
    ended = run([*program, "--acked", str(acked)], PYSPARK_PYTHON=sys.executable, SPARK_HOME=str(home))
    assert ended.returncode == 10, ended.stderr
    assert f"{expected.file} at {expected.position}" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_the_master_given_to_spark_submit_is_used(cluster: PlantedCluster) -> None:
    home = Path(pyspark.__file__).parent
    program = [str(home / "bin" / "spark-submit"), "--master", "spark://127.0.0.1:1", str(SUBMIT), str(cluster.root)]
    ended = run(program, PYSPARK_PYTHON=sys.executable, SPARK_HOME=str(home))
    assert ended.returncode == 1, ended.stdout
    refused = "audit could not run: Spark's master cannot be reached (127.0.0.1:1: Connection refused)"
    assert refused in (ended.stdout + ended.stderr).splitlines()  # spark-submit writes both into one


def test_without_spark_submit_only_the_report_is_printed(cluster: PlantedCluster) -> None:
    ended = run([sys.executable, str(SUBMIT), str(cluster.root)])
    assert (ended.returncode, ended.stderr) == (0, "")
    compared = "3 replicas of 1 partition were compared below their committed offsets (24 of 24 offsets)"
    assert ended.stdout.splitlines()[-1] == f"consistent: {compared}, all agree"


def test_a_reason_not_to_run_is_one_line(cluster: PlantedCluster) -> None:
    ended = run([sys.executable, str(SUBMIT), str(cluster.root)], JAVA_HOME="/nowhere")
    assert ended.returncode == 1
    assert ended.stderr.startswith("audit could not run: Spark needs Java: JAVA_HOME=/nowhere holds no bin/java")
    assert ended.stderr.count("\n") == 1
