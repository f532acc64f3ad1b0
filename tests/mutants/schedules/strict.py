"""Orders of events for derived hazards and stricter rules: elections and their sets, deadlines, sequences, stalls."""

import asyncio

from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import requests, responses
from tests.mutants.directed_run import FIRST, TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host, members, read_all, report, separate_roles

UNCLEAN = {"unclean.leader.election.enable": "true"}


# ----------------------------------------------------------------------------------------------------------- elections
@with_setup(ClusterSetup(settings=UNCLEAN))
async def unclean_election_without_loss(directed: DirectedRun) -> None:
    """The only member of the ISR fails; its successor was out of the ISR, though it happens to hold everything."""
    leader, followers = directed.leader, directed.followers()
    await directed.produce("everywhere")
    await asyncio.sleep(1.0)
    for follower in followers:
        directed.cluster.kill(follower)
    await directed.until_isr(leader)
    directed.cluster.kill(leader)
    for follower in followers:
        directed.cluster.start(follower)
    await directed.until(lambda: directed.cluster.leader(TOPIC) in followers, "an unclean leader")
    await asyncio.sleep(1.0)


@with_setup(ClusterSetup())
async def leader_dies_among_living_members(directed: DirectedRun) -> None:
    """Replication rules, section 9: the ISR at the moment of a clean election."""
    leader, _, _ = await separate_roles(directed)
    living = tuple(directed.followers())
    await directed.produce("everywhere")
    seen: list[tuple[int, ...]] = []
    directed.reference.listeners.append(lambda partition: seen.append(members(directed)))
    directed.cluster.kill(leader)
    await directed.until(lambda: directed.cluster.leader(TOPIC) in living, "another leader")
    if leader in seen[0]:
        report(directed, "I34", f"the ISR after the election is {seen[0]}, broker {leader} is dead")
    if not set(living) <= set(seen[0]):
        report(directed, "I6", f"the ISR after the election is {seen[0]}, {living} live and were in sync")


# ------------------------------------------------------------------------------------------------------------ deadlines
async def _cut_from_zookeeper(directed: DirectedRun, victim: int) -> None:
    """The broker's session ends at ZooKeeper; at that moment it must consider itself fenced."""
    zookeeper, broker = directed.world.zookeeper, directed.cluster.brokers[victim]
    await directed.until(lambda: not zookeeper.sessions_of(host(victim)), "the end of its session", 60)
    if not broker.registration.is_fenced():
        report(
            directed, "hardening rule 8", f"ZooKeeper ended broker {victim}'s session, and it does not count as fenced"
        )


@with_setup(ClusterSetup())
async def zookeeper_answers_late_and_goes_silent(directed: DirectedRun) -> None:
    """Hardening rule 8: the answers take most of a session timeout, so the last one to arrive proves little."""
    leader, _, _ = await separate_roles(directed)
    await directed.produce("everywhere")
    zookeeper = directed.world.zookeeper
    zookeeper.slow_hosts[host(leader)] = 0.9
    await asyncio.sleep(5.0)
    zookeeper.hold(host(leader))  # no further request gets through, but answers still arrive
    await asyncio.sleep(1.0)
    zookeeper.cut(host(leader))
    await _cut_from_zookeeper(directed, leader)


@with_setup(ClusterSetup(settings={"zookeeper.session.timeout.ms": "60000"}))
async def zookeeper_grants_a_shorter_session(directed: DirectedRun) -> None:
    """Hardening rule 8: ZooKeeper's ticks bound the session to ten seconds; a minute was requested."""
    leader, _, _ = await separate_roles(directed)
    await directed.produce("everywhere")
    await asyncio.sleep(5.0)
    directed.world.zookeeper.cut(host(leader))
    await _cut_from_zookeeper(directed, leader)


# ------------------------------------------------------------------------------------------------------------ sequences
@with_setup(ClusterSetup())
async def record_expires_while_its_answer_is_held_back(directed: DirectedRun) -> None:
    """Hardening rule 12: a record was written and its answer lost; the producer gave up, and a consumer has read it. The next
    record has other bytes; the last one has the same bytes, like two equal events in one millisecond."""
    leader, network, history = directed.leader, directed.world.network, directed.history
    async with Producer(
        bootstrap_servers=directed.cluster.bootstrap_servers,
        acks="all",
        delivery_timeout_ms=2_000,
        request_timeout_ms=1_000,
        runtime=directed.cluster.client_runtime(),
    ) as producer:

        async def send(value: bytes) -> int:
            found = await producer.send_and_wait(TOPIC, value, partition=0, timestamp_ms=1_000)
            assert found.offset is not None
            history.acked[FIRST, found.offset] = value
            return found.offset

        await send(b"acquainted")
        answer = network.hold(host(leader), "client", responses(ApiKey.PRODUCE))
        asyncio.get_running_loop().call_later(0.5, network.partition, host(leader), "client")
        try:
            await send(b"an event")
            raise AssertionError("the answer was held back, and came")
        except MinibrokerError as error:
            assert error.maybe_written
        answer.release()
        network.heal_all()
        await read_all(directed)
        seen = max(offset for _, offset in history.read)
        try:
            await send(b"another event")
        except MinibrokerError as error:
            report(directed, "I37", f"no other producer has this identity, and it is refused: {error}")
        offset = await send(b"an event")
        if offset <= seen:
            report(directed, "I26", f"a record is acknowledged at {offset}, which was read before it was sent")


# --------------------------------------------------------------------------------------------------------------- stalls
@with_setup(ClusterSetup(settings={"zookeeper.session.timeout.ms": "10000"}))
async def leader_is_stopped_under_load(directed: DirectedRun) -> None:
    """Hardening rule 7: SIGSTOP for longer than the lag limit while followers are always some records behind."""
    leader, links = directed.leader, directed.world.network.slow_links
    for follower in directed.followers():
        links[host(leader), host(follower)] = links[host(follower), host(leader)] = 0.1
    await asyncio.sleep(1.0)
    changes, sends = directed.reference.isr_changes, []
    for number in range(1_600):
        sends.append(directed.produce_soon(f"{number}", acks=1))
        await asyncio.sleep(0.01)
        if number % 400 == 399:
            directed.world.pause(host(leader))
            await asyncio.sleep(2.0 + number / 1_000)
            directed.world.resume(host(leader))
    await asyncio.gather(*sends)
    if directed.reference.isr_changes != changes:
        report(
            directed, "I36", f"the ISR changed {directed.reference.isr_changes - changes} times while all followers ran"
        )


@with_setup(ClusterSetup())
async def controller_never_answers_a_proposal(directed: DirectedRun) -> None:
    """Hardening rule 6: a proposal is held on a connection that stays open, and the controller works normally."""
    leader, controller, third = await separate_roles(directed)
    await directed.produce("everywhere")
    directed.cluster.kill(third)
    await directed.until_isr(leader, controller)
    proposal = requests(ApiKey.ALTER_PARTITION)
    stuck = directed.world.network.hold(host(leader), host(controller), proposal, times=1)
    directed.cluster.start(third)
    await stuck.caught()
    await asyncio.sleep(5.0)
    if third not in members(directed):
        report(directed, "I36", f"broker {third} is not in the ISR: one proposal was never answered, and none follows")
