"""The built packages contain every folder, although minibroker/ has only links to them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from minibroker.local_cluster.zookeeper_jars import JARS, zookeeper_jars
from tests.tidy.source import PACKAGES, ROOT, project_files
from tests.zookeeper_fixture import free_port

pytest.importorskip("hatchling", reason="`make setup` installs the build backend")
pytestmark = pytest.mark.system

MODULES = {
    file.path if file.folder == "minibroker" else f"minibroker/{file.path}"
    for file in project_files("minibroker", *PACKAGES)
}


def build(kind: str, source: Path, target: Path) -> Path:
    words = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(words, cwd=source, check=True, capture_output=True)
    return next(iter(target.iterdir()))


def test_wheel_contains_every_module(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path)) as wheel:
        assert {name for name in wheel.namelist() if name.endswith(".py")} == MODULES


def test_wheel_of_the_source_archive_contains_every_module(tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as source:
        source.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no filters
        source.extractall(tmp_path / "source")
    unpacked = next((tmp_path / "source").iterdir())
    with zipfile.ZipFile(build("wheel", unpacked, tmp_path / "wheel")) as wheel:
        assert {name for name in wheel.namelist() if name.endswith(".py")} == MODULES


def test_installed_wheel_is_imported_without_the_project(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path / "wheel")) as wheel:
        wheel.extractall(tmp_path / "site")
    names = ", ".join(f"minibroker.{name}" for name in PACKAGES)
    code = f"import {names}; print(minibroker.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert Path(ran.stdout.decode().strip()).is_relative_to(tmp_path)


def test_installed_wheel_provides_the_pytest_plugin(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path / "wheel")) as wheel:
        wheel.extractall(tmp_path / "site")
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_orders.py").write_text(
        "async def test_it(minibroker_cluster):\n    await minibroker_cluster.create_topic('orders')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True, text=True)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def lay_out_repository(folder: Path) -> str:
    """A Maven repository with ZooKeeper's jars; its address."""
    for jar, found in zip(JARS, zookeeper_jars(), strict=True):
        (folder / jar.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, folder / jar.path)
    return folder.as_uri()


@pytest.mark.slow
def test_a_clean_environment_runs_a_cluster_without_pyspark(tmp_path: Path) -> None:
    """From the source archive: pip builds its wheel first, which has all that ours has."""
    package = build("sdist", ROOT, tmp_path / "package")
    venv.create(tmp_path / "clean", with_pip=True)
    programs = tmp_path / "clean" / "bin"
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "JAVA_HOME"))},
    }

    def run(*words: str, succeeds: bool = True) -> str:
        place = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL}
        done = subprocess.run(words, **place, capture_output=True, text=True, timeout=100, check=False)  # type: ignore[call-overload]
        assert (done.returncode == 0) is succeeds, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    pip = ["pip", "install", "-q", "--require-hashes", "-r"]
    for lock in ("build", "broker"):
        words = [*pip, str(ROOT / "requirements" / f"{lock}.lock")]
        fetched = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if "NewConnectionError" in fetched.stderr or "No matching distribution" in fetched.stderr:
            pytest.skip(f"no package index is reached: {fetched.stderr[-200:]}")
        assert fetched.returncode == 0, fetched.stderr
    run("pip", "install", "-q", "--no-deps", "--no-build-isolation", str(package))
    port, zookeeper_port = free_port(), free_port()
    up = ["minibroker", "cluster", "up", "--brokers", "1", "--port", str(port), "--zookeeper-port", str(zookeeper_port)]
    assert "minibroker zookeeper install" in run(*up, succeeds=False)
    run("minibroker", "zookeeper", "install", "--mirror", lay_out_repository(tmp_path / "repository"))
    run(*up)
    try:
        run("minibroker", "topic", "create", "-t", "lines", "--partitions", "1")
        (tmp_path / "lines.txt").write_text("one\ntwo\n")
        run("minibroker", "produce", "-t", "lines", "lines.txt")
        assert run("minibroker", "consume", "-t", "lines", "-e").startswith("one\ntwo\n")
    finally:
        run("minibroker", "cluster", "down")
    assert "consistent" in run("minibroker", "audit", "minibroker-data", "--engine", "local")
