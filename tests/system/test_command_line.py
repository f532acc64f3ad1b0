"""The command line against a real cluster."""

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from minibroker import Producer
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.acked_list import parse_trailer
from tests.system.conftest import CommandLine

pytestmark = pytest.mark.system

TRICKY = b"first\n\nwith CR\r\n\xff\xfe\n  spaces  \nlast without newline"


def create(minibroker: CommandLine, topic: str, *options: str) -> str:
    minibroker.run("topic", "create", "-t", topic, "--partitions", "1", *options)
    return topic


def test_what_is_produced_is_consumed_byte_for_byte(minibroker: CommandLine, tmp_path: Path) -> None:
    topic = create(minibroker, "round-trip")
    minibroker.run("produce", "-t", topic, stdin=TRICKY)
    assert minibroker.run("consume", "-t", topic, "-e") == TRICKY + b"\n"


def places_in(report: Path) -> list[str]:
    """Topic, partition and offset of each record of a complete list."""
    head, topic, *lines, end = report.read_bytes().splitlines(keepends=True)
    assert head == b"#minibroker-acked 2 acks=all\n"
    assert topic.startswith(b"#topic ")
    assert parse_trailer(end) == (len(lines), crc32c(b"".join([head, topic, *lines])))
    return [line.decode().rpartition("\t")[0] for line in lines]


def test_report_lists_every_acknowledged_record(minibroker: CommandLine, tmp_path: Path) -> None:
    topic = create(minibroker, "reported")
    report = tmp_path / "acknowledged"
    (tmp_path / "input").write_bytes(b"a\nb\n")
    out = minibroker.run("produce", "-t", topic, "--report", report, "--json", tmp_path / "input")
    facts = json.loads(out)
    assert (facts["records"], facts["bytes"], facts["not_acknowledged"]) == (2, 2, 0)
    assert places_in(report) == ["reported\t0\t0", "reported\t0\t1"]


def test_keys_headers_and_format(minibroker: CommandLine) -> None:
    topic = create(minibroker, "keys")
    minibroker.run("produce", "-t", topic, "-K", ":", "-H", "h=1", stdin=b"k:v\nno key\n")
    out = minibroker.run("consume", "-t", topic, "-e", "-f", r"%t/%p/%o %K %k=%s %h\n")
    assert out == b"keys/0/0 1 k=v h=1\nkeys/0/1 -1 =no key h=1\n"
    first = json.loads(minibroker.run("consume", "-t", topic, "-c", "1", "-J"))
    assert (first["offset"], first["key"], first["payload"], first["headers"]) == (0, "k", "v", ["h", "1"])


@pytest.mark.parametrize(
    ("start", "expected"),
    [("beginning", "01234"), ("3", "34"), ("-2", "34"), ("-99", "01234"), ("end", ""), ("@0", "01234")],
)
def test_reading_begins_at_the_given_starting_point(minibroker: CommandLine, start: str, expected: str) -> None:
    topic = "starts"
    minibroker.run("topic", "create", "-t", topic, "--partitions", "1", "--if-not-exists")
    if not minibroker.run("consume", "-t", topic, "-e"):
        minibroker.run("produce", "-t", topic, stdin=b"0\n1\n2\n3\n4\n")
    out = minibroker.run("consume", "-t", topic, "-e", "-o", start)
    assert out.replace(b"\n", b"").decode() == expected


def test_reading_from_a_future_time_finds_nothing(minibroker: CommandLine) -> None:
    topic = create(minibroker, "later")
    minibroker.run("produce", "-t", topic, stdin=b"now\n")
    assert minibroker.run("consume", "-t", topic, "-e", "-o", "@2999-01-01T00:00:00+00:00") == b""


def test_count_ends_reading(minibroker: CommandLine) -> None:
    topic = create(minibroker, "counted")
    minibroker.run("produce", "-t", topic, stdin=b"a\nb\nc\n")
    assert minibroker.run("consume", "-t", topic, "-c", "2") == b"a\nb\n"


def test_interrupt_ends_an_endless_consumer_without_traceback(minibroker: CommandLine) -> None:
    topic = create(minibroker, "endless")
    minibroker.run("produce", "-t", topic, stdin=b"a\n")
    process = minibroker.start("consume", "-t", topic)
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors.strip() == b""


def test_an_interrupted_producer_reports_all_acknowledged_records(minibroker: CommandLine, tmp_path: Path) -> None:
    topic, report = create(minibroker, "cut-short"), tmp_path / "acknowledged"
    command = minibroker.command("produce", "-t", topic, "--report", report)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=minibroker.environment
    )
    assert process.stdin is not None
    for number in range(300):
        process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
        time.sleep(0.005)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.startswith(b"300 records, 790 bytes acknowledged in ")
    assert errors.count(b"\n") == 1
    assert minibroker.run("consume", "-t", topic, "-e", "-f", "%t\t%p\t%o\n").count(b"\n") == 300
    assert places_in(report) == [f"cut-short\t0\t{offset}" for offset in range(300)]


def test_a_closed_pipe_is_no_failure(minibroker: CommandLine) -> None:
    topic = create(minibroker, "left")
    minibroker.run("produce", "-t", topic, stdin=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 20_000)
    process = minibroker.start("consume", "-t", topic, "-e")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(20) == 0


def test_missing_topic_is_one_sentence_with_the_cure(minibroker: CommandLine) -> None:
    run = minibroker.complete("produce", "-t", "not-there", "--timeout", "6", stdin=b"a\n")
    assert run.returncode == 1
    errors = run.stderr.decode()
    assert "not-there" in errors and "minibroker topic create" in errors
    assert "Traceback" not in errors


def test_offsets_replicas_and_status_agree(minibroker: CommandLine) -> None:
    topic = create(minibroker, "counted-twice")
    minibroker.run("produce", "-t", topic, stdin=b"a\nb\nc\n")
    (row,) = [json.loads(line) for line in minibroker.run("offsets", "-t", topic, "--json").splitlines()]
    assert (row["start_offset"], row["end_offset"]) == (0, 3)
    replicas = [json.loads(line) for line in minibroker.run("replicas", "-t", topic, "--json").splitlines()]
    assert {replica["role"] for replica in replicas} == {"leader", "follower"}
    assert [replica["log_end_offset"] for replica in replicas] == [3, 3, 3]
    status = json.loads(minibroker.run("cluster", "status", "--json"))
    assert status["healthy"] is True


def test_events_of_all_brokers_are_printed(minibroker: CommandLine) -> None:
    minibroker.run("topic", "create", "-t", "followed-events", "--partitions", "1")
    printed = minibroker.run("events", "--once", "--json", "-t", "followed-events", "-k", "replica_role_changed")
    events = [json.loads(line) for line in printed.splitlines()]
    assert sorted(event["role"] for event in events) == ["follower", "follower", "leader"]
    assert {event["reported_by"] for event in events} == {1, 2, 3}
    assert {event["level"] for event in events} == {"INFO"}


def test_topic_is_described_altered_and_deleted(minibroker: CommandLine) -> None:
    topic = create(minibroker, "short-lived", "--config", "retention.ms=60000")
    minibroker.run("topic", "alter", "-t", topic, "--config", "max.message.bytes=2048", "--unset", "retention.ms")
    described = json.loads(minibroker.run("topic", "describe", "-t", topic, "--json"))
    assert described["configs"] == {"max.message.bytes": "2048"}
    assert sorted(described["partitions"][0]["isr"]) == [1, 2, 3]
    minibroker.run("topic", "delete", "-t", topic)
    assert topic.encode() not in minibroker.run("topic", "list").split()
    minibroker.run("topic", "delete", "-t", topic, "--if-exists")


def test_names_of_producers_are_listed_and_deleted(minibroker: CommandLine) -> None:
    async def start() -> None:
        servers = minibroker.environment["MINIBROKER_BOOTSTRAP_SERVERS"]
        async with Producer(bootstrap_servers=servers, producer_name="billing"):
            pass

    asyncio.run(start())
    (name,) = [json.loads(line) for line in minibroker.run("producer", "list", "--json").splitlines()]
    assert (name["producer_name"], name["producer_epoch"], name["error"]) == ("billing", 0, None)
    wrong = minibroker.complete("producer", "delete", "biling")
    assert (wrong.returncode, wrong.stdout) == (1, b"")
    assert b"no producer has the name 'biling'; did you mean 'billing'?" in wrong.stderr
    assert minibroker.run("producer", "delete", "billing") == b"deleted billing\n"
    assert minibroker.run("producer", "delete", "billing", "--if-exists") == b"there was no billing\n"
    assert minibroker.run("producer", "list") == b"NAME  PRODUCER ID  EPOCH  SINCE\n"


def test_a_deletion_names_the_broker_that_is_missing(own_cluster: LocalCluster) -> None:
    minibroker = CommandLine(own_cluster)
    create(minibroker, "kept", "--replication-factor", "3")
    asyncio.run(own_cluster.stop(3))
    began = time.monotonic()
    deleting = minibroker.complete("topic", "delete", "-t", "kept")
    assert time.monotonic() - began < 15, "it does not wait for the broker"
    assert deleting.returncode == 0
    warning = "warning: topic kept is marked for deletion, which waits for broker 3: it goes on by itself once broker 3"
    assert deleting.stderr.decode() == f"{warning} runs again\n"
    again = minibroker.complete("topic", "create", "-t", "kept")
    assert "still being deleted, which waits for broker 3" in again.stderr.decode()
    asyncio.run(own_cluster.start(3))
    minibroker.run("topic", "delete", "-t", "kept", "--if-exists")
    assert minibroker.run("topic", "list") == b""


def test_creating_a_topic_that_may_lose_records_warns(minibroker: CommandLine) -> None:
    run = minibroker.complete("topic", "create", "-t", "risky", "--replication-factor", "1")
    assert run.returncode == 0
    assert b"warning: risky has one replica" in run.stderr


def test_verifiable_clients_print_kafkas_events(minibroker: CommandLine) -> None:
    topic = create(minibroker, "verifiable")
    out = minibroker.run("verifiable-producer", "-t", topic, "-n", "3", "--value-prefix", "7")
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["name"] for event in events] == [
        "startup_complete",
        *["producer_send_success"] * 3,
        "shutdown_complete",
        "tool_data",
    ]
    assert [(event["offset"], event["value"]) for event in events[1:4]] == [(0, "7.0"), (1, "7.1"), (2, "7.2")]
    out = minibroker.run("verifiable-consumer", "-t", topic, "-n", "3", "--verbose")
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["name"] for event in events][:3] == ["startup_complete", "partitions_assigned", "records_consumed"]
    assert events[2]["partitions"] == [{"topic": topic, "partition": 0, "count": 3, "minOffset": 0, "maxOffset": 2}]
    assert [event["value"] for event in events if event["name"] == "record_data"] == ["7.0", "7.1", "7.2"]


def test_doctor_finds_every_broker_reachable(minibroker: CommandLine) -> None:
    findings = [json.loads(line) for line in minibroker.run("doctor", "--json").splitlines()]
    assert [finding for finding in findings if not finding["well"]] == []
    assert {finding["check"] for finding in findings} >= {"java", "zookeeper", "broker 1", "broker 2", "broker 3"}


def test_second_cluster_on_the_same_ports_names_their_owner(
    minibroker: CommandLine, shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    port = str(shared_cluster.record.brokers[1].port)
    run = minibroker.complete("cluster", "up", "--data-dir", tmp_path / "other", "--port", port, "--brokers", "1")
    assert run.returncode == 1
    assert f"minibroker cluster down --data-dir {shared_cluster.data_directory}" in run.stderr.decode()


def test_commands_for_one_record_are_fast(minibroker: CommandLine, tmp_path: Path) -> None:
    """Medians of alternating runs, against a bare interpreter on the same noisy machine."""
    topic = create(minibroker, "quick")
    (tmp_path / "one").write_bytes(b"one\n")
    commands = {
        "bare": [minibroker.command()[0], "-c", "pass"],
        "help": minibroker.command("--help"),
        "produce": minibroker.command("produce", "-t", topic, tmp_path / "one"),
        "consume": minibroker.command("consume", "-t", topic, "-c", "1"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(9):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(
                command, env=minibroker.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
            )
            seconds[name].append(time.perf_counter() - started)
    bare, *others = (sorted(times)[len(times) // 2] for times in seconds.values())
    assert others[0] < 8 * bare
    assert others[1] < 25 * bare
    assert others[2] < 25 * bare


def test_top_ends_cleanly_at_an_interrupt(minibroker: CommandLine) -> None:
    process = minibroker.start("top")
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == b"only events are printed, as they come: `minibroker replicas` prints the replicas\n\n"


def test_top_prints_events_without_a_terminal(minibroker: CommandLine) -> None:
    process = minibroker.start("top", "--json", "-n", "40", "--interval", "0.1")
    time.sleep(1.0)
    create(minibroker, "appears")
    out, _ = process.communicate(timeout=30)
    created = {"kind": "topic", "what": "topic appears was created with 1 partition"}
    assert created.items() <= json.loads(out.splitlines()[0]).items()
    assert process.returncode == os.EX_OK
