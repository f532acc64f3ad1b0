"""`minibroker topic`: what it reports of deletions and in lists, without a cluster."""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from click import ClickException
from click.testing import CliRunner

from minibroker.client.admin import BrokerReplicas, TopicDescription
from minibroker.client.descriptions import ConfigEntry, PartitionDescription
from minibroker.client.errors import BrokerError, CallTimedOut, Where, broker_error
from minibroker.command_line import EXIT_USAGE
from minibroker.commands import topic
from minibroker.commands.topic import _delete, _risks, _summary
from minibroker.commands.topic import alter as alter_command
from minibroker.commands.topic import create as create_command
from minibroker.commands.topic import delete as delete_command
from minibroker.commands.topic import describe as describe_command
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ReplicaStateDescription


def slow(name: str) -> BrokerError:
    return broker_error(ErrorCode.REQUEST_TIMED_OUT, Where(topic=name), f"{name} is slow")


def waits(name: str) -> BrokerError:
    return broker_error(ErrorCode.REPLICA_NOT_AVAILABLE, Where(topic=name), f"{name} waits for broker 2")


NO_CONTROLLER = CallTimedOut("no controller")


class Admin:
    """Answers each request for a deletion with the next of these results."""

    def __init__(self, *answers: dict[str, BrokerError | None] | CallTimedOut) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], float]] = []

    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: float, answer_ms: float
    ) -> dict[str, BrokerError | None]:
        assert answer_ms <= timeout_ms
        self.asked.append((list(names), answer_ms))
        answer = self.answers.pop(0)
        if isinstance(answer, CallTimedOut):
            raise answer
        return answer

    async def __aenter__(self) -> "Admin":
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


def delete(admin: Any, *names: str, timeout_ms: float = 30_000) -> Any:
    return asyncio.run(_delete(admin, names, timeout_ms))


def test_a_slow_deletion_is_explained_early_and_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Once it was silent for 30 s."""
    gone = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Where(topic="b"))
    admin = Admin({"a": None, "b": slow("b")}, {"b": slow("b")}, {"b": gone})
    assert delete(admin, "a", "b") == {"a": None, "b": None}
    assert admin.asked == [(["a", "b"], 3_000), (["b"], 3_000), (["b"], 3_000)]
    assert capsys.readouterr().err == "warning: b is slow\n"


def test_a_deletion_is_not_waited_for_once_it_waits_for_a_broker_that_is_down() -> None:
    """Once it was waited for until the time limit, although only a start of that broker could end it."""
    admin = Admin({"a": slow("a"), "b": waits("b")}, {"a": waits("a")})
    assert {name: error.code for name, error in delete(admin, "a", "b").items()} == dict.fromkeys(
        ("a", "b"), ErrorCode.REPLICA_NOT_AVAILABLE
    )
    assert admin.asked == [(["a", "b"], 3_000), (["a"], 3_000)]


def test_a_deletion_beyond_the_time_limit_keeps_its_error() -> None:
    admin = Admin({"a": slow("a")}, {"a": slow("a")})
    assert str(delete(admin, "a", timeout_ms=5_000)["a"].broker_message) == "a is slow"
    assert admin.asked == [(["a"], 3_000), (["a"], 2_000)]


def test_a_deletion_without_a_controller_is_one_request_with_the_time_limit_of_all() -> None:
    """Once each round of 3 s warned and named its own limit."""
    admin = Admin(NO_CONTROLLER)
    with pytest.raises(CallTimedOut):
        delete(admin, "a", timeout_ms=6_000)
    assert len(admin.asked) == 1


@pytest.mark.parametrize(
    ("error", "code", "out", "err"),
    [
        (None, 0, {"topic": "a", "deleted": True}, ""),
        (waits("a"), 0, {"topic": "a", "deleted": False, "marked_for_deletion": True}, "warning: a waits for broker 2"),
        (slow("a"), 1, None, "error: a is slow"),
    ],
)
def test_a_deletion_that_is_decided_is_a_success(
    monkeypatch: pytest.MonkeyPatch, error: BrokerError | None, code: int, out: object, err: str
) -> None:
    monkeypatch.setattr("minibroker.admin_call.AdminClient", lambda **_: Admin({"a": error}))
    monkeypatch.setattr("minibroker.commands.topic._require_topics", _nothing)
    run = CliRunner().invoke(delete_command, ["a", "--timeout", "3", "--json"], standalone_mode=False)
    shown = run.exception if isinstance(run.exception, ClickException) else None
    assert (shown.exit_code if shown else run.return_value) == code
    assert [json.loads(line) for line in run.stdout.splitlines()] == ([out] if out else [])
    assert (f"error: {shown.format_message()}" if shown else run.stderr.splitlines()[-1] if run.stderr else "") == err


@pytest.mark.parametrize("exists", [True, False])
def test_the_controller_decides_whether_one_topic_exists(monkeypatch: pytest.MonkeyPatch, exists: bool) -> None:
    """Brokers do not know a topic without a state, which is to be deleted as the report says."""

    async def unknown_here(*_: object, **__: object) -> None:
        raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Where(topic="a"), "did you mean b?")

    answer = None if exists else broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Where(topic="a"))
    monkeypatch.setattr("minibroker.admin_call.AdminClient", lambda **_: Admin({"a": answer}))
    monkeypatch.setattr("minibroker.commands.topic._require_topics", unknown_here)
    run = CliRunner().invoke(delete_command, ["a"], standalone_mode=False)
    if exists:
        assert (run.return_value, run.stdout) == (0, "deleted a\n")
    else:
        assert isinstance(run.exception, ClickException)
        assert "did you mean b?" in run.exception.format_message()


class AlteredTopic(Admin):
    """Its defaults, after settings were unset."""

    async def alter_configs(self, changes: dict[str, str | None], **_: object) -> None:
        self.changes = changes

    async def describe_configs(self, **_: object) -> dict[str, ConfigEntry]:
        default = ConfigEntry("retention.ms", "604800000", "static-broker", False, False, "")
        own = ConfigEntry("flush.ms", "7", "dynamic-topic", False, False, "")
        return {entry.name: entry for entry in (default, own)}


@pytest.mark.parametrize(
    ("options", "out"),
    [
        (["--unset", "retention.ms"], "altered t: retention.ms back to the default 604800000\n"),
        (["--unset", "flush.ms", "--set", "a=b"], "altered t: a=b, flush.ms back to the default\n"),
    ],
)
def test_what_is_unset_goes_back_to_a_default(monkeypatch: pytest.MonkeyPatch, options: list[str], out: str) -> None:
    """It printed Python's None: `altered t: retention.ms=None`. A broker that is late may still tell the old value."""
    monkeypatch.setattr("minibroker.admin_call.AdminClient", lambda **_: AlteredTopic())
    monkeypatch.setattr("minibroker.commands.topic._require_topics", _nothing)
    assert CliRunner().invoke(alter_command, ["t", *options]).stdout == out


class RiskyTopic(AlteredTopic):
    """Of three replicas; its defaults are those of `cluster up`."""

    async def describe_configs(self, **_: object) -> dict[str, ConfigEntry]:
        return {
            name: ConfigEntry(name, value, "static-broker", False, False, "")
            for name, value in (("min.insync.replicas", "2"), ("unclean.leader.election.enable", "false"))
        }

    async def describe_topics(self, names: Iterable[str], **_: object) -> dict[str, TopicDescription]:
        partition = PartitionDescription(0, 1, 3, (1, 2, 3), (1, 2, 3), (), ErrorCode.NONE)
        return {name: TopicDescription(name, "id", [partition]) for name in names}


@pytest.mark.parametrize(
    ("options", "risk"),
    [
        (
            ["--set", "min.insync.replicas=1"],
            "t has min.insync.replicas=1: an acknowledged record may be on the leader",
        ),
        (["--set", "min.insync.replicas=3"], "t needs all 3 replicas in sync (min.insync.replicas=3): no broker may"),
        (["--set", "unclean.leader.election.enable=true"], "t allows unclean elections: acknowledged records may be"),
        (["--unset", "min.insync.replicas"], None),
        (["--set", "retention.ms=5"], None),
    ],
)
def test_a_change_that_puts_records_at_risk_warns_as_a_creation_does(
    monkeypatch: pytest.MonkeyPatch, options: list[str], risk: str | None
) -> None:
    """`topic create` warned of these settings, and `topic alter` set them without a word."""
    monkeypatch.setattr("minibroker.admin_call.AdminClient", lambda **_: RiskyTopic())
    monkeypatch.setattr("minibroker.commands.topic._require_topics", _nothing)
    run = CliRunner().invoke(alter_command, ["t", *options])
    assert run.stderr.startswith(f"warning: {risk}" if risk else "")
    assert bool(run.stderr) == bool(risk)
    run = CliRunner().invoke(alter_command, ["t", *options, "--json"])
    assert [each.startswith(str(risk)) for each in json.loads(run.stdout)["warnings"]] == ([True] if risk else [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--config", "retention.ms=5", "--unset", "retention.ms"], "retention.ms: give --config or --unset, not both"),
        (["--config", "flush.ms=5", "--set", "flush.ms=6"], "flush.ms is given twice: give one value"),
    ],
)
def test_two_changes_of_one_setting_are_refused(options: list[str], problem: str) -> None:
    """The last one won, silently."""
    run = CliRunner().invoke(alter_command, ["t", *options])
    assert (run.exit_code, problem in run.output) == (EXIT_USAGE, True)


async def _nothing(*_: object, **__: object) -> None:
    pass


def test_the_records_and_bytes_of_a_topic_are_those_of_its_leaders() -> None:
    partition = PartitionDescription(0, 1, 0, (1, 2, 3), (1, 2, 3), (), ErrorCode.NONE)
    topic = TopicDescription("t", "id", [partition])
    facts = {"topic": "t", "partitions": 1, "replication_factor": 3}
    state = ReplicaStateDescription(
        partition=0, role="leader", high_watermark=9, log_start_offset=2, log_end_offset=12, size_bytes=500
    )
    held = {1: BrokerReplicas(1, replicas={TopicPartition("t", 0): state})}
    assert _summary(topic, held) == facts | {"records": 7, "size_bytes": 500}
    assert _summary(topic, {}) == facts | {"records": None, "size_bytes": None}, "the leader did not answer"


def test_an_interrupted_deletion_says_that_it_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it was silent."""

    class Interrupted(Admin):
        async def delete_topics(self, *_: object, **__: object) -> dict[str, BrokerError | None]:
            raise KeyboardInterrupt

    monkeypatch.setattr("minibroker.admin_call.AdminClient", lambda **_: Interrupted())
    monkeypatch.setattr("minibroker.commands.topic._require_topics", _nothing)
    run = CliRunner().invoke(delete_command, ["a"], standalone_mode=False)
    assert run.stderr.startswith("interrupted: the deletion may go on without this command")


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_topic_that_is_being_deleted_does_not_count_as_one_that_exists(
    monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    """Once `--if-not-exists` was content with it."""

    class Existing(Admin):
        async def create_topic(self, name: str, *_: object, **__: object) -> None:
            raise broker_error(ErrorCode.TOPIC_ALREADY_EXISTS, Where(topic=name), f"topic {name} is still here")

    async def deletions(_: object) -> dict[str, str]:
        return {"a": "a waits"} if is_marked else {}

    monkeypatch.setattr("minibroker.admin_call.AdminClient", lambda **_: Existing())
    monkeypatch.setattr("minibroker.commands.topic._topic_deletions", deletions)
    run = CliRunner().invoke(create_command, ["a", "--if-not-exists"], standalone_mode=False)
    assert isinstance(run.exception, ClickException) == is_marked
    assert run.stdout == ("" if is_marked else "a exists\n")


@pytest.mark.parametrize("value", ["abc", "", None, "²", "-1"])
def test_a_setting_that_is_no_number_ends_no_command(value: str | None) -> None:
    """It was a ValueError."""
    assert _risks("a", 3, {"min.insync.replicas": value}) == [
        "a has min.insync.replicas=1: an acknowledged record may be on the leader only;"
        " use --config min.insync.replicas=2"
    ]


SOUND = PartitionDescription(0, 1, 3, (1, 2), (1, 2), (), ErrorCode.NONE)
LACKING = PartitionDescription(1, 1, 3, (1, 2), (1,), (2,), ErrorCode.NONE)
LEADERLESS = PartitionDescription(2, None, 3, (1, 2), (1, 2), (), ErrorCode.LEADER_NOT_AVAILABLE)


@pytest.mark.parametrize("bad", [LACKING, LEADERLESS])
@pytest.mark.parametrize("place", [None, 0, 1, 2])
def test_one_partition_that_lacks_replicas_decides_the_exit_code_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, bad: PartitionDescription, place: int | None
) -> None:
    """A script asks for the exit code alone, and sound topics come after the one that is not."""
    topics: list[tuple[TopicDescription, dict[str, str], bool]] = [
        (TopicDescription(name, f"id-{name}", [SOUND, bad] if place == number else [SOUND]), {}, False)
        for number, name in enumerate("abc")
    ]
    monkeypatch.setattr(topic, "_ask", lambda servers, timeout_s, work: topics)
    arguments = ["-b", "localhost:1", "--json"]
    everything = CliRunner().invoke(describe_command, arguments)
    assert (everything.exit_code, len(everything.stdout.splitlines())) == (0, 3), "without the option nothing is judged"
    found = CliRunner().invoke(describe_command, [*arguments, "--under-replicated"], standalone_mode=False)
    assert found.return_value == (0 if place is None else 10)
    rows = [
        (row["topic"], [each["partition"] for each in row["partitions"]])
        for row in map(json.loads, found.stdout.splitlines())
    ]
    assert rows == ([] if place is None else [("abc"[place], [bad.partition])])
