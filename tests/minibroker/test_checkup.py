"""What the doctor looks at."""

import socket
from pathlib import Path

import pytest

from minibroker import checkup
from minibroker.checkup import Finding


def test_this_machine_is_well() -> None:
    findings = [checkup.check_python(), checkup.check_packages(), checkup.check_java(), checkup.check_zookeeper_jars()]
    assert checkup.complaint([*findings, checkup.check_audit_packages(), checkup.check_open_files()]) is None


def test_held_port_is_named_with_its_owner_and_a_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (finding,) = checkup.check_ports([port], must_be_free=True)
    assert not finding.well
    assert "held by pid" in finding.what
    assert finding.cure is not None and "--port" in finding.cure


def test_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = checkup.check_java()
    assert not finding.well
    assert str(tmp_path) in finding.what


def test_worker_python_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/not/there")
    finding = checkup.check_audit_packages()
    assert (finding.well, finding.cure) == (False, "unset PYSPARK_PYTHON")


def test_place_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    finding = checkup.check_disk(tmp_path / "not" / "yet")
    assert str(tmp_path) in finding.what


def test_complaint_joins_what_has_the_same_cure() -> None:
    findings = [
        Finding("java", False, "no Java", "install it"),
        Finding("port 1", False, "held by x", "end x"),
        Finding("port 2", False, "held by x", "end x"),
        Finding("disk", True, "fine"),
    ]
    assert checkup.complaint(findings) == "java: no Java (install it); port 1, port 2: held by x (end x)"


async def test_silent_zookeeper_is_named() -> None:
    finding = await checkup.check_zookeeper("127.0.0.1:1")
    assert (finding.well, finding.what) == (False, "127.0.0.1:1 does not answer")


async def test_without_a_cluster_there_is_nothing_to_reach() -> None:
    (finding,) = await checkup.check_listeners("127.0.0.1:1")
    assert finding.well
