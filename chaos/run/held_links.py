"""Links that several faults hold at once: each is open, or fast, again when the last of these faults has ended.

Owns: which faults hold which link. Leaves to others: how a link is blocked or slowed (the harness).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any

from minibroker.harness.cluster import ClusterHarness, Link, Party

Verb = Callable[[Party, Party], Coroutine[Any, Any, None]]
"""Of the harness, for a link."""


class HeldLinks:
    """Of one cluster."""

    def __init__(self, cluster: ClusterHarness) -> None:
        self._cluster = cluster
        self._blocks: Counter[Link] = Counter()
        self._losses: Counter[Link] = Counter()
        self._delays: dict[Link, list[float]] = {}
        self._changes = asyncio.Lock()
        """A change takes a while on containers. Without it, the end of one fault could open what another has blocked
        meanwhile."""

    @contextlib.asynccontextmanager
    async def blocked(self, links: Collection[Link]) -> AsyncIterator[None]:
        """All of them, during the block."""
        async with self._held(links, self._blocks, self._cluster.block, self._cluster.unblock):
            yield

    @contextlib.asynccontextmanager
    async def losing(self, links: Collection[Link], share: float) -> AsyncIterator[None]:
        """All of them lose this share of their packets, during the block."""
        begin, end = (partial(self._cluster.lose_packets, share=each) for each in (share, 0.0))
        async with self._held(links, self._losses, begin, end):
            yield

    @contextlib.asynccontextmanager
    async def _held(self, links: Collection[Link], held: Counter[Link], begin: Verb, end: Verb) -> AsyncIterator[None]:
        """All of them, during the block; `held` counts the faults that hold each."""

        async def end_unless_held(link: Link) -> None:
            if not held[link]:  # no other fault has come meanwhile
                await end(*link)

        held.update(links)
        try:
            await self._change(links, lambda link: begin(*link))
            yield
        finally:
            held.subtract(links)
            await self._change([link for link in links if not held[link]], end_unless_held)

    @contextlib.asynccontextmanager
    async def slowed(self, delays_s: Mapping[Link, float]) -> AsyncIterator[None]:
        """During the block. The longest delay of a link counts."""
        for link, delay_s in delays_s.items():
            self._delays.setdefault(link, []).append(delay_s)
        try:
            await self._change(delays_s, self._slow)
            yield
        finally:
            for link, delay_s in delays_s.items():
                self._delays[link].remove(delay_s)
            await self._change(delays_s, self._slow)

    async def _slow(self, link: Link) -> None:
        await self._cluster.slow(*link, max(self._delays[link], default=0.0))

    async def _change(self, links: Collection[Link], change: Callable[[Link], Coroutine[Any, Any, None]]) -> None:
        """Change all at once, and let none hinder the others. Raises the first error."""
        async with self._changes:
            for outcome in await asyncio.gather(*map(change, links), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
