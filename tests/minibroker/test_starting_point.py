"""kcat's forms of a starting point."""

import pytest

from minibroker.records.starting_point import BadStartingPoint, StartingPoint, StartKind, parse_start


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("beginning", StartingPoint(StartKind.BEGINNING)),
        ("end", StartingPoint(StartKind.END)),
        ("17", StartingPoint(StartKind.OFFSET, 17)),
        ("-17", StartingPoint(StartKind.BEFORE_END, 17)),
        ("@1700000000123", StartingPoint(StartKind.TIME, 1_700_000_000_123)),
        ("@2023-11-14T22:13:20.5+00:00", StartingPoint(StartKind.TIME, 1_700_000_000_500)),
        ("@2023-11-14T22:13:20Z", StartingPoint(StartKind.TIME, 1_700_000_000_000)),
    ],
)
def test_valid_starting_points_are_parsed(text: str, point: StartingPoint) -> None:
    assert parse_start(text) == point


@pytest.mark.parametrize(
    "text", ["", "middle", "--1", "1e3", "@", "@yesterday", "9" * 20, "٣", "@0001-01-01", "@" + "9" * 5000]
)
def test_invalid_starting_points_are_refused(text: str) -> None:
    with pytest.raises(BadStartingPoint):
        parse_start(text)
