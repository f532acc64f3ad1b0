"""The stage that a script runs on: its verbs, and `step`, which shows the result.

Owns: the verbs that simulated and real brokers share, waiting for what a script expects, and the steps. Leaves to
others: how a verb is done, which differs between the simulated and the live stage.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from minibroker.broker.replication.state import TruncationRule
from minibroker.scenarios.staging.rows import Expected, ReplicaRow, changed_cells, problems_of, shortened
from minibroker.scenarios.staging.scenario import Setup

Acks: TypeAlias = Literal["all", 0, 1]

EXPECTED_WITHIN_SECONDS = 60.0
"""Of the stage's own time, for one step."""


class ScenarioFailed(Exception):
    """The scenario deviated from its script. One sentence."""


class ScenarioStep(msgspec.Struct, frozen=True, kw_only=True):
    """One slide."""

    number: int
    sentence: str
    notes: tuple[str, ...]
    """Results of producers and consumers, and relevant log lines of brokers, since the last step."""
    rows: tuple[ReplicaRow, ...]
    changed: tuple[tuple[str, int], ...]
    """(broker, column) of the cells that are new."""
    reference: str
    """Leader, epoch and ISR according to ZooKeeper; empty where they are unknown."""
    at_seconds: float
    """Since the beginning of the variant, in the stage's own time."""


StepListener: TypeAlias = Callable[[ScenarioStep], None]


class SentBatch:
    """Records in one batch, and the producer's result once there is one."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = tuple(values)
        self.offset: int | None = None
        """Of the first, once acknowledged."""
        self.error: str | None = None
        """The error's name, once it failed for good."""

    @property
    def name(self) -> str:
        return self.values[0] if len(self.values) == 1 else f"{self.values[0]}..{self.values[-1]}"

    @property
    def is_settled(self) -> bool:
        return self.offset is not None or self.error is not None


class Stage(ABC):
    """One variant being played. Brokers are named by letter."""

    notes_broker_logs = False
    """Whether relevant log lines of brokers become notes."""
    settle_seconds: float
    """By then messages in flight have arrived, unless they are held."""
    poll_seconds: float

    def __init__(self, setup: Setup, rule: TruncationRule, listener: StepListener) -> None:
        self.setup = setup
        self.rule = rule
        self.steps: list[ScenarioStep] = []
        self._listener = listener
        self._notes: list[str] = []

    @property
    def by_epoch(self) -> bool:
        """Followers truncate their logs by the leader epoch, the correct rule."""
        return self.rule is TruncationRule.LEADER_EPOCH

    # -------------------------------------------------------------------------------------------------------- steps
    async def step(self, sentence: str, within_seconds: float = EXPECTED_WITHIN_SECONDS, **rows: Expected) -> None:
        """Wait until the rows are as expected, then show them all. Raises ScenarioFailed, after showing them."""
        problems = await self._problems(rows, within_seconds)
        found = tuple(await self.look())
        before = self.steps[-1].rows if self.steps else ()
        notes, self._notes = tuple(self._notes), []
        step = ScenarioStep(
            number=len(self.steps) + 1,
            sentence=sentence,
            notes=notes,
            rows=found,
            changed=tuple(sorted(changed_cells(before, found))),
            reference=await self.reference(),
            at_seconds=round(self.now(), 3),
        )
        self.steps.append(step)
        self._listener(step)
        if problems:
            raise ScenarioFailed("; ".join(problems))

    async def until(self, within_seconds: float = EXPECTED_WITHIN_SECONDS, **rows: Expected) -> None:
        """Wait until the rows are as expected, without showing them. Raises ScenarioFailed."""
        problems = await self._problems(rows, within_seconds)
        if problems:
            raise ScenarioFailed("; ".join(problems))

    async def _problems(self, rows: dict[str, Expected], within_seconds: float) -> list[str]:
        await self.wait(self.settle_seconds)
        deadline = self.now() + within_seconds
        while True:
            problems = problems_of(await self.look(), rows)
            if not problems or self.now() >= deadline:
                return problems
            await self.wait(self.poll_seconds)

    async def imagine_read(self, broker: str) -> None:
        """What a consumer would read there if it could: everything below that broker's HW."""
        row = next(row for row in await self.look() if row.broker == broker)
        seen = row.records[: (row.high_watermark or 0) - row.log_start_offset]
        self.note(f"an imagined read at {broker}: {shortened(seen) or 'nothing'}")

    def note(self, text: str) -> None:
        """A line under the next step's sentence; repetitions are dropped."""
        if text not in self._notes:
            self._notes.append(text)

    def check(self, what: str, holds: bool) -> None:
        """Check something that the table does not show. Raises ScenarioFailed."""
        if not holds:
            raise ScenarioFailed(f"it did not hold that {what}")

    def check_noted(self, note: str) -> None:
        """Check that the last step had this note, if this stage notes broker logs at all. Raises ScenarioFailed."""
        if self.notes_broker_logs and not any(each.startswith(note) for each in self.steps[-1].notes):
            raise ScenarioFailed(f"no note says: {note}")

    # ------------------------------------------------------------------------------------------------------- verbs
    @abstractmethod
    def now(self) -> float:
        """Seconds since the variant began."""

    @abstractmethod
    async def wait(self, seconds: float) -> None:
        """Let this much time pass."""

    def patience(self, seconds: float) -> float:
        """How long to wait where only a long time makes the point: virtual time costs nothing."""
        return seconds

    @abstractmethod
    async def checkpointed(self) -> None:
        """Wait until every broker has checkpointed its high watermarks, from which a restart begins."""

    @abstractmethod
    async def look(self) -> list[ReplicaRow]:
        """A row for each replica."""

    @abstractmethod
    async def reference(self) -> str:
        """Leader, epoch and ISR according to ZooKeeper."""

    @abstractmethod
    async def produce(self, *values: str, acks: Acks = "all", quietly: bool = False) -> SentBatch:
        """Give one batch to the producer. The result becomes a note (`quietly`: only a failure), and `settled` waits
        for it."""

    @abstractmethod
    async def new_producer(self, acks: Acks) -> None:
        """From now on another producer sends the records with these acks, with fresh metadata."""

    async def write(self, *values: str, acks: Acks = "all", batch_records: int = 1) -> None:
        """Produce batch after batch, each acknowledged before the next. Raises ScenarioFailed."""
        many = len(values) > batch_records
        for first in range(0, len(values), batch_records):
            batch = values[first : first + batch_records]
            sending = await self.settled(await self.produce(*batch, acks=acks, quietly=many))
            if sending.error is not None:
                raise ScenarioFailed(f"{sending.name} was not acknowledged: {sending.error}")
        if many:
            self.note(f"producer: {values[0]}..{values[-1]} acknowledged (acks={acks})")

    @abstractmethod
    async def settled(self, sending: SentBatch, within_seconds: float = EXPECTED_WITHIN_SECONDS) -> SentBatch:
        """Wait for the producer's final result. Raises ScenarioFailed."""

    @abstractmethod
    async def read(self) -> list[str]:
        """All records that a consumer reads, from the beginning to the high watermark."""

    @abstractmethod
    async def hold(self, source: str, target: str) -> None:
        """Hold all traffic from one broker to another; requests and replies wait, and none is lost."""

    @abstractmethod
    async def release(self, source: str, target: str) -> None:
        """End the hold: what waited arrives."""

    @abstractmethod
    async def kill(self, *brokers: str) -> None:
        """SIGKILL, all at once: written data stays."""

    @abstractmethod
    async def cut_power(self, *brokers: str) -> None:
        """Power loss, all at once: only synced data stays."""

    @abstractmethod
    async def start(self, *brokers: str) -> None:
        """Start them again with their disks."""

    @abstractmethod
    async def pause(self, broker: str) -> None:
        """SIGSTOP."""

    @abstractmethod
    async def resume(self, broker: str) -> None:
        """SIGCONT."""

    @abstractmethod
    async def expire_session(self, broker: str) -> None:
        """ZooKeeper ends the broker's session; the broker learns of it as usual."""

    @abstractmethod
    async def stop_zookeeper(self) -> None:
        """It answers no request."""

    @abstractmethod
    async def start_zookeeper(self) -> None:
        """It answers again, with all its data."""
