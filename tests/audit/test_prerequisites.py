"""What Spark lacks is reported in one sentence, with the remedy."""

import sys
from pathlib import Path

import pytest

from minibroker.audit.errors import AuditError
from minibroker.audit.spark import prerequisites


def fake_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java(home: Path, version: str, with_vector_module: bool = True) -> None:
    refusal = "" if with_vector_module else 'case "$1" in --add-modules*) exit 1;; esac'
    fake_program(home / "bin" / "java", f"{refusal}\necho 'openjdk version \"{version}\"' >&2")


@pytest.mark.parametrize("version", ["17.0.9", "21", "25.0.1"])
def test_a_recent_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    prerequisites.check_java()


@pytest.mark.parametrize(("version", "shown"), [("11.0.2", "Java 11"), ("1.8.0_292", "Java 8")])
def test_an_old_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, shown: str) -> None:
    java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(AuditError, match=f"{shown}; install a JRE of version 17"):
        prerequisites.check_java()


def test_a_trimmed_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, "17.0.9", with_vector_module=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(AuditError, match="trimmed Java 17 without the module"):
        prerequisites.check_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(AuditError, match=r"JAVA_HOME=.* holds no bin/java"):
        prerequisites.check_java()


def test_without_java_the_error_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AuditError, match=r"no java on PATH.*apt install default-jre-headless.*--engine local"):
        prerequisites.check_java()


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path / "home", "21")
    java(tmp_path / "path", "8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    assert prerequisites.find_java() == str(tmp_path / "home" / "bin" / "java")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo \"ModuleNotFoundError: No module named 'pyarrow'\" >&2; exit 1", "No module named 'pyarrow'"),
        ("echo 3.9", "is Python 3.9"),
    ],
)
def test_an_unusable_worker_python_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    worker = fake_program(tmp_path / "python", script)
    monkeypatch.setenv("PYSPARK_PYTHON", str(worker))
    with pytest.raises(AuditError, match=f"{reason}.*PYSPARK_PYTHON"):
        prerequisites.check_worker_python()


def test_a_missing_worker_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    with pytest.raises(AuditError, match="cannot be started; unset PYSPARK_PYTHON"):
        prerequisites.check_worker_python()


def test_the_drivers_own_python_is_accepted_as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    prerequisites.check_worker_python()


def test_a_missing_library_names_the_extra_and_the_local_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "version", lambda name: "3.5.1")
    with pytest.raises(AuditError, match=r"pyspark 3\.5\.1 is too old.*minibroker\[spark\].*--engine local"):
        prerequisites.check_libraries()
