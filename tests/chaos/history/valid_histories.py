"""Random histories that a correct cluster could show: hypothesis draws them.

Owns: a tiny log whose clients send, are acknowledged late, fail, never learn the outcome, poll, seek and crash, in any
interleaving, until a last reader has read everything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from minibroker.chaos.history.client_history import Answered, EventLog, HistoryEvent, Polled, Sent
from minibroker.chaos.history.promise import Promise

KEYS = ("a-0", "a-1")
PRODUCERS = ("one", "two")
READERS = ("early", "late")
PROMISE = Promise(in_order=frozenset(PRODUCERS), knows_all_sends=True)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "append", "acknowledge", "fail", "forget", "poll", "seek", "elect"]),
        st.integers(0, 7),
        st.integers(1, 4),
    ),
    min_size=8,
    max_size=60,
)


@dataclass
class _Open:
    operation: int
    process: str
    key: str
    value: str
    offset: int | None = None


@dataclass
class _World:
    log: EventLog = field(default_factory=EventLog)
    records: dict[str, list[tuple[str, int]]] = field(default_factory=lambda: {key: [] for key in KEYS})
    open: list[_Open] = field(default_factory=list)
    position: dict[tuple[str, str], int] = field(default_factory=dict)
    answered: dict[tuple[str, str], int] = field(default_factory=dict)
    epoch: int = 0
    now: float = 0.0
    sent: int = 0

    def step(self, what: str, which: int, size: int) -> None:
        self.now += 0.001 * size
        getattr(self, what)(which, size)

    def send(self, which: int, size: int) -> None:
        process, key = PRODUCERS[which % 2], KEYS[which // 2 % 2]
        value = f"{process}/{self.sent}"
        self.sent += 1
        operation = self.log.invoke(self.now, process, "send", (Sent(key, value),))
        self.open.append(_Open(operation, process, key, value))

    def append(self, which: int, size: int) -> None:
        """The oldest open send of a producer and partition that is not in the log yet: in order."""
        waiting = [each for each in self.open if each.offset is None]
        if waiting:
            chosen = waiting[which % len(waiting)]
            first = next(e for e in waiting if (e.process, e.key) == (chosen.process, chosen.key))
            first.offset = len(self.records[first.key])
            self.records[first.key].append((first.value, self.epoch))

    def acknowledge(self, which: int, size: int) -> None:
        self._complete([each for each in self.open if each.offset is not None], which, "ok")

    def fail(self, which: int, size: int) -> None:
        self._complete([each for each in self.open if each.offset is None], which, "fail")

    def forget(self, which: int, size: int) -> None:
        """The client never learns it: the record may be in the log, or come into it later."""
        self._complete([each for each in self.open if each.offset is not None], which, "info")

    def _complete(self, possible: list[_Open], which: int, kind: Any) -> None:
        if possible:
            done = possible[which % len(possible)]
            self.open.remove(done)
            offset = done.offset if kind == "ok" else None
            self.log.complete(self.now, done.operation, kind, sent=(Sent(done.key, done.value, offset),), error=None)

    def poll(self, which: int, size: int) -> None:
        self.read(READERS[which % 2], size)

    def read(self, reader: str, size: int) -> None:
        operation = self.log.invoke(self.now, reader, "poll")
        polled: list[Polled] = []
        answers: list[Answered] = []
        for key in KEYS:
            at = self.position.get((reader, key), 0)
            some = self.records[key][at : at + size]
            polled += [Polled(key, value, at + n, epoch) for n, (value, epoch) in enumerate(some)]
            self.position[reader, key] = at + len(some)
            answers.append(self.answer(reader, key, at, at + len(some)))
        self.log.complete(self.now, operation, "ok", polled=tuple(polled), answers=tuple(answers))

    def answer(self, reader: str, key: str, start: int, end: int) -> Answered:
        """A leader knows little of what is committed when its epoch begins."""
        is_new = self.answered.get((reader, key)) != self.epoch
        self.answered[reader, key] = self.epoch
        mark = end if is_new else len(self.records[key])
        return Answered(key, mark, self.epoch % 3, self.epoch, end if end > start else None)

    def seek(self, which: int, size: int) -> None:
        reader, key = READERS[which % 2], KEYS[which // 2 % 2]
        self.position[reader, key] = max(0, self.position.get((reader, key), 0) - size)
        operation = self.log.invoke(self.now, reader, "assign")
        self.log.complete(self.now, operation, "ok")

    def elect(self, which: int, size: int) -> None:
        self.epoch += 1

    def finish(self) -> None:
        for _ in range(len(self.open)):
            self.append(0, 1)
        for each in tuple(self.open):
            self._complete([each], 0, "ok" if each.offset is not None and each.offset % 3 else "info")
        while any(self.position.get(("last", key), 0) < len(self.records[key]) for key in KEYS):
            self.read("last", 5)


@st.composite
def valid_histories(draw: st.DrawFn) -> list[HistoryEvent]:
    """A history without any anomaly."""
    world = _World()
    for what, which, size in draw(STEPS):
        world.step(what, which, size)
    world.finish()
    return world.log.events
