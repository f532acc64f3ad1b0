"""Becoming controller: the broker that creates /controller wins, and with it an epoch that no other controller gets.

Owns: the one multi that creates /controller and raises /controller_epoch (KAFKA-6082), with or without a failed
predecessor's znodes in it, and finding out whether it happened when its answer was lost. Leaves to others: what a
controller does, and why a predecessor is considered failed (`succession`).

Theory (replication rules, section 9). The version of /controller_epoch is the fence: each write of a controller checks
it, so that a controller that does not know yet that it was deposed can write nothing. A controller never adopts an
epoch it did not win (KAFKA-1096): a /controller of our own session with an epoch that we do not hold is deleted and
contested again. A broker that succeeds a failed controller removes its /controller and its registration in the same
multi. The version of /controller_epoch that this multi expects was read before the /controller that it removes, so it
deposes that controller and no other, however long ago the read was. /controller_epoch may have been removed or set
back. Brokers refuse every epoch below the highest that they have received, so a candidate continues from there.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from minibroker.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch
from minibroker.protocol.znodes import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    EPOCH_MAX,
    ControllerNode,
    broker_path,
    format_number,
    parse_number,
)
from minibroker.runtime.ports import (
    BadVersion,
    CheckOp,
    Clock,
    Coordination,
    CoordinationError,
    CoordinationUnavailable,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    Operation,
    SetOp,
    Stat,
    WriteOutcomeUnknown,
)

RETRY_SECONDS = 0.1
"""Pause while ZooKeeper cannot be asked."""
RESIGN_SECONDS_MAX = 1.0
"""A clean end must not wait for a lost ZooKeeper; the end of the session does the same a little later."""

logger = logging.getLogger("minibroker.controller")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that contests."""

    broker_id: BrokerId
    incarnation_id: str
    highest_epoch: Callable[[], ControllerEpoch] = lambda: 0
    """The highest controller epoch in an order to this broker."""


class ControllerFence(msgspec.Struct, frozen=True, kw_only=True):
    """The winner's epoch, and the version that fences its writes."""

    controller_epoch: ControllerEpoch
    epoch_version: int


class CurrentController(msgspec.Struct, frozen=True, kw_only=True):
    """The active controller, as the znodes of one session describe it."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    address: tuple[str, int]
    controller_epoch: ControllerEpoch
    epoch_version: int
    """Of /controller_epoch, read before the other two."""
    controller_version: int
    registration_version: int


async def contest(
    coordination: Coordination, clock: Clock, candidate: Candidate, on_change: Callable[[], None]
) -> ControllerFence | None:
    """Try once. None: another broker is controller, and `on_change` will be called when /controller changes.

    Raises SessionExpired. Waits while ZooKeeper cannot be asked.
    """
    while True:
        try:
            if not await _is_vacant(coordination, on_change):
                return None
            fence = await _attempt(coordination, clock, candidate)
        except (CoordinationUnavailable, WriteOutcomeUnknown):
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if fence is not None:
            return fence


async def succeed(
    coordination: Coordination, clock: Clock, candidate: Candidate, current: CurrentController
) -> ControllerFence | None:
    """Succeed a failed controller and remove its registration, all or nothing. None: read again.

    Raises SessionExpired. Waits while ZooKeeper cannot be asked: what was read stays valid, for a controller that came
    back would have changed these znodes.
    """
    removals: list[Operation] = [
        DeleteOp(path=CONTROLLER, version=current.controller_version),
        DeleteOp(path=broker_path(current.broker_id), version=current.registration_version),
    ]
    before = (current.controller_epoch, current.epoch_version)
    while True:
        try:
            return await _win(coordination, clock, candidate, before, removals)
        except CoordinationUnavailable:
            await asyncio.sleep(RETRY_SECONDS)


async def resign(coordination: Coordination, fence: ControllerFence) -> None:
    """Vacate /controller on a clean end, if it is still ours. Best effort."""
    check = CheckOp(path=CONTROLLER_EPOCH, version=fence.epoch_version)
    with contextlib.suppress(CoordinationError, TimeoutError):
        async with asyncio.timeout(RESIGN_SECONDS_MAX):
            await coordination.multi([check, DeleteOp(path=CONTROLLER)])
            logger.info("resigned as controller of epoch %d", fence.controller_epoch)


async def _is_vacant(coordination: Coordination, on_change: Callable[[], None]) -> bool:
    stat = await coordination.exists(CONTROLLER, on_change)
    if stat is None:
        return True
    if stat.ephemeral_owner != coordination.session_id:
        return False
    with contextlib.suppress(NoNode, BadVersion):  # our own earlier one, of an epoch that we no longer hold
        await coordination.delete(CONTROLLER, stat.version)
    return True


async def _attempt(coordination: Coordination, clock: Clock, candidate: Candidate) -> ControllerFence | None:
    """One election. None: another broker was quicker, read again."""
    content, stat = await _read_epoch(coordination)
    return await _win(coordination, clock, candidate, (parse_number(content), stat.version), [])


async def _win(
    coordination: Coordination,
    clock: Clock,
    candidate: Candidate,
    before: tuple[ControllerEpoch, int],
    removals: list[Operation],
) -> ControllerFence | None:
    """The multi. `before`: the previous epoch, and its version."""
    epoch, version = max(before[0], _plausible(candidate.highest_epoch())) + 1, before[1]
    node = ControllerNode(
        brokerid=candidate.broker_id, timestamp=str(clock.now_ms()), incarnation_id=candidate.incarnation_id
    )
    operations: list[Operation] = [
        *removals,
        CreateOp(path=CONTROLLER, data=node.encode(), ephemeral=True),
        SetOp(path=CONTROLLER_EPOCH, data=format_number(epoch), version=version),
    ]
    fence = ControllerFence(controller_epoch=epoch, epoch_version=version + 1)
    try:
        await coordination.multi(operations)
    except (NodeExists, BadVersion, NoNode):
        return None
    except WriteOutcomeUnknown:
        return fence if await _was_won(coordination, fence) else None
    return fence


def _plausible(received: ControllerEpoch) -> ControllerEpoch:
    """An epoch in an order may be forged: one that leaves too few for future elections does not count."""
    return received if received <= EPOCH_MAX // 2 else 0


async def _was_won(coordination: Coordination, fence: ControllerFence) -> bool:
    """Both znodes are as only our own multi could have left them. Waits until they can be read."""
    while True:
        try:
            node = await coordination.exists(CONTROLLER)
            content, stat = await coordination.get(CONTROLLER_EPOCH)
            break
        except CoordinationUnavailable:
            await asyncio.sleep(RETRY_SECONDS)
    return (
        node is not None
        and node.ephemeral_owner == coordination.session_id
        and parse_number(content) == fence.controller_epoch
        and stat.version == fence.epoch_version
    )


async def _read_epoch(coordination: Coordination) -> tuple[bytes, Stat]:
    try:
        return await coordination.get(CONTROLLER_EPOCH)
    except NoNode:
        with contextlib.suppress(NodeExists):
            await coordination.create(CONTROLLER_EPOCH, format_number(0))
        return await coordination.get(CONTROLLER_EPOCH)
