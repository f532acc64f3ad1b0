"""Orders of events around truncation."""

from tests.mutants.judged import Directed, Stage, on_stage


@on_stage(Stage())
async def restarted_follower_leads(directed: Directed) -> None:
    """KIP-101, scenario 1: a follower restarts right after an acknowledgement, and the leader dies."""
    leader, other = directed.leader, directed.followers()[0]
    third = directed.followers()[1]
    directed.cluster.kill(third)
    await directed.until_isr(leader, other)
    for number in range(3):
        await directed.produce(f"{number}")
    directed.cluster.kill(other)
    directed.cluster.start(other)
    await directed.until_isr(leader, other)
    directed.cluster.kill(leader)
    await directed.until_leader(other)
