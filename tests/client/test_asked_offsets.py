"""Asking for offsets of many partitions, of which some have no leader."""

import asyncio
from typing import cast

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.errors import CallTimedOut
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, ListOffsetsRequest
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0

MANY = [TopicPartition("many", number) for number in (9, 7, 8, 3, 4, 1, 2, 0, 5, 6)]


def test_the_leader_is_searched_again_when_the_known_one_says_that_it_leads_no_more(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            for leader in (2, 3, 1):
                await asyncio.sleep(5)
                cluster.partition("t").elect(leader)
                began = asyncio.get_running_loop().time()
                assert (await admin.list_offsets({T0: EARLIEST_TIMESTAMP}))[T0].offset == 0
                assert asyncio.get_running_loop().time() - began < 1

    cluster.run(main)


def test_a_leader_that_is_elected_later_is_found_soon(cluster: FakeCluster) -> None:
    """No broker can be asked meanwhile, so no refusal tells that there is a leader now."""
    cluster.partition("t").elect(None)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            asking = asyncio.create_task(admin.list_offsets({T0: EARLIEST_TIMESTAMP}, timeout_ms=30_000))
            await asyncio.sleep(5)
            cluster.partition("t").elect(2)
            async with asyncio.timeout(3):
                assert (await asking)[T0].offset == 0

    cluster.run(main)


@pytest.mark.parametrize(
    ("lacking", "named"), [(2, "many-0, many-1"), (7, "many-0, many-1, many-2, many-3, many-4 and 2 more")]
)
def test_the_error_names_the_partitions_that_are_lacking(cluster: FakeCluster, lacking: int, named: str) -> None:
    """Those with leaders are asked about once."""
    cluster.add_topic("many", len(MANY))
    for number in range(lacking):
        cluster.partition("many", number).elect(None)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CallTimedOut) as raised:
                await admin.list_offsets(dict.fromkeys(MANY, EARLIEST_TIMESTAMP), timeout_ms=1_500)
        assert str(raised.value).startswith(f"offsets of {named} are not known after 1500 ms")

    cluster.run(main)
    asked = [
        (topic.name, topic.topic_id, each.partition_index)
        for _, request in cluster.requests[ListOffsetsRequest]
        for topic in cast(ListOffsetsRequest, request).topics
        for each in topic.partitions
    ]
    topic_id = cluster.topic_ids["many"]
    assert sorted(asked) == [("many", topic_id, number) for number in range(lacking, len(MANY))]
