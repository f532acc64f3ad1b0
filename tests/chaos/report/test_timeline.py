"""What a fault did is computed from acknowledgements and from changes of the ISR."""

from __future__ import annotations

from typing import Any

from minibroker.chaos.report.cluster_note import ClusterNote
from minibroker.chaos.report.timeline import Operation, full_isr_after, gaps_of, leaderships, seconds_of


def acknowledged(*at_s: float) -> list[Operation]:
    return [Operation("a-0", str(at), at - 0.01, at, "ok", number) for number, at in enumerate(at_s)]


def changed(at_s: float, isr: list[int], event: str = "leadership_changed") -> ClusterNote:
    fields: dict[str, Any] = {"leader": 1, "leader_epoch": 0, "isr": isr, "after": isr}
    return ClusterNote(at_s, 1, event, "", "a-0", fields)


def test_the_longest_gap_that_touches_the_fault_counts() -> None:
    gap_s, key = gaps_of(acknowledged(0, 5, 6, 9, 20), 5.5, 10)
    assert (gap_s, key) == (11, "a-0")
    assert gaps_of(acknowledged(0, 5, 6, 7), 5.5, 10) == (1, "a-0")
    assert gaps_of([], 0, 10) == (0.0, None)
    assert gaps_of(acknowledged(0, 20, 21), 18, 25) == (2, "a-0"), "18 s of it were those of the fault before"


def test_a_full_isr_counts_from_its_last_return() -> None:
    states = leaderships([changed(0, [1, 2, 3]), changed(5, [1, 2]), changed(8, [1, 2, 3], "isr_changed")])
    assert full_isr_after(states, 4, 20, 3) == 8
    assert full_isr_after(states, 9, 20, 3) == 9
    assert full_isr_after(states, 4, 7, 3) is None


def test_a_second_without_an_acknowledgement_is_there_too() -> None:
    seconds = seconds_of(acknowledged(0.5, 2.5), 3.0)
    assert [each.acknowledged for each in seconds] == [1, 0, 1, 0]
    assert seconds[1].p50_ms is None
