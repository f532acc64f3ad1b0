"""The end of a producer whose name a later process has.

Owns: the errors of its records, and of each later call. Leaves to others: how it is noticed (`sender`).
"""

from minibroker.client.errors import MinibrokerError, ProducerFenced
from minibroker.client.producer.accumulator import Accumulator
from minibroker.protocol.errors import ErrorCode


class Fence:
    """Of one producer. Open until `end`."""

    def __init__(self, accumulator: Accumulator, producer_name: str | None) -> None:
        self._accumulator = accumulator
        self._name = producer_name
        self._reason: MinibrokerError | None = None

    @property
    def has_ended(self) -> bool:
        return self._reason is not None

    def check(self) -> None:
        """Raises ProducerFenced once the producer has ended."""
        if self._reason is not None:
            raise self._error(maybe_written=False)

    def end(self, reason: MinibrokerError) -> bool:
        """Give every record without outcome its error; False if the producer had ended before."""
        if self._reason is not None:
            return False
        self._reason = reason
        for queue in self._accumulator.active_queues():
            for batch in queue.unfinished():
                if batch.packed is None:
                    batch.record_count = batch.builder.record_count
                self._accumulator.expire(batch, self._error(maybe_written=batch.maybe_written or batch.in_flight))
        return True

    def _error(self, *, maybe_written: bool) -> ProducerFenced:
        """A new one each time: an error that is raised twice collects the traces of both."""
        text = f"a later process has started as producer {self._name!r}, so this one writes nothing more"
        error = ProducerFenced(ErrorCode.INVALID_PRODUCER_EPOCH, message=f"{text}; first noticed by: {self._reason}")
        error.maybe_written = maybe_written
        return error
