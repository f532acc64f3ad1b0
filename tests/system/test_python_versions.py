"""A fast part of the tests on the newest other version of Python that is installed and that minibroker supports.

The whole suite runs on one version, the oldest as a rule. What lies between the two differs from neither so far: it has
its turn with ALL_PYTHONS=1. This part is where versions differed: event loops and sockets, the virtual loop,
the client, the pytest plugin, the command line. The environments stay in `.venvs/`, so that only a changed lock file
costs time again.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PART = (
    "tests/runtime/test_network.py",
    "tests/runtime/test_wire_conformance.py",
    "tests/runtime/test_rpc.py",
    "tests/runtime/test_server.py",
    "tests/client/test_producer.py",
    "tests/client/test_consumer.py",
    "tests/simulation/test_cluster.py",
    "tests/minibroker/test_testing.py",
    "tests/minibroker/test_command_line.py",
)
LEFT_OUT = "virtual_hour"  # ten seconds for what the others show, too
LOCK = ROOT / "requirements" / "test.lock"
PART_TIMEOUT_S = 300
"""It takes 20 s of a core."""


def interpreter(version: str) -> Path | None:
    """On PATH, or where pyenv and uv put it. A shim that starts no interpreter does not count."""
    found = [shutil.which(f"python{version}")]
    home = Path.home()
    for pattern in (f".pyenv/versions/{version}*/bin/python", f".local/share/uv/python/cpython-{version}*/bin/python3"):
        found += sorted(map(str, home.glob(pattern)))
    for path in filter(None, found):
        asked = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == version:
            return Path(path)
    return None


def environment_of(version: str, python: Path) -> Path:
    """An environment with the locked packages; made once for each content of the lock file."""
    directory = ROOT / ".venvs" / version
    stamp, wanted = directory / ".lock-stamp", hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return directory / "bin" / "python"
    subprocess.run([python, "-m", "venv", "--clear", directory], check=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    fetched = subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], capture_output=True, text=True, check=False)
    if "NewConnectionError" in fetched.stderr or "No matching distribution" in fetched.stderr:
        pytest.skip(f"the package index has not all packages for {version}: {fetched.stderr[-200:]}")
    assert fetched.returncode == 0, fetched.stderr
    stamp.write_text(wanted)
    return directory / "bin" / "python"


@pytest.mark.timeout(600)  # the first time, it fetches packages
@pytest.mark.parametrize("version", VERSIONS)
def test_fast_part_passes_on(version: str) -> None:
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version == running:
        pytest.skip(f"the whole suite runs on Python {version}")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    newer = [each for each in VERSIONS[VERSIONS.index(version) + 1 :] if each != running]
    if not os.environ.get("ALL_PYTHONS") and any(interpreter(each) is not None for each in newer):
        pytest.skip("a newer one is installed; with ALL_PYTHONS=1 it has its turn, too")
    words = [
        str(environment_of(version, python)),
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-k",
        f"not {LEFT_OUT}",
        *PART,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    ran = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PART_TIMEOUT_S, check=False
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
