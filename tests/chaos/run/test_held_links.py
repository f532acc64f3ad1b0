"""Links that two faults hold at once are open again when both have ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minibroker.chaos.run.held_links import HeldLinks
from minibroker.harness.cluster import Link, Party


class Network:
    """It knows only which links are blocked, and how slow they are; each change takes a while."""

    def __init__(self) -> None:
        self.blocked: set[Link] = set()
        self.delays_s: dict[Link, float] = {}
        self.shares: dict[Link, float] = {}
        self.failing: set[Link] = set()

    async def block(self, source: Party, target: Party) -> None:
        await asyncio.sleep(0)
        self.blocked.add((source, target))

    async def unblock(self, source: Party, target: Party) -> None:
        await asyncio.sleep(0)
        if (source, target) in self.failing:
            raise OSError("this link cannot be opened")
        self.blocked.discard((source, target))

    async def lose_packets(self, source: Party, target: Party, share: float) -> None:
        await asyncio.sleep(0)
        self.shares[source, target] = share

    async def slow(self, source: Party, target: Party, delay_s: float) -> None:
        await asyncio.sleep(0)
        self.delays_s[source, target] = delay_s


def held(network: Network) -> HeldLinks:
    cluster: Any = network
    return HeldLinks(cluster)


async def test_a_link_stays_blocked_until_the_last_fault_that_blocks_it_ends() -> None:
    network = Network()
    links = held(network)
    first = links.blocked([(1, 2), (1, 3)])
    await first.__aenter__()
    async with links.blocked([(1, 2), (2, 1)]):
        await first.__aexit__(None, None, None)
        assert network.blocked == {(1, 2), (2, 1)}
    assert network.blocked == set()


async def test_a_fault_that_begins_while_another_ends_keeps_the_link_blocked() -> None:
    network = Network()
    links = held(network)
    first, second = links.blocked([(1, 2)]), links.blocked([(1, 2)])
    await first.__aenter__()
    await asyncio.gather(first.__aexit__(None, None, None), second.__aenter__())
    assert network.blocked == {(1, 2)}
    await second.__aexit__(None, None, None)
    assert network.blocked == set()


async def test_one_link_that_cannot_be_opened_does_not_hinder_the_others() -> None:
    network = Network()
    network.failing = {(1, 2)}
    with pytest.raises(OSError, match="cannot be opened"):
        async with held(network).blocked([(1, 2), (2, 1)]):
            pass
    assert network.blocked == {(1, 2)}


async def test_the_longest_delay_of_a_link_counts() -> None:
    network = Network()
    links = held(network)
    async with links.slowed({(1, 2): 0.2}):
        async with links.slowed({(1, 2): 0.4}):
            assert network.delays_s == {(1, 2): 0.4}
        assert network.delays_s == {(1, 2): 0.2}
    assert network.delays_s == {(1, 2): 0.0}


async def test_a_link_loses_packets_until_the_last_fault_that_wants_it_ends() -> None:
    network = Network()
    links = held(network)
    async with links.losing([(1, 2)], 0.2):
        async with links.losing([(1, 2), (2, 3)], 0.2):
            assert network.shares == {(1, 2): 0.2, (2, 3): 0.2}
        assert network.shares == {(1, 2): 0.2, (2, 3): 0.0}
    assert network.shares == {(1, 2): 0.0, (2, 3): 0.0}
