"""This broker's own requests to the controller: to move its leaderships before a stop, or its failing replicas.

Owns: ControlledShutdown in its two forms and their retries. Leaves to others: how the controller moves leaders.
Source: replication rules, section 9; hardening rule 13.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from minibroker.protocol.counted import counted, some_of
from minibroker.protocol.events.broker_events import HandoverUnfinished
from minibroker.protocol.ids import TopicPartition, to_wire
from minibroker.protocol.wire.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    TopicPartitions,
    grouped_by_topic,
)
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.request_channel import RequestChannel, RequestFailed

log = logging.getLogger("minibroker.controller_link")

CONNECT_TIMEOUT_MS = 2_000
REPORT_RETRY_MS = 200
"""Pause between attempts to report failing replicas to the controller: each lost second is a second of refused
writes."""
HEALING_REPORTS = 2
"""The controller also learns of a failure from refused LeaderAndIsr requests: a refusal may be in flight when the disk
recovers, or may have arrived although no report did. So recovery is always reported, and again after a pause, also
while other replicas stay offline."""


class ControllerLink:
    """Reports offline replicas to the controller, and asks it to take over leaderships before a stop."""

    def __init__(
        self,
        *,
        dialer: BrokerDialer,
        broker_id: int,
        broker_epoch: Callable[[], int | None],
        controller_address: Callable[[], tuple[int, str, int] | None],
        offline_partitions: Callable[[], list[TopicPartition]],
        leads: Callable[[TopicPartition], bool],
        request_timeout_ms: int,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._dialer = dialer
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controller_address = controller_address
        self._offline_partitions = offline_partitions
        self._leads = leads
        self._request_timeout_ms = request_timeout_ms
        self._observer = observer
        self._changed = asyncio.Event()
        self._reported: tuple[int | None, tuple[TopicPartition, ...]] = (None, ())
        self._offline_before: frozenset[TopicPartition] = frozenset()
        self._failures = 0
        self._unreported: dict[TopicPartition, int] = {}
        """Replicas that failed since the last report. Even if they recovered, they need a new epoch to get a role
        again. A replica that leads has got one: a late report would only depose it."""
        self._recovered: set[TopicPartition] = set()
        """Replicas that recovered since the last report. One that has failed again since is left out of one report: a
        damaged one that had begun its repair waits for a new epoch, and a controller that takes it for offline all the
        time begins none."""
        self._healing_reports_due = 0
        self._reports_sent = 0

    def replicas_changed(self) -> None:
        """A log directory failed or recovered: report to the controller."""
        offline = self._offline_partitions()
        self._failures += 1
        self._recovered |= self._offline_before.difference(offline)
        self._unreported.update({each: self._failures for each in offline if each not in self._offline_before})
        if not offline or not self._offline_before.issubset(offline):
            self._healing_reports_due = HEALING_REPORTS
        self._offline_before = frozenset(offline)
        self._changed.set()

    def replicas_recovered(self) -> None:
        """Replicas may be used again, also those whose logs could not be created: the controller knows of these by
        refused orders alone, and no report has named them."""
        self._healing_reports_due = HEALING_REPORTS
        self.replicas_changed()

    def registered(self) -> None:
        """After a new registration, the controller does not know which replicas are still offline."""
        self._changed.set()

    async def run(self) -> None:
        """Report each change until the controller has received it, forever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            is_reported = await self._report()
            if not is_reported or self._unreported or self._healing_reports_due:
                await asyncio.sleep(REPORT_RETRY_MS / 1000)
                self._changed.set()

    async def _report(self) -> bool:
        self._unreported = {each: at for each, at in self._unreported.items() if not self._leads(each)}
        failed = self._offline_partitions()
        recovered = set(self._recovered)
        failed_again = recovered.intersection(failed, self._reported[1])
        unreported = {each: at for each, at in self._unreported.items() if each not in failed_again}
        offline = tuple(sorted({*failed, *unreported} - failed_again))
        epoch = self._broker_epoch()
        if epoch is None:
            return False
        is_known = not self._healing_reports_due and (not offline or (epoch, offline) == self._reported)
        # What is unreported and was known before may have had a role from another controller meanwhile.
        if is_known and not unreported and not failed_again:
            return True
        due = self._healing_reports_due
        self._reports_sent += 1
        response = await self._ask(grouped_by_topic(offline), self._reports_sent)
        if response is None:
            return False
        self._recovered -= recovered
        is_repeated = self._reported == (epoch, offline)
        self._reported = (epoch, offline)
        self._unreported = {each: at for each, at in self._unreported.items() if unreported.get(each) != at}
        if due and not unreported and not failed_again and self._healing_reports_due == due:
            self._healing_reports_due -= 1
        if not is_repeated:
            log.info("reported %d offline replicas to the controller", len(offline))
        return not failed_again

    async def shut_down(self, attempts: int, pause_ms: int) -> bool:
        """Hand all leaderships over before stopping; False if some stay (their failover then waits for the end of the
        session)."""
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(pause_ms / 1000)
            response = await self._ask(None)
            if response is None:
                continue
            if not response.remaining_partitions:
                return True
            remaining = [f"{t.topic_name}-{p}" for t in response.remaining_partitions for p in t.partitions]
            reason = f"no other replica can lead {some_of(remaining)}"
            self._observer.notify(HandoverUnfinished(reason=reason))
            return False
        self._observer.notify(HandoverUnfinished(reason=f"no controller took them in {counted(attempts, 'attempt')}"))
        return False

    async def _ask(
        self, offline: list[TopicPartitions] | None, report_number: int = 0
    ) -> ControlledShutdownResponse | None:
        address = self._controller_address()
        if address is None:
            return None
        broker_id, host, port = address
        client_id = f"broker-{self._broker_id}"
        dial = partial(
            self._dialer.connect, broker_id, (host, port), client_id=client_id, timeout_ms=CONNECT_TIMEOUT_MS
        )
        request = ControlledShutdownRequest(
            broker_id=self._broker_id,
            broker_epoch=to_wire(self._broker_epoch()),
            offline_partitions=offline,
            report_number=report_number,
        )
        try:
            with RequestChannel(dial) as channel:
                return await channel.ask(request, ControlledShutdownResponse, self._request_timeout_ms)
        except RequestFailed as error:
            log.info("controller %d: %s", broker_id, error)
            return None
