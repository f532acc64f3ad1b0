"""What the core's effects on a log mean: the one interpreter, for every shell of the core.

Owns: the operation that each of these effects is, and the event that reports it to the core. Leaves to others: the log,
which each shell has behind a `LogPort`, and all other effects, which each shell performs in its own way. The shells are
`partition.Partition`, that of the small model (`simulation/model/replica.py`), and those of the tests, each with a list
for a log.

An effect that reports does so before the next effect is performed: the core decided the next one in the knowledge of
that report. The interpreter is a table of functions and no base class, so that a batch costs no further call.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import FOLLOWER, ReplicaState


class LogPort(Protocol):
    """One replica's log as the effects need it, and the way back to the core."""

    @property
    def state(self) -> ReplicaState: ...
    @property
    def first_offset(self) -> int:
        """Where the stored batches begin; not above the log start."""
        ...

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...

    def now_ms(self) -> int: ...
    def decide(self, event: ev.ReplicaEvent) -> None:
        """Let the core decide, then perform its effects."""
        ...

    def append_batches(self, effect: ev.AppendBatches) -> int | None:
        """Stamp the batches, and write all of them or none. Returns the log end. None: the log failed, the core knows,
        and the producers have their answer."""
        ...

    def appended(self) -> None:
        """The core knows of the new batches; followers may fetch them."""
        ...

    def append_fetched(self, effect: ev.AppendFetched) -> None: ...
    def truncate_to(self, effect: ev.TruncateTo) -> None: ...
    def reset_to(self, effect: ev.ResetTo) -> None: ...
    def trim_before(self, effect: ev.TrimBefore) -> None: ...
    def lower_start(self, effect: ev.LowerStart) -> int:
        """As far as the stored batches reach. Returns the new log start."""
        ...

    def write_epoch_history(self, entries: Sequence[tuple[int, int]]) -> None: ...


def _append_batches(port: LogPort, effect: ev.AppendBatches) -> None:
    end_offset = port.append_batches(effect)
    if end_offset is not None:
        port.decide(
            ev.BatchesAppended(
                tokens=effect.tokens,
                acks=effect.acks,
                base_offset=effect.base_offset,
                end_offset=end_offset,
                now_ms=port.now_ms(),
            )
        )
        port.appended()


def _append_fetched(port: LogPort, effect: ev.AppendFetched) -> None:
    if port.state.role is not FOLLOWER:
        return  # the effect before this one has reported a cut, failed then, and taken the replica offline
    port.append_fetched(effect)
    port.decide(
        ev.FetchedAppended(
            batches=effect.batches,
            high_watermark=effect.high_watermark,
            log_start_offset=effect.log_start_offset,
            low_watermark=effect.low_watermark,
        )
    )


def _truncate_to(port: LogPort, effect: ev.TruncateTo) -> None:
    port.truncate_to(effect)
    _report_truncation(port)


def _reset_to(port: LogPort, effect: ev.ResetTo) -> None:
    port.reset_to(effect)
    _report_truncation(port)


def _report_truncation(port: LogPort) -> None:
    """What is left may be less than the core asked for: a cut inside a batch drops the whole batch."""
    port.decide(ev.TailTruncated(log_start_offset=port.log_start_offset, log_end_offset=port.log_end_offset))


def _trim_before(port: LogPort, effect: ev.TrimBefore) -> None:
    before = port.first_offset
    port.trim_before(effect)
    if port.first_offset > before:
        port.decide(ev.HeadDeleted(first_offset=port.first_offset))


def _lower_start(port: LogPort, effect: ev.LowerStart) -> None:
    start = port.lower_start(effect)
    port.decide(ev.StartLowered(wanted=effect.log_start_offset, log_start_offset=start))


def _write_epoch_history(port: LogPort, effect: ev.WriteEpochHistory) -> None:
    """As it is now: an effect before this one may have reported a cut."""
    port.write_epoch_history(port.state.epoch_history.entries)


LOG_EFFECTS: Mapping[type[ev.ReplicaEffect], Callable[[LogPort, Any], None]] = {
    ev.AppendBatches: _append_batches,
    ev.AppendFetched: _append_fetched,
    ev.TruncateTo: _truncate_to,
    ev.ResetTo: _reset_to,
    ev.TrimBefore: _trim_before,
    ev.LowerStart: _lower_start,
    ev.WriteEpochHistory: _write_epoch_history,
}
"""For each effect on the log: what performs it on a `LogPort`."""
