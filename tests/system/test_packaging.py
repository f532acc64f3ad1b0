"""The built packages contain every folder, although minibroker/ has only links to them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.tidy.source import PACKAGES, ROOT, project_files

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
        source.extractall(tmp_path / "source", filter="data")
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
