"""Blocked links between containers: packet filters in their network namespaces.

Owns: which links are blocked, and the rule of each. A link is filtered at its broker's end. Only root may block one.
Leaves to others: the containers (compose_project). A container that starts has a new network namespace and maybe
another address: `renew` puts the rules there.
"""

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterable
from typing import Any

from minibroker.harness.cluster import CLIENTS, ZOOKEEPER, Link, Party, UnsupportedByBackend
from minibroker.harness.compose_project import ComposeProject, service_of

GONE = "0"
"""The process id of a container that does not run; its network namespace is gone, too."""
RESET_SECONDS = 0.2
"""So long each packet of a reset link is answered with a reset; connections that are silent meanwhile live on."""
LOCK_SECONDS = 10
"""How long iptables waits for another that holds the lock, which namespaces may share."""


class PacketFilters:
    """The rules of one project. A link is blocked once its rule is in place, and open once it is deleted."""

    def __init__(self, project: ComposeProject) -> None:
        self._project = project
        self._blocked: dict[Link, tuple[str, list[str]] | None] = {}
        """The process whose namespace holds the rule, and the rule; None while an end does not run."""

    async def block(self, source: Party, target: Party) -> None:
        """Raises UnsupportedByBackend if this user may not, ComposeFailed if the engine or iptables refuses."""
        _require_root()
        if (source, target) not in self._blocked:
            self._blocked[source, target] = await self._add(source, target)

    async def unblock(self, source: Party, target: Party) -> None:
        """Does nothing if the link is open."""
        if (source, target) in self._blocked:
            await self._delete(source, target)
            self._blocked.pop((source, target), None)

    async def heal(self) -> None:
        """Unblock all; a link that cannot be unblocked does not hinder the others. Raises the first error."""
        await together(self.unblock(source, target) for source, target in sorted(self._blocked, key=str))

    async def renew(self, party: Party) -> None:
        """Put the rules of its links in place again after its start."""

        async def again(source: Party, target: Party) -> None:
            await self._delete(source, target)
            self._blocked[source, target] = await self._add(source, target)

        links = [link for link in sorted(self._blocked, key=str) if party in link]
        await together(again(source, target) for source, target in links)

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

    async def _add(self, source: Party, target: Party) -> tuple[str, list[str]] | None:
        is_at_target = target not in (CLIENTS, ZOOKEEPER)
        place, peer = (target, source) if is_at_target else (source, target)
        assert isinstance(place, int), "one end of a blocked link is a broker"
        process_id = await self._process_id(place)
        address = await self._address(peer, place)
        if process_id == GONE or not address:
            return None
        rule = [*(("INPUT", "-s") if is_at_target else ("OUTPUT", "-d")), address, "-j", "DROP"]
        await self._iptables(process_id, "-A", rule)
        return process_id, rule

    async def _delete(self, source: Party, target: Party) -> None:
        added = self._blocked[source, target]
        place = target if target not in (CLIENTS, ZOOKEEPER) else source
        if added is not None and added[0] == await self._process_id(place):
            await self._iptables(added[0], "-D", added[1])
        self._blocked[source, target] = None

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
