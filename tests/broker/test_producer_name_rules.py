"""Who gets the next epoch of a producer's name, whatever was held up, repeated or lost on the way."""

from dataclasses import dataclass, field
from itertools import permutations

import pytest

from minibroker.broker.requests.producer_name_rules import (
    Claim,
    Decision,
    Fenced,
    Grant,
    GrantedBefore,
    Identity,
    NotNewest,
    decide,
)
from minibroker.protocol.znodes import NO_PRODUCER, ProducerNameNode


def node(epoch: int, process_token: str = "", replaced: Identity = NO_PRODUCER) -> ProducerNameNode:
    return ProducerNameNode(
        producer_id=7,
        producer_epoch=epoch,
        replaced_id=replaced[0],
        replaced_epoch=replaced[1],
        process_token=process_token,
        changed_ms=0,
    )


def start(process_token: str, newest_known: Identity = NO_PRODUCER) -> Claim:
    return Claim(process_token=process_token, newest_known=newest_known)


def running(process_token: str, identity: Identity) -> Claim:
    return Claim(process_token=process_token, running_as=identity)


@pytest.mark.parametrize(
    ("known", "claim", "expected"),
    [
        (None, start("p"), Grant()),
        (node(4), start("p"), NotNewest((7, 4))),
        (node(4), start("p", (7, 4)), Grant()),
        (None, start("p", (7, 4)), NotNewest(NO_PRODUCER)),
        (node(5, "p", (7, 4)), start("p", (7, 4)), GrantedBefore((7, 5))),
        (node(5, "q", (7, 4)), start("p", (7, 4)), NotNewest((7, 5))),
        (node(0, "p"), start("p"), GrantedBefore((7, 0))),
        (node(0, "q"), start("p"), NotNewest((7, 0))),
        (node(5, "p", (7, 4)), running("p", (7, 5)), Grant()),
        (node(6, "p", (7, 5)), running("p", (7, 5)), GrantedBefore((7, 6))),
        (node(6, "p", (7, 5)), start("p", (7, 4)), NotNewest((7, 6))),
    ],
)
def test_a_request_is_granted_once_and_only_for_the_newest(
    known: ProducerNameNode | None, claim: Claim, expected: Decision
) -> None:
    assert decide("orders", known, claim) == expected


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (node(6, "q", (7, 5)), "a later process has started as producer 'orders': epoch 6 is the newest"),
        (node(7, "p", (7, 6)), "a later process has started as producer 'orders': epoch 7 is the newest"),
        (None, "producer 'orders' was forgotten, and perhaps a later process has started: start again"),
    ],
)
def test_a_running_process_is_fenced_if_it_has_not_the_newest(known: ProducerNameNode | None, reason: str) -> None:
    assert decide("orders", known, running("p", (7, 5))) == Fenced(reason)


@pytest.mark.parametrize("known", [None, node(4), node(4, "p", (7, 3)), node(4, "", (7, 3))])
def test_each_start_of_an_earlier_version_counts(known: ProducerNameNode | None) -> None:
    assert decide("orders", known, start("")) == Grant()


def test_a_running_process_of_an_earlier_version_may_repeat_its_request() -> None:
    assert decide("orders", node(6, "", (7, 5)), running("", (7, 5))) == GrantedBefore((7, 6))
    assert decide("orders", node(6, "q", (7, 5)), running("", (7, 5))) == Fenced(
        "a later process has started as producer 'orders': epoch 6 is the newest"
    )


@dataclass
class Name:
    """A name, and each identity that a process was given."""

    node: ProducerNameNode | None = None
    given: dict[str, Identity] = field(default_factory=dict)

    def execute(self, claim: Claim, *, is_answered: bool = True) -> Decision:
        decision = decide("orders", self.node, claim)
        if isinstance(decision, Grant):
            epoch = 0 if self.node is None else self.node.producer_epoch + 1
            self.node = node(epoch, claim.process_token, claim.replaces)
        if is_answered and isinstance(decision, Grant | GrantedBefore):
            assert self.node is not None
            self.given[claim.process_token] = self.node.identity
        return decision


def begin(name: Name, process: str) -> None:
    decision = name.execute(start(process))
    while isinstance(decision, NotNewest):
        decision = name.execute(start(process, decision.newest))
    assert process in name.given


@pytest.mark.parametrize("earlier", [0, 1])
def test_late_requests_fence_no_process(earlier: int) -> None:
    """Process p starts and asks for its next epoch, then q starts. Copies of all these requests are executed late, in
    every order: q goes on, p stays fenced, and no identity is given to both."""
    for late in permutations(range(4)):
        name = Name()
        for number in range(earlier):
            begin(name, f"earlier-{number}")
        before = NO_PRODUCER if name.node is None else name.node.identity
        begin(name, "p")
        first = name.given["p"]
        name.execute(running("p", first))
        held_up = [start("p"), start("p", before), running("p", first), start("q", first)]
        begin(name, "q")
        newest = name.given["q"]
        for index in late:
            name.execute(held_up[index], is_answered=False)
        assert isinstance(name.execute(running("p", name.given["p"])), Fenced)
        assert len(set(name.given.values())) == len(name.given)
        assert name.node is not None and name.node.identity == newest
        assert name.execute(running("q", newest)) == Grant()


def test_a_start_that_was_granted_elsewhere_is_given_the_same_epoch() -> None:
    name = Name()
    begin(name, "earlier")
    claim = start("p", (7, 0))
    assert name.execute(claim, is_answered=False) == Grant()
    assert name.execute(claim) == GrantedBefore((7, 1))
