"""`minibroker partition elect`: the order repeats what was shown, and a refusal is printed."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from minibroker.__main__ import minibroker
from minibroker.commands import partition
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer, R
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ConfirmedElection,
    ElectionCandidate,
    ElectionPreview,
    ElectLeadersRequest,
    MetadataBroker,
    MetadataRequest,
    MetadataResponse,
    Request,
)

PREVIEW = ElectionPreview(
    topic_name="t",
    partition_index=0,
    leader_epoch=3,
    isr=[1],
    reason="no member of the ISR has its log",
    candidates=[
        ElectionCandidate(broker_id=1, is_in_sync=True, problem="is not registered"),
        ElectionCandidate(broker_id=2, log_end_offset=20_000, last_epoch=1),
        ElectionCandidate(broker_id=3, log_end_offset=5_000, last_epoch=0),
    ],
    chosen=2,
)
CHANGED = "t-0 has changed since it was shown to you: broker 2 is not registered; no leader is elected, ask again"


class Controller:
    """Answers instead of a controller."""

    def __init__(self, outcome: ElectionPreview, preview: ElectionPreview = PREVIEW) -> None:
        self.outcome = outcome
        self.preview = preview
        self.requests: list[ElectLeadersRequest] = []

    async def ask(self, servers: str, request: ElectLeadersRequest, timeout_s: float) -> list[ElectionPreview]:
        self.requests.append(request)
        return [self.outcome if request.confirmed else self.preview]


def run(monkeypatch: pytest.MonkeyPatch, controller: Controller, *arguments: str, typed: str = "y\n") -> Result:
    monkeypatch.setattr(partition, "_ask", controller.ask)
    return CliRunner().invoke(minibroker, ["partition", "elect", "-b", "localhost:1", "t-0", *arguments], input=typed)


@pytest.mark.parametrize("arguments", [(), ("--yes",), ("--yes", "--json"), ("--leader", "2")])
def test_the_order_repeats_what_was_shown(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    controller = Controller(PREVIEW)
    result = run(monkeypatch, controller, "--accept-loss", *arguments)
    assert result.exit_code == 0
    question, order = controller.requests
    assert question.confirmed == []
    assert order.leader == question.leader
    assert order.confirmed == [
        ConfirmedElection(
            topic_name="t", partition_index=0, leader=2, leader_epoch=3, log_end_offset=20_000, last_epoch=1
        )
    ]


def test_a_question_alone_orders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(PREVIEW)
    result = run(monkeypatch, controller)
    assert (result.exit_code, len(controller.requests)) == (10, 1)
    assert "could elect broker 2; records from offset 20000 on that brokers [1] hold may be lost" in result.output


def member(broker_id: int, end: int, **facts: Any) -> ElectionCandidate:
    return ElectionCandidate(broker_id=broker_id, **{"is_in_sync": True, "log_end_offset": end, **facts})


@pytest.mark.parametrize(
    ("others", "loss"),
    [
        ([], "acknowledged records from offset 100 on, if any, are lost"),
        ([member(1, 130)], "this loses 30 records of broker 1"),
        ([member(1, 101), member(3, 100), member(4, 90)], "this loses 1 record of broker 1"),
        ([member(1, 130, is_in_sync=False)], "acknowledged records from offset 100 on, if any, are lost"),
        ([member(1, 0, problem="is not registered")], "records from offset 100 on that brokers [1] hold may be lost"),
        ([member(1, 0, is_in_sync=False, problem="is not registered")], "records from offset 100 on, if any, are lost"),
        ([member(1, 0, is_on_its_directory=False)], "records from offset 100 on that brokers [1] hold may be lost"),
        (
            [member(1, 130), member(3, 0, problem="is down")],
            "this loses 30 records of broker 1; records from offset 100",
        ),
    ],
)
def test_what_an_election_loses_is_what_other_members_of_the_isr_hold(
    monkeypatch: pytest.MonkeyPatch, others: list[ElectionCandidate], loss: str
) -> None:
    """A replica outside of it may hold what was never committed, and the operator is to accept a loss that is none."""
    preview = structs.replace(PREVIEW, candidates=[*others, member(2, 100)])
    assert loss in run(monkeypatch, Controller(preview, preview)).stdout


@pytest.mark.parametrize("typed", ["n\n", ""])
def test_no_leader_is_elected_if_the_loss_is_not_accepted(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    controller = Controller(PREVIEW)
    result = run(monkeypatch, controller, "--accept-loss", typed=typed)
    assert (result.exit_code, len(controller.requests)) == (10, 1)
    assert "no leader is elected: the loss was not accepted" in result.stderr


@pytest.mark.parametrize(("leader", "why"), [("1", "is not registered"), ("9", "has no replica of it")])
def test_a_given_leader_that_cannot_be_elected_is_named_with_those_that_can(
    monkeypatch: pytest.MonkeyPatch, leader: str, why: str
) -> None:
    refused = structs.replace(PREVIEW, chosen=-1, error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    result = run(monkeypatch, Controller(refused, refused), "--leader", leader, "--accept-loss")
    assert result.exit_code == 10
    assert f"broker {leader} cannot be elected now: it {why}; [2, 3] can (--leader)" in result.stdout


def test_a_damaged_log_that_is_the_only_copy_has_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = ElectionCandidate(broker_id=1, is_in_sync=True, problem="has a damaged log: a hole")
    preview = structs.replace(
        PREVIEW, chosen=-1, candidates=[damaged], error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    )
    result = run(monkeypatch, Controller(preview, preview))
    assert "no replica can be elected now; stop a broker with a damaged log: `minibroker log repair" in result.stdout
    assert f"--cut {PREVIEW.topic_name}-{PREVIEW.partition_index}` keeps the sound part of its log" in result.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_a_refusal_is_printed_and_exits_with_10(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    refused = ElectionPreview(
        topic_name="t",
        partition_index=0,
        error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        error_message=CHANGED,
        leader_epoch=3,
        reason=PREVIEW.reason,
        candidates=PREVIEW.candidates,
    )
    result = run(monkeypatch, Controller(refused), "--accept-loss", "--yes", *(["--json"] if as_json else []))
    assert result.exit_code == 10
    if as_json:
        facts = json.loads(result.stdout)
        assert (facts["elected"], facts["error_message"]) == (False, CHANGED)
    else:
        assert result.stdout.endswith(f"{CHANGED}\n")


def test_a_partition_that_does_not_exist_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it exited with 10, as if a partition had no leader; `--yes` went on with the others."""
    unknown = ElectionPreview(
        topic_name="u", partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, error_message="no u-0"
    )
    controller = Controller(PREVIEW, unknown)
    result = run(monkeypatch, controller, "--accept-loss", "--yes")
    assert (result.exit_code, len(controller.requests)) == (1, 1)
    assert result.stderr == "error: no u-0: `minibroker topic describe` shows all topics and partitions\n"


class Queries(BrokerQueries):
    """The controller, broker 1, refuses; `fenced`: the brokers have lost ZooKeeper."""

    def __init__(self, *, fenced: bool) -> None:
        super().__init__()
        self.fenced = fenced

    async def ask(self, server: str, request: Request, kind: type[R], timeout_s: float = 3.0) -> R:
        if isinstance(request, MetadataRequest):
            brokers = [MetadataBroker(node_id=1, host="h", port=1)]
            answer = MetadataResponse(fenced=self.fenced, controller_id=1, brokers=brokers)
            assert isinstance(answer, kind)
            return answer
        raise NoAnswer("h:1 answered NOT_CONTROLLER")


@pytest.mark.parametrize(
    ("fenced", "cure"),
    [
        (True, "the brokers have lost ZooKeeper: start ZooKeeper"),
        (False, "ask again in some seconds; `minibroker replicas --check` says more"),
    ],
)
async def test_a_controller_that_does_not_answer_has_a_cure(fenced: bool, cure: str) -> None:
    """Once it was 'h:1 answered NOT_CONTROLLER' alone."""
    with pytest.raises(NoAnswer, match=f"^the controller, broker 1, does not decide: h:1 .*{cure}"):
        await Queries(fenced=fenced).elections("h:1", ElectLeadersRequest())


@pytest.mark.parametrize("changes", [{"chosen": 9}, {"chosen": -1}, {"candidates": []}])
def test_a_choice_that_is_no_candidate_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """It was a traceback with StopIteration."""

    async def elections(*_: object) -> list[ElectionPreview]:
        return [structs.replace(PREVIEW, **changes)]

    monkeypatch.setattr(BrokerQueries, "elections", elections)
    result = CliRunner().invoke(minibroker, ["partition", "elect", "-b", "localhost:1"])
    assert result.exit_code == 1
    assert "the controller's answer about t-0 chooses broker" in result.stderr


def test_a_question_without_an_answer_ends_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error, or the shell's prompt after Ctrl-C, stood behind it."""
    result = run(monkeypatch, Controller(PREVIEW, PREVIEW), "--accept-loss", typed="")
    assert "[y/N]: \nno leader is elected" in result.stderr
    monkeypatch.setattr(click, "confirm", interrupted)
    result = run(monkeypatch, Controller(PREVIEW, PREVIEW), "--accept-loss")
    assert result.stderr.startswith("\n")


def interrupted(*_: object, **__: object) -> bool:
    raise click.Abort


def test_a_broker_that_is_only_down_is_to_be_started_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could be lost without it was told, and not that nothing is lost with it."""
    result = run(monkeypatch, Controller(PREVIEW))
    cure = "start broker 1 first, and less may be lost (`minibroker cluster start 1`, if `cluster up` started it)"
    assert cure in " ".join(result.output.split())


def test_without_a_replica_to_elect_brokers_that_are_down_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    down = [ElectionCandidate(broker_id=each, is_in_sync=True, problem="is not registered") for each in (1, 2)]
    preview = structs.replace(PREVIEW, candidates=down, chosen=-1, error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    result = run(monkeypatch, Controller(preview, preview))
    cure = "no replica can be elected now; start brokers 1, 2 (`minibroker cluster start 1 2`, if `cluster up`"
    assert cure in " ".join(result.output.split())
