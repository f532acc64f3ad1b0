"""The demo succeeds, and finds each planted error. For speed it uses a small input and the audit without Spark."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "lines"
    path.write_bytes(b"".join(b"%d %s\n" % (number, b"x" * (number % 90)) for number in range(8_000)))
    return path


def run_demo(small_file: Path, sabotage: str) -> tuple[int, str]:
    environment = {**os.environ, "FILE": str(small_file), "DEMO_ENGINE": "local", "DEMO_SABOTAGE": sabotage}
    run = subprocess.run(
        [sys.executable, "-m", "minibroker.demo"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
        check=False,
    )
    kept = re.search(r"stay in (/\S+)", run.stdout)
    if kept is not None:
        shutil.rmtree(kept[1], ignore_errors=True)
    return run.returncode, run.stdout


def test_demo_without_sabotage_succeeds(small_file: Path) -> None:
    code, output = run_demo(small_file, "")
    assert code == 0, output
    assert "verdict: all of it held" in output
    assert re.search(r"was elected leader of lines-0 with epoch 1", output)


@pytest.mark.parametrize(
    ("sabotage", "named"),
    [
        ("drop-record", r"verdict: FAILED: .*acknowledged record is at its offset"),
        ("flip-bit", r"findings \(.*corrupt-batch.*lines-2"),
        ("swap-batch", r"findings \(.*order.*lines-0"),
        ("no-kill", r"verdict: FAILED: a new leader takes over"),
    ],
)
def test_demo_finds_and_names_each_sabotage(small_file: Path, sabotage: str, named: str) -> None:
    code, output = run_demo(small_file, sabotage)
    assert code == 10, output
    assert re.search(named, output), output


def test_unknown_sabotage_is_wrong_usage(small_file: Path) -> None:
    code, output = run_demo(small_file, "nonsense")
    assert code == 2
    assert "drop-record" in output
