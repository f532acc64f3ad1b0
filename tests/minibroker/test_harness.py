"""The harness where no broker runs: options that no cluster has, names of projects, filters of blocked links."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.client.producer.producer import Producer
from minibroker.harness import packet_filters
from minibroker.harness.cluster import Party, UnsupportedByBackend
from minibroker.harness.compose import ComposeHarness
from minibroker.harness.compose_project import ComposeProject
from minibroker.harness.container_engine import ComposeFailed
from minibroker.harness.packet_filters import PacketFilters
from minibroker.simulation.world.world import ProcessCrashed
from minibroker.testing import ClusterHarness, NeedsRealTime, cluster, run, simulated
from minibroker.testing.opening import CommandLine


class RecordedProject(ComposeProject):
    """A project without an engine: it keeps the commands, and fails those that contain a word of `failing`."""

    def __init__(self, directory: Path) -> None:
        super().__init__("project", directory)
        self.commands: list[str] = []
        self.failing: set[str] = set()
        self.iterations = 0
        """Of the event loop, for each command."""
        self.addresses: dict[str, str] = {}
        """Where they are not address-SERVICE."""
        self.process_ids = {f"broker{number}": str(1000 + number) for number in self.ports}
        self.down_services: set[str] = set()
        self._compose = ("docker-compose",)

    async def inspect(self, service: str, form: str) -> str:
        if "Status" in form:
            return "exited" if service in self.down_services else "running"
        if "Pid" in form:
            return "0" if service in self.down_services else self.process_ids[service]
        return "" if service in self.down_services else self.addresses.get(service, f"address-{service}")

    async def run(self, *command: str, within_s: float = 0.0, given: bytes = b"") -> str:
        line = " ".join(command)
        self.commands.append(line)
        for _ in range(self.iterations):
            await asyncio.sleep(0)
        if any(word in line for word in self.failing):
            raise ComposeFailed(f"`{line}` fails")
        return "paused-1" if "status=paused" in line else ""

    def rules(self) -> list[str]:
        """The rules in place, in the order in which they came."""
        found: list[str] = []
        for line in self.commands:
            words = line.split()
            change, rule = words[7], f"{words[2]} {' '.join(words[8:])}"
            if change == "-A":
                found.append(rule)
            else:
                found.remove(rule)
        return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedProject:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    return RecordedProject(tmp_path)


# ------------------------------------------------------------------------------------------------------------ options
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "docker"}, "backend must be simulated, processes or compose, not 'docker'"),
        ({"brokers": 0}, "brokers must be 1 to 100, not 0"),
        ({"brokers": -1, "backend": "processes"}, "brokers must be 1 to 100, not -1"),
    ],
)
def test_options_that_no_cluster_has_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cluster(**options)


def test_a_real_back_end_on_a_virtual_loop_is_refused_with_the_cure() -> None:
    async def story() -> None:
        async with cluster(backend="processes"):
            pass

    with pytest.raises(NeedsRealTime, match=r"run it with asyncio\.run"):
        run(story())


def test_the_command_line_takes_a_simulated_test_to_a_real_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandLine, "backend", "compose")

    @simulated(brokers=5)
    async def story(c: ClusterHarness) -> None:
        raise AssertionError("no cluster of containers has five brokers")

    with pytest.raises(UnsupportedByBackend, match="has 3 brokers"):
        story()


# ------------------------------------------------------------------------------------------------------------ projects
@pytest.fixture
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path


def test_two_clusters_of_containers_in_one_process_have_projects_of_their_own(own_temporary_directory: Path) -> None:
    first, second = ComposeHarness().project, ComposeHarness().project
    assert first.name != second.name
    assert first.image != second.image


async def test_a_project_is_removed_although_a_paused_container_cannot_be_resumed(project: RecordedProject) -> None:
    project.failing = {"unpause"}
    await project.down(remove_image=True)
    kinds = [" ".join(line.split()[:2]) for line in project.commands]
    assert kinds == ["docker ps", "docker unpause", "docker-compose down", "docker image"]


async def test_the_image_is_removed_although_the_project_cannot_be(project: RecordedProject) -> None:
    project.failing = {"docker-compose down"}
    with pytest.raises(ComposeFailed, match="docker-compose down"):
        await project.down(remove_image=True)
    assert project.commands[-1].startswith("docker image rm")


async def test_a_start_that_fails_leaves_no_image(
    own_temporary_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ComposeHarness()
    harness.project = project = RecordedProject(own_temporary_directory)

    async def fails() -> None:
        raise ComposeFailed("the image cannot be built")

    monkeypatch.setattr(project, "up", fails)
    with pytest.raises(ComposeFailed, match="cannot be built"):
        async with harness:
            pass
    assert project.commands[-1].startswith("docker image rm")


async def test_a_broker_that_ends_while_the_cluster_starts_is_named_with_its_last_words(
    own_temporary_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ComposeHarness()
    harness.project = project = RecordedProject(own_temporary_directory)
    project.down_services = {"broker2"}
    monkeypatch.setattr(project, "last_log_lines", lambda service, count: [f"error: {service} has no such setting"])
    monkeypatch.setattr(project, "up", lambda: asyncio.sleep(0))
    with pytest.raises(ComposeFailed, match="broker 2 has ended by itself: error: broker2 has no such setting"):
        await harness.up()


async def test_containers_are_removed_however_often_the_test_is_cancelled(
    own_temporary_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ComposeHarness()
    harness.project = project = RecordedProject(own_temporary_directory)
    runs = asyncio.Event()

    async def up() -> None:
        runs.set()

    async def story() -> None:
        async with harness:
            await asyncio.Event().wait()

    monkeypatch.setattr(harness, "up", up)
    test = asyncio.create_task(story())
    await runs.wait()
    project.iterations = 10
    while not test.done():
        test.cancel()
        await asyncio.sleep(0)
    assert test.cancelled()
    assert [" ".join(line.split()[:2]) for line in project.commands][-2:] == ["docker-compose down", "docker image"]


async def test_a_cancelled_command_ends_with_the_commands_that_it_started(tmp_path: Path) -> None:
    """docker-compose starts `docker build`, which would name an image after the project is removed."""
    held_open = tmp_path / "held-open"
    os.mkfifo(held_open)
    started_by_it = f"(echo runs; exec sleep 30) > {held_open}"
    command = asyncio.create_task(ComposeProject("project", tmp_path).run("sh", "-c", f"{started_by_it} & wait"))
    with await asyncio.to_thread(held_open.open) as output:
        assert await asyncio.to_thread(output.readline) == "runs\n"
        command.cancel()
        async with asyncio.timeout(10):
            await asyncio.wait([command])
            assert await asyncio.to_thread(output.read) == ""
    assert command.cancelled()


async def test_a_pause_that_the_engine_refuses_is_tried_again(
    own_temporary_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ComposeHarness()
    harness.project = project = RecordedProject(own_temporary_directory)
    monkeypatch.setattr(project, "container", lambda service: asyncio.sleep(0, service))
    refusals = [ComposeFailed("cannot freeze")]
    run = project.run

    async def refused_once(*command: str, within_s: float = 0.0, given: bytes = b"") -> str:
        output = await run(*command)
        if refusals:
            raise refusals.pop()
        return output

    monkeypatch.setattr(project, "run", refused_once)
    await harness.pause(1)
    assert project.commands == ["docker pause broker1"] * 2


# ------------------------------------------------------------------------------------------------------- blocked links
async def test_a_refused_block_leaves_nothing_to_heal(
    project: RecordedProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = PacketFilters(project)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnsupportedByBackend, match="as root only"):
        await filters.block(1, 2)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    project.failing = {"iptables"}
    with pytest.raises(ComposeFailed):
        await filters.block(1, 2)
    project.commands.clear()
    await filters.heal()
    await filters.renew(1)
    assert project.commands == []


async def test_a_link_that_is_blocked_twice_has_one_rule(project: RecordedProject) -> None:
    filters = PacketFilters(project)
    await filters.block(1, 2)
    await filters.block(1, 2)
    assert project.rules() == ["1002 INPUT -s address-broker1 -j DROP"]
    await filters.heal()
    assert project.rules() == []


async def test_heal_unblocks_the_other_links_if_one_cannot_be(project: RecordedProject) -> None:
    filters = PacketFilters(project)
    for source, target in itertools.permutations((1, 2, 3), 2):
        await filters.block(source, target)
    project.failing = {"1002"}
    with pytest.raises(ComposeFailed, match="1002"):
        await filters.heal()
    project.failing.clear()
    project.commands.clear()
    await filters.heal()
    assert len(project.commands) == 2
    assert all("1002" in line for line in project.commands)


@pytest.mark.parametrize(("source", "target"), [(1, 2), (2, 1), (1, "clients"), ("zookeeper", 1)])
async def test_a_link_stays_blocked_over_a_restart_of_one_end(
    project: RecordedProject, source: Party, target: Party
) -> None:
    filters = PacketFilters(project)
    await filters.block(source, target)
    rules = len(project.rules())
    project.process_ids["broker1"] = "2001"
    await filters.renew(1)
    at_one = target in (1, "clients")
    live = [rule for rule in project.rules() if not rule.startswith("1001 ")]
    assert len(live) == rules
    assert live[0].startswith("2001 " if at_one else "1002 ")
    await filters.heal()
    assert [rule for rule in project.rules() if not rule.startswith("1001 ")] == []


@pytest.mark.parametrize("down", ["broker1", "broker2"])
async def test_a_link_to_a_broker_that_is_down_is_blocked_when_it_starts(project: RecordedProject, down: str) -> None:
    filters = PacketFilters(project)
    project.down_services = {down}
    await filters.block(1, 2)
    assert project.rules() == []
    project.down_services.clear()
    await filters.renew(int(down[-1]))
    assert project.rules() == ["1002 INPUT -s address-broker1 -j DROP"]


async def test_a_link_to_zookeeper_stays_blocked_though_its_address_changes(project: RecordedProject) -> None:
    """A broker that starts meanwhile may get its former address."""
    filters = PacketFilters(project)
    await filters.block(1, "zookeeper")
    project.addresses["zookeeper"] = "another"
    await filters.renew("zookeeper")
    assert project.rules() == ["1001 OUTPUT -d another -j DROP"]


async def test_a_lossy_link_may_be_blocked_as_well_and_stays_lossy(project: RecordedProject) -> None:
    lossy = "1002 INPUT -s address-broker1 -m statistic --mode random --probability {} -j DROP"
    filters = PacketFilters(project)
    await filters.lose(1, 2, 0.2)
    await filters.block(1, 2)
    await filters.unblock(1, 2)
    assert project.rules() == [lossy.format("0.2")]
    await filters.lose(1, 2, 0.5)
    assert project.rules() == [lossy.format("0.5")]
    await filters.lose(1, 2, 0.0)
    assert project.rules() == []


async def test_a_reset_leaves_no_rule(project: RecordedProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_filters, "RESET_SECONDS", 0.0)
    filters = PacketFilters(project)
    await filters.reset(1, "clients")
    added = [line.split("iptables -w 10 ")[1] for line in project.commands]
    answer = "-p tcp -j REJECT --reject-with tcp-reset"
    assert added == [
        f"-I INPUT -s address-broker1 {answer}",
        f"-I OUTPUT -d address-broker1 {answer}",
        f"-D INPUT -s address-broker1 {answer}",
        f"-D OUTPUT -d address-broker1 {answer}",
    ]
    project.commands.clear()
    project.failing = {"-I OUTPUT"}
    with pytest.raises(ComposeFailed):
        await filters.reset(2, 3)
    assert [line.split()[7] for line in project.commands] == ["-I", "-I", "-D"]


def test_bug_that_would_end_a_real_broker_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broken invariant is such an exception. The harness only logged it, and the test passed."""

    def fail(*_: object) -> None:
        raise AssertionError("planted")

    async def live() -> None:
        async with cluster() as c:
            await c.create_topic("orders")
            async with Producer(bootstrap_servers=c.bootstrap_servers) as producer:
                with monkeypatch.context() as patched:
                    patched.setattr(PartitionLog, "append", fail)
                    delivery = await producer.send("orders", b"1", partition=0)
                    await asyncio.sleep(1)
                await delivery

    with pytest.raises(ProcessCrashed, match=r"broker-.*planted"):
        run(live())
