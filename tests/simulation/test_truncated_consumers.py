"""Consumers of a partition that elects the former leader uncleanly, so that a later epoch's records are gone."""

from __future__ import annotations

import asyncio

import pytest

from minibroker import NewTopic
from minibroker.client.errors import LogTruncated
from minibroker.testing import ClusterHarness, cluster, run

SETTINGS = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
SESSION_ENDED_SECONDS = 8.0
Read = list[tuple[int, bytes | None]]


async def _b_takes_over(c: ClusterHarness, on_a: list[bytes]) -> None:
    """The first leader dies with records that no other has; B leads after it."""
    for follower in (2, 3):
        await c.block(1, follower)
    async with c.producer(acks=1) as producer:
        for value in on_a:
            await producer.send_and_wait("lines", value)
    for broker in (1, 3):
        await c.kill(broker)
    await c.heal()
    await c.wait_for_leader("lines", other_than=1)


async def _a_leads_again(c: ClusterHarness) -> None:
    await c.kill(2)
    await asyncio.sleep(SESSION_ENDED_SECONDS)
    await c.start(1)
    await c.wait_for_leader("lines", other_than=2)


async def story(on_a: list[bytes], on_b: list[bytes], on_truncation: str) -> tuple[Read, Read, LogTruncated | None]:
    """What the consumer read before and after, the log, and what it was told."""
    async with cluster(brokers=4, seed=3, settings=SETTINGS) as c:
        async with c.admin() as admin:
            await admin.create_topics([NewTopic(name="lines", assignment={0: [1, 2, 3]})])
        await c.wait_in_sync("lines")
        problem = None
        async with c.producer() as producer, c.consumer("lines", on_truncation=on_truncation) as consumer:
            await producer.send_and_wait("lines", b"m0")
            await _b_takes_over(c, on_a)
            for value in on_b:
                await producer.send_and_wait("lines", value)
            read = [await consumer.getone() for _ in range(1 + len(on_b))]
            await _a_leads_again(c)
            last = await producer.send_and_wait("lines", b"m2")
            try:
                read.append(await consumer.getone(timeout_ms=20_000))
            except LogTruncated as error:
                problem = error
        assert last.offset is not None
        async with c.consumer("lines") as consumer:
            log = [await consumer.getone() for _ in range(last.offset + 1)]
    return [(each.offset, each.value) for each in read], [(each.offset, each.value) for each in log], problem


@pytest.mark.invariant("I22")
@pytest.mark.parametrize(
    ("on_a", "on_b"),
    [([b"m1"], [b"n1"]), ([b"m1", b"m1b"], [b"n1", b"n2", b"n3"]), ([b"m1", b"m1b", b"m1c"], [b"n1"])],
    ids=["as long", "shorter", "longer"],
)
@pytest.mark.parametrize("on_truncation", ["raise", "reset"])
def test_a_consumer_is_told_where_records_of_a_later_epoch_are_gone(
    on_a: list[bytes], on_b: list[bytes], on_truncation: str
) -> None:
    """The former leader's log reached as far, in an earlier epoch: only the epoch of its answer tells (KIP-279)."""
    read, log, problem = run(story(on_a, on_b, on_truncation))
    parted_at = next(offset for (offset, value), (_, actual) in zip(read, log, strict=False) if value != actual)
    if on_truncation == "raise":
        assert problem is not None and problem.divergent_offset == parted_at
    else:
        assert read[-1] == log[parted_at], "it goes on where the logs part"
