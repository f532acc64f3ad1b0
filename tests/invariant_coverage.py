"""`make invariants`: which of the invariants I1 to I44 have a test, from the marker `invariant` on the tests."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import defaultdict

import pytest

INVARIANTS = {
    "I1": "the leader is in the ISR",
    "I2": "below a leader's high watermark, its own ISR view is equal (WeakIsr)",
    "I3": "below a leader's high watermark, ZooKeeper's ISR is equal (StrongIsr)",
    "I4": "every ISR member's log end is at or above the leader's high watermark",
    "I5": "only positions reported under its own epoch raise a leader's high watermark",
    "I6": "the ISR grows only by a replica in this epoch, at the high watermark and the epoch's start",
    "I7": "a follower appends only where its log below equals the leader's",
    "I8": "an ISR change applies iff its version fits; one proposal in flight",
    "I9": "field ranges; ISR not empty and within the assignment",
    "I10": "log start <= high watermark <= log end; checkpoints within; recovery point <= log end",
    "I11": "a leader's high watermark never falls in one epoch; log start never falls but on truncation",
    "I12": "offsets are dense, batch epochs never fall, segments follow one another",
    "I13": "the epoch history rises strictly and agrees with every batch",
    "I14": "no segment above the high watermark is deleted; log start <= high watermark",
    "I15": "indexes and producer snapshots rebuilt from the log equal the stored ones",
    "I16": "same (offset, epoch) in two replicas: same bytes there and below",
    "I17": "an (offset, epoch) is written by exactly one broker",
    "I18": "at most one leader per (partition, epoch), one controller per controller epoch",
    "I19": "what was committed is in every later leader",
    "I20": "after quiescence all in-sync replicas are byte-equal and HW = LEO",
    "I21": "a record acknowledged with acks=all stays at that offset for ever",
    "I22": "what a consumer has read never changes or goes back silently",
    "I23": "an acknowledged offset is readable; ListOffsets(latest) never falls",
    "I24": "acks=all succeeds only above min ISR; a refused produce appends nothing",
    "I25": "per producer, sequences are contiguous and without duplicates",
    "I26": "no success for a record that was not appended",
    "I27": "leader epoch, version and controller epoch never fall; a new leader raises the epoch",
    "I28": "a clean election picks a live ISR member; an unclean one leaves ISR = {leader}",
    "I29": "no broker acts on a lower controller, broker, leader or partition epoch",
    "I30": "writes of a controller from a former epoch fail",
    "I31": "a restarted replica never joins the ISR by a fetch from before",
    "I32": "a follower never truncates below its high watermark or what is committed",
    "I33": "a non-leader has no ISR, no remote state, and refuses produce",
    "I34": "no proposed ISR holds an unassigned, dead or leaving broker",
    "I35": "after a delete: no fetcher, no waiter, directory renamed; stale StopReplica does nothing",
    "I36": "a live caught-up replica rejoins; the high watermark reaches the log end",
    "I37": "a dead follower leaves the ISR; a live ISR member is elected; waiters end in time",
    "I38": "after a stale reply the partition heals without a restart",
    "I39": "no replica starts behind its leader's log start, and none has deleted what its leader has not",
    "I40": "a damaged log is given up outside of the ISR only",
    "I41": "an answer holds the asked offset as it was written; a copy is what the leader wrote",
    "I42": "an offline leader hands over in bounded time if another member could lead",
    "I43": "a log start is at or below what retention allows",
    "I44": "while no disk is faulty, no log is reported as damaged",
}


class Collector:
    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for name in {name for marker in item.iter_markers("invariant") for name in marker.args}:
                self.tests[name].append(item.nodeid)


def main() -> int:
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        outcome = pytest.main(["--collect-only", "-qq", "tests"], plugins=[collector])
    if outcome not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue(), file=sys.stderr)
        return 1
    for name, text in INVARIANTS.items():
        tests = collector.tests[name]
        files = sorted({test.split("::")[0].removeprefix("tests/") for test in tests})
        print(f"{name:4} {len(tests) or '-':>4}  {text}" + (f"\n           {', '.join(files)}" if files else ""))
    without = [name for name in INVARIANTS if not collector.tests[name]]
    print(f"\n{len(INVARIANTS) - len(without)} of {len(INVARIANTS)} invariants have a test")
    if without:
        print(f"without: {' '.join(without)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
