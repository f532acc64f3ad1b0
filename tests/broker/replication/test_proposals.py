"""What a proposal names when it is sent again."""

import pytest

from tests.broker.replication.stage import Stage


@pytest.mark.invariant("I6", "I31")
def test_a_repeated_proposal_names_the_registration_that_caught_up() -> None:
    """KIP-903: replica 3 caught up, lost its tail and came back. The proposal that is sent again is still about the
    earlier one: with the new registration beside it the controller would take a replica below the mark into the ISR."""
    stage = Stage(3)
    stage.elect(1, isr=(1, 2))
    stage.produce(1, "a")
    for _ in range(2):
        for follower, broker_epoch in ((2, 20), (3, 30)):
            stage.fetch(follower, broker_epoch=broker_epoch)
    leader = stage.actors[1]
    assert leader.state.high_watermark == 1
    assert leader.proposals[0].new_isr_with_epochs == ((1, None), (2, 20), (3, 30))

    stage.actors[3].restart(keep=0)
    stage.tell((3,))
    stage.fetch(3, broker_epoch=31, hold="late")
    stage.alter(1, "lost")

    assert leader.proposals[0].new_isr_with_epochs == ((1, None), (2, 20), (3, 30))
