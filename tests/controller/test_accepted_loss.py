"""An election that an operator orders: which replica is offered, and that no other is elected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from minibroker.controller.active_controller import ActiveController
from minibroker.controller.core.accepted_loss import Logs, choice_of, elect_as_chosen, latest_epoch_in, preview
from minibroker.controller.core.controller_state import (
    LOG_EPOCH_MAX,
    ControllerState,
    Deletion,
    LossChoice,
    RegisteredBroker,
)
from minibroker.controller.core.events import LossAccepted
from minibroker.controller.operator_elections import elect_leaders
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    ElectionPreview,
    ElectLeadersRequest,
    ElectLeadersResponse,
    Response,
    confirmation_of,
)
from tests.controller.facts import T0, broker, cluster_state, leadership, log


def test_preview_offers_the_largest_log_in_the_isr_or_not() -> None:
    replaced = broker(3, incarnation="new", directory="blank")
    state = cluster_state(1, 2, replaced, now=leadership(None, 3))
    logs = {1: {T0: log(90)}, 2: {T0: log(100)}, 3: {T0: log(0, exists=False)}}
    offer = preview(state, T0, logs, None)
    assert (offer.error_code, offer.chosen, offer.isr) == (0, 2, [3])
    assert [each.is_on_its_directory for each in offer.candidates] == [True, True, False]
    assert preview(state, T0, logs, 1).chosen == 1


def test_a_possibly_corrupt_epoch_outvotes_no_undisturbed_log() -> None:
    """The shorter log with the later epoch was offered, and half of the records would have been given up."""
    again = [broker(each, incarnation=f"n{each}") for each in (1, 2)]
    state = cluster_state(*again, now=leadership(None, 1, 2, 3))
    undisturbed = log(40, epoch=2, undisturbed_since=frozenset(["i1"]))
    assert preview(state, T0, {1: {T0: undisturbed}, 2: {T0: log(20, epoch=258)}}, None).chosen == 1
    assert preview(state, T0, {1: {T0: undisturbed}, 2: {T0: log(60, epoch=3)}}, None).chosen == 2


def test_a_log_with_an_impossible_epoch_is_not_offered() -> None:
    """Its broker would refuse to lead any epoch that is possible."""
    state = cluster_state(1, 2, now=leadership(None, 3))
    offer = preview(state, T0, {1: {T0: log(40, epoch=LOG_EPOCH_MAX + 1)}, 2: {T0: log(20)}}, None)
    assert offer.chosen == 2
    assert "leader epoch 1073741825" in str(offer.candidates[0].problem)


def test_a_log_that_ends_below_what_another_knows_to_be_committed_is_not_offered_first() -> None:
    again = [broker(each, incarnation=f"n{each}") for each in (1, 2)]
    state = cluster_state(*again, now=leadership(None, 1, 2, 3))
    logs = {1: {T0: log(40, epoch=2, high_watermark=40)}, 2: {T0: log(20, epoch=258)}}
    assert preview(state, T0, logs, None).chosen == 1


def test_a_log_of_the_topic_that_had_the_name_before_is_not_offered() -> None:
    """It once was: after an accepted loss, records of another topic would have been served."""
    state = cluster_state(1, 2, now=leadership(None, 3))
    logs = {1: {T0: log(5)}, 2: {T0: msgspec.structs.replace(log(100), topic_id="former")}}
    offer = preview(state, T0, logs, None)
    assert (offer.chosen, offer.candidates[1].problem) == (1, "has a log of another topic of this name")
    assert preview(state, T0, logs, 2).error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_preview_offers_no_replica_that_cannot_lead() -> None:
    state = cluster_state(2, 3, now=leadership(None, 3))
    offer = preview(state, T0, {2: {T0: log(9, damage="a hole")}}, None)
    assert offer.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    problems = [each.problem for each in offer.candidates]
    assert problems == ["is not registered", "has a damaged log: a hole", "does not answer"]


@pytest.mark.parametrize("is_reported_by", ["its log", "its broker"])
def test_preview_offers_no_replica_that_is_offline(is_reported_by: str) -> None:
    """The broker says so with the log, or has said so before."""
    state = cluster_state(1, 2, now=leadership(None, 3))
    held = log(100, unavailable="the disk is full") if is_reported_by == "its log" else log(100)
    if is_reported_by == "its broker":
        state.offline_replicas = {1: frozenset([T0])}
    offer = preview(state, T0, {1: {T0: held}, 2: {T0: log(5)}}, None)
    assert (offer.chosen, offer.candidates[0].problem) == (2, "has an offline replica")


def test_preview_of_an_unregistered_broker_does_not_report_another_directory() -> None:
    state = cluster_state(2, now=leadership(None, 3))
    offer = preview(state, T0, {2: {T0: log(9)}}, None)
    (absent,) = [each for each in offer.candidates if each.broker_id == 3]
    assert (absent.problem, absent.is_on_its_directory) == ("is not registered", True)


def test_a_partition_with_a_leader_needs_no_ordered_election() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    assert preview(state, T0, {}, None).error_code == ErrorCode.ELECTION_NOT_NEEDED


@pytest.mark.parametrize("epoch", [6, 1_000])
def test_a_confirmed_loss_is_elected_only_while_epochs_and_leader_match(epoch: int) -> None:
    state = cluster_state(1, 2, now=leadership(None, 3, epoch=epoch))
    choice = LossChoice(
        partition=T0, leader=2, leader_epoch=int(str(epoch)), broker_epoch=state.brokers[2].broker_epoch
    )
    (change,) = elect_as_chosen(state, (choice,))
    assert (change.after.leader, change.after.in_sync_replicas, change.after.leader_epoch) == (2, (2,), epoch + 1)
    assert change.after.is_recovering
    later = msgspec.structs.replace(choice, latest_epoch_in_logs=epoch + 3)
    (after,) = [each.after.leader_epoch for each in elect_as_chosen(state, (later,))]
    assert after == epoch + 4, "its log has reached the one before"
    assert elect_as_chosen(state, (msgspec.structs.replace(choice, leader_epoch=epoch - 1),)) == []
    assert elect_as_chosen(state, (msgspec.structs.replace(choice, leader=3),)) == []
    assert elect_as_chosen(state, (msgspec.structs.replace(choice, broker_epoch=1),)) == []


def test_a_loss_is_not_accepted_of_a_member_that_has_registered_since() -> None:
    """It may have all the records, and is asked now."""
    state = cluster_state(1, 2, now=leadership(None, 1, 3, epoch=6))
    offer = preview(state, T0, {1: {T0: log(5)}, 2: {T0: log(20)}}, None)
    choice = choice_of(state, confirmation_of(offer), offer)
    assert isinstance(choice, LossChoice)
    assert [each.after.leader for each in elect_as_chosen(state, (choice,))] == [2]
    state.brokers = {**state.brokers, 3: broker(3)}
    assert elect_as_chosen(state, (choice,)) == []


class AskedController:
    """A controller with a partition whose only in-sync replica is down. Each broker takes a moment to answer."""

    def __init__(self, change: Callable[[ControllerState], None]) -> None:
        self.state = cluster_state(2, 3, now=leadership(None, 1))
        self.channels = self
        self.accepted: list[LossChoice] = []
        self._change: Callable[[ControllerState], None] | None = change

    async def gathered(self) -> None: ...

    async def logs_of(self, asked: RegisteredBroker, _: object) -> Logs:
        await asyncio.sleep(0)
        if self._change is not None:
            self._change(self.state)
        self._change = None
        return {asked.broker_id: {T0: log(100 if asked.broker_id == 1 else 60)}}

    async def run_queued(self, work: Callable[[], Awaitable[Response]]) -> Response:
        return await work()

    async def process(self, event: LossAccepted) -> None:
        self.accepted += event.choices

    async def ask(self, request: ElectLeadersRequest) -> ElectionPreview:
        response = await elect_leaders(cast(ActiveController, self), request)
        assert isinstance(response, ElectLeadersResponse)
        return response.partitions[0]


def nothing(_: ControllerState) -> None: ...


def comes_back(state: ControllerState) -> None:
    state.brokers = {**state.brokers, 1: broker(1, epoch=99, incarnation="n1")}


def leaves(state: ControllerState) -> None:
    state.brokers = {2: state.brokers[2]}


@pytest.mark.parametrize(("change", "leaders"), [(nothing, [2]), (comes_back, []), (leaves, [2])])
def test_a_broker_that_comes_or_goes_while_others_are_asked(
    change: Callable[[ControllerState], None], leaders: list[int]
) -> None:
    """One that registers meanwhile is asked, too: it may be the one whose records the operator gives up for lost."""

    async def story() -> list[int]:
        offer = await AskedController(nothing).ask(ElectLeadersRequest())
        assert (offer.chosen, offer.candidates[0].problem) == (2, "is not registered")
        active = AskedController(change)
        await active.ask(ElectLeadersRequest(confirmed=[confirmation_of(offer)]))
        return [each.leader for each in active.accepted]

    assert asyncio.run(story()) == leaders


def test_a_broker_that_leaves_before_it_is_asked_ends_no_process() -> None:
    async def story() -> str | None:
        active = AskedController(nothing)
        asking = asyncio.ensure_future(active.ask(ElectLeadersRequest()))
        await asyncio.sleep(0)
        leaves(active.state)
        return (await asking).candidates[2].problem

    assert asyncio.run(story()) == "is not registered"


def test_an_order_is_refused_when_the_preview_has_changed() -> None:
    """Otherwise another replica, or another log of this one, would lead, with a loss that was not accepted."""
    state = cluster_state(1, 2, now=leadership(None, 3, epoch=6))
    logs = {1: {T0: log(5)}, 2: {T0: log(20)}}
    offer = preview(state, T0, logs, None)
    order = confirmation_of(offer)
    chosen = choice_of(state, order, offer)
    assert isinstance(chosen, LossChoice)
    assert (chosen.leader, order.log_end_offset) == (2, 20)
    assert chosen.latest_epoch_in_logs == 5
    logs = {1: {T0: log(5, epoch=8)}, 2: {T0: log(20, epoch=9)}, 3: {T0: log(1, epoch=LOG_EPOCH_MAX + 1)}}
    ahead = preview(cluster_state(1, 2, 3, now=leadership(None, 3, epoch=6)), T0, logs, None)
    assert latest_epoch_in(ahead) == 9

    def refusal(state: ControllerState, logs: Logs) -> object:
        return choice_of(state, order, preview(state, T0, logs, None))

    gone = cluster_state(1, now=leadership(None, 3, epoch=6))
    assert refusal(gone, {1: {T0: log(5)}}) == "broker 2 is not registered"
    assert refusal(state, {1: {T0: log(30)}, 2: {T0: log(20)}}) == "broker 1 would be elected now, not broker 2"
    shorter = {1: {T0: log(5)}, 2: {T0: log(19)}}
    assert "ends at 19 now" in str(refusal(state, shorter))
    assert "ends at 21 now" in str(refusal(state, {1: {T0: log(5)}, 2: {T0: log(21)}}))
    later = cluster_state(1, 2, now=leadership(None, 3, epoch=7))
    assert refusal(later, logs) == f"{T0} is in leader epoch 7, not 6"
    assert "is led by broker 1" in str(refusal(cluster_state(1, 2, now=leadership(1, 1, epoch=7)), logs))


def test_a_preview_that_is_refused_says_why() -> None:
    deleted = cluster_state(1, 2, now=leadership(None, 3))
    deleted.deletions = {"lines": Deletion(is_started=True)}
    marked = cluster_state(1, 2, now=leadership(None, 3))
    marked.deletions = {"lines": Deletion()}
    led = cluster_state(1, 2, now=leadership(1, 1, 2))
    unknown = TopicPartition("other", 7)
    none_able = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    for state, partition, code, text in (
        (led, unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no partition other-7"),
        (deleted, T0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "lines is being deleted"),
        (led, T0, ErrorCode.ELECTION_NOT_NEEDED, "lines-0 is led by broker 1"),
        (marked, T0, none_able, None),
    ):
        offer = preview(state, partition, {}, None)
        assert (offer.topic_name, offer.partition_index) == partition
        assert (offer.error_code, offer.error_message) == (code, text)
        assert bool(offer.candidates) is (code is none_able)


@pytest.mark.parametrize(
    ("is_unreadable", "why"),
    [(False, "it has had no leader yet"), (True, "its state in ZooKeeper cannot be used")],
)
def test_a_partition_without_a_state_is_listed_with_the_reason(*, is_unreadable: bool, why: str) -> None:
    """Metadata lists it without a leader, and the advice was this order, which said that there is no such partition.
    One that is being deleted is not listed: it would refuse the order for all."""
    active = AskedController(nothing)
    del active.state.leaderships[T0]
    active.state.unreadable = frozenset([T0] if is_unreadable else [])
    offer = asyncio.run(active.ask(ElectLeadersRequest()))
    assert offer.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert offer.error_message == f"{T0} has no state: {why}; its replicas belong on brokers [1, 2, 3]"
    active.state.deletions = {"lines": Deletion(is_started=True)}
    with pytest.raises(IndexError):
        asyncio.run(active.ask(ElectLeadersRequest()))


async def test_a_preview_waits_until_the_brokers_have_reported() -> None:
    """A new controller knows no broker at first, and would show an election without candidates."""

    class NotReportedYet(Exception):
        pass

    async def gathered() -> None:
        raise NotReportedYet

    with pytest.raises(NotReportedYet):
        await elect_leaders(cast(Any, SimpleNamespace(gathered=gathered)), ElectLeadersRequest())
