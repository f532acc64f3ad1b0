"""docker-compose.yml does what docs/DOCKER.md says: up, produce from the host, lose the leader's container, audit.

The fixtures are the steps, each run once: `cluster` (built), `seconds_until_ready` (up), `story` (written, killed,
read), `stopped`. `pytest -s` shows what happened.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from minibroker.harness.container_engine import compose_command
from tests.system.compose_cluster import ROOT, ComposeCluster, Failed, why_no_engine, why_no_images

pytestmark = [
    pytest.mark.docker,
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine() or "an engine runs"),
]
BROKERS = ("broker1", "broker2", "broker3")
TOPIC = "lines"
LINES = 40_000
BROKER_IMAGE_BYTES_MAX = 250_000_000
READY_SECONDS_MAX = 45
"""About nine seconds on an idle machine."""
STOP_SECONDS_MAX = 20
"""About one second on an idle machine; a broker that must be killed takes the 40 s of stop_grace_period."""

FLIP_ONE_BIT = """
import pathlib
[path] = pathlib.Path('/data/log/lines-0').glob('00000000000000000000.log')
with path.open('r+b') as file:
    file.seek(5000)
    byte = file.read(1)[0]
    file.seek(5000)
    file.write(bytes([byte ^ 1]))
"""


@dataclass(frozen=True)
class Story:
    killed: int
    """The leader; its container got a SIGKILL halfway."""
    leader_after: int
    producer_exit_code: int
    producer_output: str
    read: list[bytes]
    epochs: Counter[int]
    """Records by leader epoch."""
    report: Path
    """Lists every acknowledged record."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ComposeCluster]:
    """Three brokers; everything is removed afterwards, whatever happened."""
    reason = why_no_images()
    if reason:
        pytest.skip(reason)
    cluster = ComposeCluster()
    try:
        cluster.compose("build", "broker1", "audit", within_s=900)
        cluster.print("built both images")
        yield cluster
    except Failed as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        cluster.remove_everything()


@pytest.fixture(scope="module")
def seconds_until_ready(cluster: ComposeCluster) -> float:
    started = time.monotonic()
    cluster.compose("up", "-d", within_s=300)
    try:
        output = cluster.minibroker("cluster", "wait", "-b", cluster.servers, "--brokers", "3", "--timeout", "60")
    except Failed as error:
        pytest.fail(f"{error}\n{cluster.logs()}", pytrace=False)
    seconds = time.monotonic() - started
    cluster.print(f"{seconds:.1f} s after docker-compose up -d: {output.strip()}")
    return seconds


@pytest.fixture(scope="module")
def story(cluster: ComposeCluster, seconds_until_ready: float, tmp_path_factory: pytest.TempPathFactory) -> Story:
    report = tmp_path_factory.mktemp("compose") / "acked.tsv"
    words = ["-b", cluster.servers, "-t", TOPIC, "--partitions", "1", "--replication-factor", "3"]
    cluster.print(cluster.minibroker("topic", "create", *words).strip())
    producer = cluster.start_producer(TOPIC, report)
    killed = write_and_kill_the_leader(cluster, producer)
    output = producer.communicate(timeout=120)[0].decode(errors="replace").strip()
    cluster.print(f"the producer ended with {producer.returncode}: {output.splitlines()[-1]}")
    leader_after = cluster.partition(TOPIC).leader_id
    cluster.compose("start", f"broker{killed}")
    seconds = cluster.until("three in sync", lambda: len(cluster.partition(TOPIC).isr_nodes) == 3, within_s=60)
    cluster.print(f"started broker{killed} again; it was in the ISR {seconds:.1f} s later")
    read = cluster.minibroker("consume", "-b", cluster.servers, "-t", TOPIC, "-e", "-f", r"%e %s\n", within_s=120)
    pairs = [line.split(b" ", 1) for line in read.encode().split(b"\n")[:-1]]
    epochs = Counter(int(epoch) for epoch, _ in pairs)
    cluster.print(f"read {len(pairs)} records; by leader epoch: {dict(sorted(epochs.items()))}")
    return Story(killed, leader_after, producer.returncode, output, [value for _, value in pairs], epochs, report)


@pytest.fixture(scope="module")
def stopped(cluster: ComposeCluster, story: Story) -> float:
    """Stop the brokers; the seconds that it took."""
    started = time.monotonic()
    cluster.compose("stop", *BROKERS, within_s=180)
    seconds = time.monotonic() - started
    cluster.compose("stop", within_s=60)
    cluster.print(f"stopped the brokers in {seconds:.1f} s")
    return seconds


def line(number: int) -> bytes:
    return b"line %d, and some more bytes so that a batch does not hold all of them" % number


def write_and_kill_the_leader(cluster: ComposeCluster, producer: subprocess.Popen[bytes]) -> int:
    """Write half of the lines, SIGKILL the leader's container, write the rest. Returns the killed broker's id."""
    sink = producer.stdin
    assert sink is not None
    sink.write(b"".join(line(number) + b"\n" for number in range(LINES // 2)))
    sink.flush()
    before = cluster.partition(TOPIC)
    cluster.kill(before.leader_id)
    cluster.print(f"docker kill of broker{before.leader_id}, leader with epoch {before.leader_epoch}, halfway")
    sink.write(b"".join(line(number) + b"\n" for number in range(LINES // 2, LINES)))
    sink.flush()
    seconds = cluster.until(
        "another leader", lambda: cluster.partition(TOPIC).leader_id not in (-1, before.leader_id), 60
    )
    after = cluster.partition(TOPIC)
    cluster.print(
        f"broker{after.leader_id} was elected with epoch {after.leader_epoch}, {seconds:.1f} s after the kill"
    )
    return before.leader_id


def test_cluster_is_ready_soon(seconds_until_ready: float) -> None:
    assert seconds_until_ready < READY_SECONDS_MAX


def test_brokers_become_healthy(cluster: ComposeCluster, seconds_until_ready: float) -> None:
    def healthy() -> bool:
        return all(cluster.inspect(broker, "{{.State.Health.Status}}") == "healthy" for broker in BROKERS)

    cluster.print(f"all containers healthy {cluster.until('healthy', healthy, within_s=30):.1f} s later")


def test_broker_is_the_containers_first_process_and_its_user_has_a_name(
    cluster: ComposeCluster, seconds_until_ready: float
) -> None:
    assert cluster.inside("broker1", "id", "-un").strip() == "minibroker"
    assert cluster.inside("broker1", "cat", "/proc/1/cmdline").split("\0")[-2] == "broker"


def test_broker_image_is_small(cluster: ComposeCluster) -> None:
    words = ["docker", "image", "inspect", cluster.environment["BROKER_IMAGE"], "-f", "{{.Size}}"]
    size = int(subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    cluster.print(f"the broker's image has {size / 1e6:.0f} MB")
    assert size < BROKER_IMAGE_BYTES_MAX


def test_broker_that_loses_zookeeper_is_not_healthy_until_it_is_back(
    cluster: ComposeCluster, seconds_until_ready: float
) -> None:
    def health() -> tuple[int, str]:
        return cluster.exit_code("exec", "-T", "broker1", "minibroker-healthcheck")

    cluster.compose("pause", "zookeeper")
    try:
        cluster.until("unhealthy", lambda: health()[0] == 1, within_s=20)
        cluster.print(f"ZooKeeper paused; broker1's health check: {health()[1].strip()}")
    finally:
        cluster.compose("unpause", "zookeeper")
    cluster.until("healthy again", lambda: health()[0] == 0, within_s=30)
    cluster.print(f"ZooKeeper is back; broker1's health check: {health()[1].strip()}")
    cluster.minibroker("cluster", "wait", "-b", cluster.servers, "--brokers", "3", "--timeout", "40")


def test_writes_continue_when_the_leaders_container_is_killed(story: Story) -> None:
    assert story.producer_exit_code == 0, story.producer_output
    assert story.leader_after != story.killed
    assert len(story.epochs) > 1


def test_all_that_was_written_is_read_by_the_host(story: Story) -> None:
    assert story.read == [line(number) for number in range(LINES)]


def test_containers_reach_each_other_by_name(cluster: ComposeCluster, story: Story) -> None:
    read = cluster.inside("broker2", "minibroker", "consume", "-b", "broker1:19092", "-t", TOPIC, "-e")
    assert read.count("\n") == LINES


def test_stop_is_clean_and_fast(cluster: ComposeCluster, stopped: float) -> None:
    assert [cluster.inspect(broker, "{{.State.ExitCode}}") for broker in BROKERS] == ["0", "0", "0"]
    assert stopped < STOP_SECONDS_MAX


def test_spark_audit_of_the_volumes_is_consistent(cluster: ComposeCluster, story: Story, stopped: float) -> None:
    code, output = audit(cluster, story, "--acked", "/acked", "--output", "/report")
    cluster.print(f"audit ended with {code}:\n{output}")
    assert code == 0, output
    assert "consistent" in output
    assert "<html" in cluster.compose("run", "--rm", "-T", "--entrypoint", "cat", "audit", "/report/report.html")


def test_audit_cannot_write_to_the_brokers_volumes(cluster: ComposeCluster, stopped: float) -> None:
    for broker in BROKERS:
        code, output = cluster.exit_code(
            "run", "--rm", "-T", "-u", "0", "--entrypoint", "touch", "audit", f"/logs/{broker}/x"
        )
        assert code != 0
        assert "Read-only file system" in output


def test_audit_of_the_volumes_finds_a_flipped_bit(cluster: ComposeCluster, story: Story, stopped: float) -> None:
    """Must be the last test, because it damages broker 2's volume."""
    cluster.compose("run", "--rm", "-T", "--no-deps", "--entrypoint", "python", "broker2", "-c", FLIP_ONE_BIT)
    code, output = audit(cluster, story, "--engine", "local")
    cluster.print(f"one bit flipped in broker2's volume; the audit ended with {code}:\n{output}")
    assert code == 10, output
    assert "/logs/broker2/log/lines-0" in output or "broker 2" in output


def audit(cluster: ComposeCluster, story: Story, *options: str) -> tuple[int, str]:
    story.report.parent.chmod(0o755)  # read in the container by another user
    story.report.chmod(0o644)
    directories = [f"/logs/{broker}/log" for broker in BROKERS]
    words = ["run", "--rm", "-T", "-v", f"{story.report}:/acked:ro", "audit", *directories]
    return cluster.exit_code(*words, "--zookeeper", "zookeeper:2181", *options, within_s=240)


def test_compose_file_needs_no_feature_newer_than_1_29() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not [word for word in ("\nname:", "\nversion:", "start_interval") if word in text]
    subprocess.run([*compose_command(), "config", "-q"], cwd=ROOT, check=True, capture_output=True)
