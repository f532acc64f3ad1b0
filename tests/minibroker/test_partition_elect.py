"""`minibroker partition elect`: what was shown is what is ordered, and a refusal is told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from minibroker.__main__ import minibroker
from minibroker.commands import partition
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.messages import ConfirmedElection, ElectionCandidate, ElectionOutlook, ElectLeadersRequest

TOLD = ElectionOutlook(
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
CHANGED = "t-0 has changed since you were told: broker 2 is not registered; nobody is elected, ask again"


class Controller:
    """Answers in the command's place of asking."""

    def __init__(self, outcome: ElectionOutlook, told: ElectionOutlook = TOLD) -> None:
        self.outcome = outcome
        self.told = told
        self.requests: list[ElectLeadersRequest] = []

    async def ask(self, servers: str, request: ElectLeadersRequest, timeout_s: float) -> list[ElectionOutlook]:
        self.requests.append(request)
        return [self.outcome if request.confirmed else self.told]


def run(monkeypatch: pytest.MonkeyPatch, controller: Controller, *arguments: str, says: str = "y\n") -> Result:
    monkeypatch.setattr(partition, "_ask", controller.ask)
    return CliRunner().invoke(minibroker, ["partition", "elect", "-b", "localhost:1", "t-0", *arguments], input=says)


@pytest.mark.parametrize("arguments", [(), ("--yes",), ("--yes", "--json"), ("--leader", "2")])
def test_the_order_repeats_what_was_told(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    controller = Controller(TOLD)
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
    controller = Controller(TOLD)
    result = run(monkeypatch, controller)
    assert (result.exit_code, len(controller.requests)) == (10, 1)
    assert "could elect broker 2; whatever brokers [1] held from offset 20000 on" in result.output


@pytest.mark.parametrize("says", ["n\n", ""])
def test_a_loss_that_is_not_accepted_elects_nobody_and_says_so(monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    controller = Controller(TOLD)
    result = run(monkeypatch, controller, "--accept-loss", says=says)
    assert (result.exit_code, len(controller.requests)) == (10, 1)
    assert "nobody is elected: the loss was not accepted" in result.stderr


@pytest.mark.parametrize(("leader", "why"), [("1", "is not registered"), ("9", "has no replica of it")])
def test_a_leader_that_cannot_be_elected_is_told_apart_from_nobody(
    monkeypatch: pytest.MonkeyPatch, leader: str, why: str
) -> None:
    refused = structs.replace(TOLD, chosen=-1, error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    result = run(monkeypatch, Controller(refused, refused), "--leader", leader, "--accept-loss")
    assert result.exit_code == 10
    assert f"broker {leader} cannot be elected now: it {why}; [2, 3] can (--leader)" in result.stdout


def test_a_damaged_log_that_is_the_only_copy_has_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = ElectionCandidate(broker_id=1, is_in_sync=True, problem="has a damaged log: a hole")
    told = structs.replace(TOLD, chosen=-1, candidates=[damaged], error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    result = run(monkeypatch, Controller(told, told))
    assert "nobody can be elected now; stop one that has a damaged log: `minibroker log repair`" in result.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_a_refusal_is_told_and_the_answer_is_bad(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    refused = ElectionOutlook(
        topic_name="t",
        partition_index=0,
        error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        error_message=CHANGED,
        leader_epoch=3,
        reason=TOLD.reason,
        candidates=TOLD.candidates,
    )
    result = run(monkeypatch, Controller(refused), "--accept-loss", "--yes", *(["--json"] if as_json else []))
    assert result.exit_code == 10
    if as_json:
        said = json.loads(result.stdout)
        assert (said["elected"], said["error_message"]) == (False, CHANGED)
    else:
        assert result.stdout.endswith(f"{CHANGED}\n")
