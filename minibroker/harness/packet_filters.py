"""Blocked and lossy links between containers: packet filters in their network namespaces.

Owns: which links are filtered, and the rule of each. A link is filtered at its broker's end. Only root may filter one.
Leaves to others: the containers (compose_project). A container that starts has a new network namespace and maybe
another address: `renew` puts the rules there.
"""

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterable
from typing import Any

from minibroker.harness.cluster import CLIENTS, ZOOKEEPER, Party, UnsupportedByBackend
from minibroker.harness.compose_project import ComposeProject, service_of

GONE = "0"
"""The process id of a container that does not run; its network namespace is gone, too."""
RESET_SECONDS = 0.2
"""So long each packet of a reset link is answered with a reset; connections that are silent meanwhile live on."""
Filter = tuple[Party, Party, float]
"""A link, and the share of its packets that is lost."""
ALL = 1.0
LOCK_SECONDS = 10
"""How long iptables waits for another that holds the lock, which namespaces may share."""


class PacketFilters:
    """The rules of one project. A link is blocked once its rule is in place, and open once it is deleted. It may lose
    some packets, too, by another rule."""

    def __init__(self, project: ComposeProject) -> None:
        self._project = project
        self._filtered: dict[Filter, tuple[str, list[str]] | None] = {}
        """The process whose namespace holds the rule, and the rule; None while an end does not run."""

    async def block(self, source: Party, target: Party) -> None:
        """Raises UnsupportedByBackend if this user may not, ComposeFailed if the engine or iptables refuses."""
        await self._put((source, target, ALL))

    async def unblock(self, source: Party, target: Party) -> None:
        """Does nothing if the link is open."""
        await self._remove((source, target, ALL))

    async def lose(self, source: Party, target: Party, share: float) -> None:
        """This share of the packets; 0: none any more. Raises as `block` does."""
        for former in [each for each in self._filtered if each[:2] == (source, target) and each[2] not in (ALL, share)]:
            await self._remove(former)
        if share:
            await self._put((source, target, share))

    async def heal(self) -> None:
        """Open all; a link that cannot be opened does not hinder the others. Raises the first error."""
        await together(map(self._remove, sorted(self._filtered, key=str)))

    async def _put(self, wanted: Filter) -> None:
        _require_root()
        if wanted not in self._filtered:
            self._filtered[wanted] = await self._add(wanted)

    async def _remove(self, former: Filter) -> None:
        if former in self._filtered:
            await self._delete(former)
            self._filtered.pop(former, None)

    async def renew(self, party: Party) -> None:
        """Put the rules of its links in place again after its start."""

        async def again(each: Filter) -> None:
            await self._delete(each)
            self._filtered[each] = await self._add(each)

        await together(again(each) for each in sorted(self._filtered, key=str) if party in each[:2])

    async def reset(self, one: Party, other: Party) -> None:
        """Reset the connections between the two that are in use; both ends notice. Raises as `block` does."""
        _require_root()
        place, peer = (one, other) if isinstance(one, int) else (other, one)
        assert isinstance(place, int), "one end of a link is a broker"
        process_id, address = await self._process_id(place), await self._address(peer, place)
        if process_id == GONE or not address:
            return
        answer = ("-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset")
        added = []
        try:
            for rule in (["INPUT", "-s", address, *answer], ["OUTPUT", "-d", address, *answer]):
                await self._iptables(process_id, "-I", rule)
                added.append(rule)
            await asyncio.sleep(RESET_SECONDS)
        finally:
            await together(self._iptables(process_id, "-D", rule) for rule in added)

    async def _add(self, wanted: Filter) -> tuple[str, list[str]] | None:
        source, target, share = wanted
        is_at_target = target not in (CLIENTS, ZOOKEEPER)
        place, peer = (target, source) if is_at_target else (source, target)
        assert isinstance(place, int), "one end of a blocked link is a broker"
        process_id = await self._process_id(place)
        address = await self._address(peer, place)
        if process_id == GONE or not address:
            return None
        some = () if share == ALL else ("-m", "statistic", "--mode", "random", "--probability", f"{share:g}")
        rule = [*(("INPUT", "-s") if is_at_target else ("OUTPUT", "-d")), address, *some, "-j", "DROP"]
        await self._iptables(process_id, "-A", rule)
        return process_id, rule

    async def _delete(self, former: Filter) -> None:
        source, target, _ = former
        added = self._filtered[former]
        place = target if target not in (CLIENTS, ZOOKEEPER) else source
        if added is not None and added[0] == await self._process_id(place):
            await self._iptables(added[0], "-D", added[1])
        self._filtered[former] = None

    async def _process_id(self, party: Party) -> str:
        return await self._project.inspect(service_of(party), "{{.State.Pid}}")

    async def _iptables(self, process_id: str, change: str, rule: list[str]) -> None:
        inside = ("nsenter", "-t", process_id, "-n")
        await self._project.run(*inside, "iptables", "-w", str(LOCK_SECONDS), change, *rule)

    async def _address(self, party: Party, seen_from: int) -> str:
        """Clients come from the gateway of the containers' network. Empty if the party does not run."""
        service, field = (seen_from, "Gateway") if party == CLIENTS else (party, "IPAddress")
        form = f"{{{{range .NetworkSettings.Networks}}}}{{{{.{field}}}}}{{{{end}}}}"
        return await self._project.inspect(service_of(service), form)


def _require_root() -> None:
    if os.geteuid() != 0 or shutil.which("nsenter") is None or shutil.which("iptables") is None:
        raise UnsupportedByBackend("links between containers are filtered with nsenter and iptables, as root only")


async def together(changes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Try all at once. Raises the first error when all have ended."""
    for outcome in await asyncio.gather(*changes, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
