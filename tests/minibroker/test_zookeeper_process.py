"""The background ZooKeeper: which Java, the port's owner, and when it is ready."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.local_cluster.zookeeper_process import (
    MissingJava,
    PortTaken,
    ZooKeeperFailed,
    ZooKeeperProcess,
    ask_zookeeper,
    command_of,
    find_java,
    find_port_owner,
    java_version,
    last_reasons,
    refuse_taken_port,
    start_zookeeper,
    zookeeper_configuration,
)
from tests.zookeeper_fixture import free_port


def fake_java(directory: Path, version_line: str) -> Path:
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_java_home_is_preferred_to_the_path(tmp_path: Path) -> None:
    home, on_path = tmp_path / "home", tmp_path / "path"
    chosen = fake_java(home, 'openjdk version "21.0.1" 2023-10-17')
    fake_java(on_path, 'openjdk version "17.0.15" 2025-04-15')
    path = f"{on_path / 'bin'}:/bin"
    java = find_java({"JAVA_HOME": str(home), "PATH": path})
    assert (java.path, java.version) == (str(chosen), 21)
    assert find_java({"PATH": path}).version == 17


@pytest.mark.parametrize(
    ("version_line", "found"), [('java version "1.8.0_402"', "Java 8"), ('openjdk version "11.0.2"', "Java 11")]
)
def test_old_java_is_refused_with_the_cure(tmp_path: Path, version_line: str, found: str) -> None:
    fake_java(tmp_path, version_line)
    with pytest.raises(MissingJava, match=f"{found}, but 17 or newer is needed: apt-get install"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_java_does_not_see_the_ctrl_c_of_the_terminal(tmp_path: Path) -> None:
    """It ended without an answer, and `cluster up` said that it is not installed."""
    java = fake_java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    java.write_text(java.read_text() + 'cut -d" " -f5 /proc/$$/stat > "$0.group"\n')
    assert java_version(str(java)) == 21
    assert int(Path(f"{java}.group").read_text()) != os.getpgrp()


def test_missing_java_is_reported_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(MissingJava, match="no Java found in JAVA_HOME or PATH: apt-get install"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(MissingJava, match="JAVA_HOME is /nowhere"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": os.environ["PATH"]})


def test_taken_port_is_named_with_its_owner() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        owner = find_port_owner(port)
        assert owner is not None
        assert owner.pid == os.getpid()
        with pytest.raises(PortTaken, match=rf"port {port} is taken by pid {os.getpid()} \(.*python.*: end it, or"):
            refuse_taken_port(port)
    assert find_port_owner(port) is None
    refuse_taken_port(port)


def test_the_command_of_a_process_is_one_line() -> None:
    """`python -c` with a script of several lines made an error of several lines."""
    script = "print(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert command_of(child.pid).endswith(" -c print(flush=True) input()")


def test_the_configuration_names_no_path() -> None:
    """Under a directory with an umlaut or a backslash ZooKeeper wrote its data beside that directory: `--wipe` left it,
    and the next cluster of that name had the topics, but not the records, of the former one."""
    assert "dataDir=./data\n" in zookeeper_configuration(2181, 500)


@pytest.mark.system
async def test_ready_means_that_it_serves(zookeeper: ZooKeeperProcess) -> None:
    await zookeeper.wait_ready(10)
    assert "Mode: standalone" in await ask_zookeeper(zookeeper.port, "srvr")
    assert await ask_zookeeper(zookeeper.port, "ruok") == "imok"


@pytest.mark.system
async def test_nothing_is_started_on_a_taken_port(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    with pytest.raises(PortTaken, match=f"port {zookeeper.port} is taken by pid {zookeeper.pid} "):
        start_zookeeper(str(tmp_path / "second"), zookeeper.port)
    assert not (tmp_path / "second").exists()


@pytest.mark.system
def test_another_zookeeper_on_the_port_does_not_make_ours_ready(zookeeper: ZooKeeperProcess, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ours:
        process = ZooKeeperProcess(ours.pid, zookeeper.port, str(tmp_path / "log"), ours)
        with pytest.raises(ZooKeeperFailed, match="not ready"):
            asyncio.run(process.wait_ready(0.3))
        ours.communicate(b"\n")


@pytest.mark.system
async def test_a_started_zookeeper_is_found_by_its_pid_and_stopped(tmp_path: Path) -> None:
    directory = tmp_path / "zoo\\keeper größe"
    started = start_zookeeper(str(directory), free_port())
    try:
        await started.wait_ready(30)
        assert (directory / "data" / "version-2").is_dir(), "where its owner looks for it"
        assert os.listdir(tmp_path) == [directory.name]
        assert os.getpgid(started.pid) != os.getpgid(0), "our Ctrl-C must not reach it"
        later = ZooKeeperProcess(started.pid, started.port, started.log_file)
        await later.wait_ready(1)
    finally:
        await started.stop()
    assert not started.is_alive()
    assert not later.is_alive()
    await later.stop()
    with pytest.raises(ZooKeeperFailed, match="has ended"):
        await later.wait_ready(1)


@pytest.mark.system
async def test_a_paused_zookeeper_is_stopped(tmp_path: Path) -> None:
    started = start_zookeeper(str(tmp_path / "zookeeper"), free_port())
    os.kill(started.pid, signal.SIGSTOP)
    await started.stop(timeout=2)
    assert not started.is_alive()


def test_the_reason_is_what_the_starting_thread_wrote_last() -> None:
    """A closing question of ours was logged between the cause and the exit, and hid the cause."""
    log = [
        "2026-11-27T14:29:11.1Z main ERROR Unexpected exception, exiting abnormally",
        "java.io.FileNotFoundException: version-2/snapshot.0 (Not a directory)",
        "\tat java.base/java.io.FileOutputStream.open0(Native Method)",
        "",
        "2026-11-27T14:29:11.2Z NIOWorkerThread-1 ERROR Error closing a command socket",
        "java.lang.NullPointerException: this.zkDb is null",
        "2026-11-27T14:29:11.3Z main ERROR Exiting JVM with code 1",
    ]
    assert last_reasons(log) == [log[0], log[1], log[6]]
    assert last_reasons(log[4:6]) == log[4:6], "without an entry of main, what there is"
    assert last_reasons(["Unrecognized VM option 'X'"]) == ["Unrecognized VM option 'X'"]
    assert last_reasons([]) == []


@pytest.mark.system
async def test_a_failed_start_reports_the_end_of_the_log(tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "version-2").write_bytes(b"where a directory should be")
    started = start_zookeeper(str(directory), free_port())
    try:
        with pytest.raises(ZooKeeperFailed, match=r"has ended at start; .*zookeeper.log ends with: .*version-2"):
            await started.wait_ready(30)
    finally:
        await started.stop()
