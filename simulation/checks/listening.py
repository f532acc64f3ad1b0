"""Where the running program is listened to: each step of a replica, each append and each cut of a log.

Owns: the wrapping of those functions, of all brokers of a run, for as long as the run lasts. Refuses to judge what is
heard. The program knows nothing of it and is not changed by it: a listener reads.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from minibroker.broker import partition as partition_module
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.partition import Partition
from minibroker.broker.replica_orders import ReplicaOrders
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.leader import FetchRefused
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.checkpoints import LogStartReason
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.ports import Buffer


class ReplicaListener(Protocol):
    """Hears what happens, right after it happened, inside the process that did it."""

    def ordered(self, controller_epoch: int) -> None:
        """This process takes an order of a controller of that epoch as admitted, and will obey. Told before it does."""
        ...

    def replica_loaded(self, replica: Partition) -> None:
        """A process made it over the log it found, or created one."""
        ...

    def stepped(self, replica: Partition, event: ev.Event, effects: Sequence[ev.Effect], refused: bool) -> None:
        """The core has decided; the effects are not performed yet. `refused`: a fetch that proves nothing."""
        ...

    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None:
        """Written, and the log ends behind them."""
        ...

    def cut(self, log: PartitionLog, failed: bool) -> None:
        """The tail is cut, or all of it was dropped. `failed`: the disk refused, and nobody knows how far it came."""
        ...


@contextlib.contextmanager
def listening(listener: ReplicaListener) -> Iterator[None]:
    """Tell the listener of everything until the block ends."""
    step: Any = vars(partition_module)["step"]
    step_fetch: Any = vars(partition_module)["step_fetch"]
    handle, handle_fetch = Partition.handle, Partition.handle_fetch
    leader_and_isr, stop_replica = ReplicaOrders.leader_and_isr, ReplicaOrders.stop_replica
    load, append = Partition.__init__, PartitionLog.append

    acting: list[Partition] = []
    """Whose step it is; one replica's effect may be another's event."""

    def heard_step(state: ReplicaState, event: ev.Event) -> list[ev.Effect]:
        effects: list[ev.Effect] = step(state, event)
        listener.stepped(acting[-1], event, effects, refused=False)
        return effects

    def heard_step_fetch(state: ReplicaState, event: ev.FollowerFetched) -> tuple[Any, list[ev.Effect]]:
        answer, effects = step_fetch(state, event)
        listener.stepped(acting[-1], event, effects, refused=isinstance(answer, FetchRefused))
        return answer, effects

    def heard_order(self: ReplicaOrders, request: Any, obey: Any) -> Any:
        listener.ordered(request.controller_epoch)
        return obey(self, request)

    def acts(self: Partition, event: Any, act: Any) -> Any:
        acting.append(self)
        try:
            return act(self, event)
        finally:
            acting.pop()

    def heard_load(self: Partition, *args: Any, **named: Any) -> None:
        load(self, *args, **named)
        listener.replica_loaded(self)

    def heard_append(self: PartitionLog, batches: Sequence[tuple[BatchHeader, Buffer]]) -> None:
        append(self, batches)
        listener.appended(self, [header for header, _ in batches])

    patches: list[tuple[Any, str, Any]] = [
        (partition_module, "step", heard_step),
        (partition_module, "step_fetch", heard_step_fetch),
        (ReplicaOrders, "leader_and_isr", lambda self, request: heard_order(self, request, leader_and_isr)),
        (ReplicaOrders, "stop_replica", lambda self, request: heard_order(self, request, stop_replica)),
        (Partition, "handle", lambda self, event: acts(self, event, handle)),
        (Partition, "handle_fetch", lambda self, event: acts(self, event, handle_fetch)),
        (Partition, "__init__", heard_load),
        (PartitionLog, "append", heard_append),
        *_cuts(listener),
    ]
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in patches]
    try:
        for owner, name, patch in patches:
            setattr(owner, name, patch)
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


def _cuts(listener: ReplicaListener) -> list[tuple[Any, str, Any]]:
    """What tells of logs that are cut, as patches."""
    truncate_to, reset_to, trim_before = PartitionLog.truncate_to, PartitionLog.reset_to, PartitionLog.trim_before

    def heard_cut(log: PartitionLog, cut: Callable[[], None]) -> None:
        failed = True
        try:
            cut()
            failed = False
        finally:
            listener.cut(log, failed)

    def heard_truncate(self: PartitionLog, end_offset: int) -> None:
        heard_cut(self, lambda: truncate_to(self, end_offset))

    def heard_reset(self: PartitionLog, *told: Any, **named: Any) -> None:
        heard_cut(self, lambda: reset_to(self, *told, **named))

    def heard_trim(
        self: PartitionLog, offset: int, reason: LogStartReason = LogStartReason.COPIED, drops_all: bool = False
    ) -> None:
        if drops_all:
            heard_cut(self, lambda: trim_before(self, offset, reason, drops_all=True))
        else:
            trim_before(self, offset, reason)

    return [
        (PartitionLog, "truncate_to", heard_truncate),
        (PartitionLog, "reset_to", heard_reset),
        (PartitionLog, "trim_before", heard_trim),
    ]
