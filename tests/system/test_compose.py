"""docker-compose.yml does what the README says: up, produce from the host, lose the leader's container, audit."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.compose_cluster import ROOT, ComposeCluster, Failed
from tests.system.engine import compose_command, why_no_engine, why_no_images

pytestmark = [
    pytest.mark.docker,
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine() or "an engine runs"),
]
LINES = 40_000
BROKER_IMAGE_BYTES_MAX = 250_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[ComposeCluster]:
    """Three healthy brokers; nothing is left afterwards, whatever happened."""
    reason = why_no_images()
    if reason:
        pytest.skip(reason)
    cluster = ComposeCluster()
    try:
        cluster.compose("build", "broker1", "audit", within_s=900)
        cluster.compose("up", "-d", within_s=300)
        cluster.minibroker("cluster", "wait", "-b", cluster.servers, "--brokers", "3", "--timeout", "60", within_s=70)
        yield cluster
    except Failed as error:
        pytest.fail(f"{error}\n{cluster.logs()}", pytrace=False)
    finally:
        cluster.compose("--profile", "audit", "down", "-v", "--remove-orphans", within_s=180)


def line(number: int) -> bytes:
    return b"line %d, and some more bytes so that a batch does not hold all of them" % number


def test_containers_of_all_brokers_become_healthy(cluster: ComposeCluster) -> None:
    deadline = time.monotonic() + 60
    while (health := [cluster.health(f"broker{number}") for number in (1, 2, 3)]) != ["healthy"] * 3:
        assert time.monotonic() < deadline, health
        time.sleep(1)


async def test_records_survive_the_leaders_container_and_the_audit_agrees(
    cluster: ComposeCluster, tmp_path: Path
) -> None:
    topic, report = "lines", tmp_path / "acked.tsv"
    created = ["topic", "create", "-b", cluster.servers, "-t", topic, "--partitions", "1", "--replication-factor", "3"]
    cluster.minibroker(*created)
    producer = cluster.start_producer(topic, report)
    killed = await write_and_kill_the_leader(cluster, producer, topic)
    said = await asyncio.to_thread(producer.communicate, None, 120)
    assert producer.returncode == 0, said[0].decode(errors="replace") + cluster.logs()

    consumed = cluster.minibroker("consume", "-b", cluster.servers, "-t", topic, "-e", within_s=120)
    assert consumed.encode().split(b"\n")[:-1] == [line(number) for number in range(LINES)]
    assert (await cluster.partition(topic)).leader_id != killed

    cluster.compose("start", f"broker{killed}")
    await cluster.until_partition(topic, lambda partition: len(partition.isr_nodes) == 3, within_s=60)
    cluster.compose("stop", within_s=180)
    assert audit(cluster, report) == 0


async def write_and_kill_the_leader(cluster: ComposeCluster, producer: subprocess.Popen[bytes], topic: str) -> int:
    """Half of the lines, a SIGKILL for the leader's container, the other half. Returns the killed broker's id."""
    sink = producer.stdin
    assert sink is not None
    await asyncio.to_thread(sink.write, b"".join(line(number) + b"\n" for number in range(LINES // 2)))
    await asyncio.to_thread(sink.flush)
    killed = (await cluster.partition(topic)).leader_id
    cluster.kill(killed)
    await asyncio.to_thread(sink.write, b"".join(line(number) + b"\n" for number in range(LINES // 2, LINES)))
    return killed


def audit(cluster: ComposeCluster, report: Path) -> int:
    directories = [f"/logs/broker{number}/log" for number in (1, 2, 3)]
    report.parent.chmod(0o755)  # read in the container by another user
    report.chmod(0o644)
    words = ["run", "--rm", "-T", "-v", f"{report}:/acked:ro", "audit", *directories, "--output", "/report"]
    try:
        cluster.compose("--profile", "audit", *words, "--acked", "/acked", within_s=240)
    except Failed as error:
        pytest.fail(str(error), pytrace=False)
    return 0


def test_broker_image_is_small_and_runs_as_a_named_user(cluster: ComposeCluster) -> None:
    inspect = ["docker", "image", "inspect", "minibroker", "-f", "{{.Size}} {{.Config.User}}"]
    size, user = subprocess.run(inspect, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert int(size) < BROKER_IMAGE_BYTES_MAX
    assert user == "minibroker"


def test_compose_file_needs_no_feature_newer_than_1_29() -> None:
    command = compose_command()
    assert command is not None
    text = (ROOT / "docker-compose.yml").read_text()
    assert not [word for word in ("\nname:", "\nversion:", "start_interval") if word in text]
    subprocess.run([*command, "config", "-q"], cwd=ROOT, check=True, capture_output=True)
