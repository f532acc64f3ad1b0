"""What docs/DEPLOYMENT.md asks of an operator: restore a backup, restart broker by broker, use the systemd units."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest

from minibroker.audit.run import LOCAL, run_audit
from minibroker.broker.__main__ import EXIT_REPLACED
from minibroker.broker.configuration.config import load_config
from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.command_line import EXIT_USAGE
from minibroker.local_cluster.cluster_file import ZOOKEEPER_DIRECTORY
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.processes import free_ports
from minibroker.local_cluster.zookeeper_jars import JARS, zookeeper_jars
from minibroker.local_cluster.zookeeper_process import JVM_OPTIONS, MAIN_CLASS, ask_zookeeper, find_java
from minibroker.protocol.ids import TopicPartition
from minibroker.testing import cluster, run
from minibroker.testing.opening import Backend
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

RECORDS = 300
PARTITIONS = 3
UNITS = ROOT / "deploy"
SERVERS = (1, 2, 3)

Places = dict[TopicPartition, list[bytes | None]]


async def write(servers: str, values: Iterable[bytes]) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for value in values:
            await producer.send("orders", value, key=value)


async def read_all(servers: str, count: int) -> Places:
    """Values in the order of each partition; no record may follow the last one."""
    found: Places = {TopicPartition("orders", number): [] for number in range(PARTITIONS)}
    async with Consumer("orders", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        for _ in range(count):
            record = await consumer.getone(timeout_ms=10_000)
            found[TopicPartition("orders", record.partition)].append(record.value)
        assert await consumer.getmany(timeout_ms=500) == {}
    return found


def data_of(local: LocalCluster) -> list[Path]:
    """What a backup contains: each broker's log.dirs, and ZooKeeper's data."""
    return [*map(local.log_directory, local.broker_ids), local.data_directory / ZOOKEEPER_DIRECTORY]


@pytest.mark.parametrize("ending", ["stopped", "killed"])
async def test_a_restored_backup_is_the_cluster_as_it_was(ending: str, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(RECORDS)]
    async with LocalCluster(tmp_path / "data") as local:
        async with AdminClient(bootstrap_servers=local.bootstrap_servers) as admin:
            await admin.create_topic("orders", partitions=PARTITIONS)
        await write(local.bootstrap_servers, values)
        written = await read_all(local.bootstrap_servers, RECORDS)
        if ending == "stopped":
            await local.down()
        else:
            local.kill_all()
            await asyncio.sleep(0.5)  # the processes end
        for directory in data_of(local):
            shutil.copytree(directory, tmp_path / "backup" / directory.name)

        await local.up()
        await write(local.bootstrap_servers, [b"after the backup"] * 50)
        await local.down()
        for directory in data_of(local):
            shutil.rmtree(directory)
            shutil.copytree(tmp_path / "backup" / directory.name, directory)

        await local.up()
        assert await read_all(local.bootstrap_servers, RECORDS) == written
        await write(local.bootstrap_servers, [b"after the restore"])
        await local.down()
    report = run_audit([str(local.data_directory)], engine=LOCAL, records=True)
    assert report.success, report.summary


@pytest.mark.parametrize("backend", ["simulated", "processes"])
def test_clients_lose_nothing_while_brokers_are_restarted_one_by_one(backend: Backend) -> None:
    async def upgrade() -> None:
        async with cluster(brokers=3, backend=backend) as c:
            await c.create_topic("orders", partitions=PARTITIONS)
            acknowledged = []
            async with c.producer(acks="all", delivery_timeout_ms=20_000) as producer:

                async def keep_writing() -> None:
                    for number in range(100_000):
                        value = b"%d" % number
                        acknowledged.append((await producer.send_and_wait("orders", value), value))
                        await asyncio.sleep(0.01)

                async with c.running(keep_writing()):
                    for broker in c.broker_ids:
                        before = len(acknowledged)
                        await c.restart(broker)
                        await c.wait_in_sync("orders")
                        assert len(acknowledged) > before, f"no record was acknowledged while broker {broker} restarted"
            report = await c.audit(acknowledged)
            assert report.success, report.summary

    if backend == "simulated":
        run(upgrade())
    else:
        asyncio.run(upgrade())


def test_the_example_of_a_configuration_is_accepted() -> None:
    config = load_config((UNITS / "broker.properties").read_text())
    assert (config.broker_id, config.min_insync_replicas, config.default_replication_factor) == (1, 2, 3)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", ["minibroker-broker.service", "minibroker-zookeeper.service"])
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    """On this machine the programs are elsewhere, which systemd would complain of."""
    text = (UNITS / unit).read_text().replace("/opt/minibroker/bin/minibroker", "/bin/true")
    text = text.replace("/usr/bin/java", "/bin/true").replace("User=minibroker", "User=root")
    (tmp_path / unit).write_text(text)
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def setting_of(unit: str, name: str) -> str:
    """The value of one line of a unit."""
    found = re.search(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert found is not None, f"{unit} has no {name}"
    return found[1]


def test_a_wait_for_zookeeper_does_not_use_up_the_starts_of_the_unit() -> None:
    """After a power cut one host may be up for minutes before a second one makes a majority. Each wait that was in
    vain is a failed start; once five of them took 100 s, and systemd never started that broker again."""
    wait_s = load_config((UNITS / "broker.properties").read_text()).zookeeper_connection_timeout_ms / 1000
    pause_s = float(setting_of("minibroker-broker.service", "RestartSec"))
    starts = int(setting_of("minibroker-broker.service", "StartLimitBurst"))
    assert starts * (wait_s + pause_s) > float(setting_of("minibroker-broker.service", "StartLimitIntervalSec"))


def test_a_host_that_shuts_down_stops_its_broker_before_its_zookeeper() -> None:
    """systemd stops units in the reverse of their order, and all at once without one. When all hosts go down together,
    a broker needs ZooKeeper until it has handed its leaderships over."""
    assert "minibroker-zookeeper.service" in setting_of("minibroker-broker.service", "After").split()


def test_a_broker_that_another_process_has_replaced_is_not_started_again() -> None:
    """Two processes on copies of one directory would take the id from each other: each start of one ends the other."""
    codes = setting_of("minibroker-broker.service", "RestartPreventExitStatus").split()
    assert {str(EXIT_USAGE), str(EXIT_REPLACED)} == set(codes)


def test_the_unit_starts_the_zookeeper_that_is_installed() -> None:
    assert f"/zookeeper-{JARS[0].version}/*" in setting_of("minibroker-zookeeper.service", "ExecStart")


def test_each_zookeeper_removes_its_old_files() -> None:
    """By itself ZooKeeper keeps every snapshot and every log of transactions, until its disk is full."""
    assert "autopurge.purgeInterval=24" in (UNITS / "zoo.cfg").read_text()
    assert 'ZOO_AUTOPURGE_PURGEINTERVAL: "24"' in (ROOT / "docker-compose.yml").read_text()


def start_server(number: int, directory: Path, ports: list[int]) -> "subprocess.Popen[bytes]":
    """One of the three servers of deploy/zoo.cfg, on a host whose own name means 127.0.1.1. The names of the other two
    mean other addresses, as those of two machines do."""
    (directory / "data").mkdir(parents=True)
    (directory / "data" / "myid").write_text(f"{number}\n")
    names = {each: "127.0.1.1" if each == number else f"127.0.0.{each}" for each in SERVERS}
    (directory / "hosts").write_text("".join(f"{address} host{each}\n" for each, address in names.items()))
    text = (UNITS / "zoo.cfg").read_text().replace("/var/lib/minibroker-zookeeper", str(directory / "data"))
    text = text.replace("clientPort=2181", f"clientPort={ports[number - 1]}")
    for each in SERVERS:
        text = text.replace(f"host{each}:2888:3888", f"host{each}:{ports[each + 2]}:{ports[each + 5]}")
    (directory / "zoo.cfg").write_text(text)
    options = [*JVM_OPTIONS, f"-Djdk.net.hosts.file={directory / 'hosts'}", "-cp", ":".join(zookeeper_jars())]
    with open(directory / "log", "wb") as log:
        return subprocess.Popen(
            [find_java().path, *options, MAIN_CLASS, str(directory / "zoo.cfg")], stdout=log, stderr=log
        )


async def test_three_zookeeper_servers_find_each_other_where_a_host_calls_itself_127_0_1_1(tmp_path: Path) -> None:
    """Debian's installer writes so into /etc/hosts. Once each server then listened for the others at that address
    alone, and there was never a majority. That they find each other also shows that the installed jars are enough."""
    ports = free_ports(9)
    with ExitStack() as ended:
        for number in SERVERS:
            server = start_server(number, tmp_path / str(number), ports)
            ended.callback(server.wait)
            ended.callback(server.kill)
        modes: list[str] = []
        async with asyncio.timeout(20):
            while len(modes) < len(SERVERS):
                await asyncio.sleep(0.2)
                answers = [await ask_zookeeper(port, "srvr") for port in ports[:3]]
                modes = [line for answer in answers for line in answer.splitlines() if line.startswith("Mode:")]
    assert sorted(modes) == ["Mode: follower", "Mode: follower", "Mode: leader"]
