"""What fits a small terminal: `top` at 80x24, and narrower."""

import pytest

from minibroker.observation.replica_table import ReplicaTableRow
from minibroker.observation.top_screen import EVENT_LINES_MIN, screen

TITLE = "21:49:05  brokers 1, 2, 3  controller 1"
EVENT = (
    "21:49:01  broker 3 is dead: its connection was lost, 127.0.0.1:29094 refuses, broker 2 confirms (3 ms); its"
    " registration is removed"
)


def row(partition: str, broker: int, *, in_sync: bool = True) -> ReplicaTableRow:
    return ReplicaTableRow(
        partition=partition,
        broker=broker,
        role=("leader" if broker == 1 else "follower") if in_sync else "no answer",
        leader_epoch=12,
        log_start_offset=0,
        log_end_offset=1_596_241,
        high_watermark=1_596_241,
        lag=0,
        in_sync=in_sync,
        isr=[1, 2, 3],
    )


ROWS = [row(f"lines-{index}", broker, in_sync=broker != 3) for index in range(5) for broker in (1, 2, 3)]


def texts(rows: list[ReplicaTableRow], events: list[str], width: int, height: int) -> list[str]:
    return [line.text for line in screen(TITLE, rows, events, width, height)]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 24), (40, 10), (20, 5), (200, 60)])
@pytest.mark.parametrize("count", [0, 1, 12])
def test_nothing_is_larger_than_the_terminal(width: int, height: int, count: int) -> None:
    shown = texts(ROWS, [EVENT] * count, width, height)
    assert len(shown) <= height
    assert all(len(line) <= width for line in shown)


def test_fifteen_replicas_and_the_newest_events_fit_80_by_24() -> None:
    """Once events pushed each other and the last rows out."""
    shown = texts(ROWS, [EVENT] * 11 + ["21:50:00  the newest"], 80, 24)
    assert shown[-1] == "21:50:00  the newest"
    assert len([line for line in shown if line.startswith("lines-")]) == 15
    assert len(shown) == 24


def test_where_rows_do_not_fit_those_out_of_sync_stay() -> None:
    shown = texts([*ROWS, *(row(f"more-{index}", 1) for index in range(9))], [EVENT] * 5, 80, 24)
    listed = [line for line in shown if line.startswith(("lines-", "more-"))]
    assert len([line for line in listed if "no answer" in line]) == 5
    left_out = 24 - len(listed)
    assert shown[-EVENT_LINES_MIN - 1] == f"and {left_out} more replicas, all in sync: see them with -t TOPIC"


def test_a_narrow_terminal_loses_columns_and_no_partition_name() -> None:
    """Once `lines-0` was cut at 60 columns."""
    _, header, first, *_ = texts(ROWS, [], 60, 24)
    assert header.split() == ["PARTITION", "BROKER", "ROLE", "EPOCH", "LEO", "LAG", "ISR"]
    assert first.split() == ["lines-0", "1", "leader", "12", "1596241", "0", "1,2,3"]
    long = texts([row("a-topic-with-a-rather-long-name-1", 1)], [], 50, 24)[2]
    assert "-long-name-1  " in long
    assert long.startswith("…")
    narrow = texts(ROWS, [], 40, 24)[1]
    assert narrow.startswith("PARTITI… "), "a heading is cut at its end; once it was …RTITION"
