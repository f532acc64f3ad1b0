"""kcat's forms of a starting point."""

import pytest

from minibroker.records.starting_point import BadStartingPoint, StartingPoint, StartKind, parse_range, parse_start


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


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("17", "17", None),
        ("17:20", "17", "20"),
        (":20", "beginning", "20"),
        ("-20:-5", "-20", "-5"),
        ("5:", "5", "end"),
        ("@2023-11-14T22:13", "@2023-11-14T22:13", None),
        ("@2023-11-14T22:13:@2023-11-14T22:14", "@2023-11-14T22:13", "@2023-11-14T22:14"),
        ("5:@1700000000123", "5", "@1700000000123"),
    ],
)
def test_ranges_are_parsed_although_times_have_colons(text: str, begin: str, end: str | None) -> None:
    assert parse_range(text) == (parse_start(begin), None if end is None else parse_start(end))


@pytest.mark.parametrize("text", ["", "a:5", "5:b", "1:2:3", "8:5", "-2:-5", "@2:@1"])
def test_invalid_ranges_are_refused(text: str) -> None:
    with pytest.raises(BadStartingPoint):
        parse_range(text)


def test_a_range_with_too_many_colons_is_named_as_it_was_typed() -> None:
    """Once '1:2' was told to be no offset."""
    with pytest.raises(BadStartingPoint, match=r"^'1:2:3' has more than one colon: give FROM or FROM:TO"):
        parse_range("1:2:3")


@pytest.mark.parametrize(
    ("text", "date"), [("@2027", "2027-01-01"), ("@2020-01-01:@2027", "2027-01-01"), ("@20270131", "2027-01-31")]
)
def test_a_date_in_digits_alone_is_not_taken_for_milliseconds(text: str, date: str) -> None:
    """`@2027` was two seconds after the beginning of 1970, so everything was read."""
    with pytest.raises(BadStartingPoint, match=f"is a date or milliseconds: give @{date}, or @02027"):
        parse_range(text)


def test_digits_of_no_day_are_not_answered_with_that_day() -> None:
    """The cure was @2027-02-30, which is refused, too."""
    with pytest.raises(BadStartingPoint, match=r"^'@20270230' is no day: give .*, or @020270230 for milliseconds$"):
        parse_range("@20270230")


def test_seconds_are_not_taken_for_milliseconds() -> None:
    """`@$(date +%s)` is in January 1970 then, so everything was read."""
    with pytest.raises(BadStartingPoint, match=r"is seconds or milliseconds: give @1795903168000, or @01795903168 for"):
        parse_range("@1795903168")
    assert parse_start("@01795903168") == StartingPoint(StartKind.TIME, 1795903168)


def test_a_time_that_no_record_can_have_is_no_time() -> None:
    """The client refused it in the words of its own parameter, and with another exit code."""
    with pytest.raises(BadStartingPoint, match=r"^'9223372036854775808' is not a time"):
        parse_start("@9223372036854775808")
    assert parse_start("@9223372036854775807") == StartingPoint(StartKind.TIME, 2**63 - 1)


def test_milliseconds_that_look_like_a_date_are_written_with_a_zero() -> None:
    assert parse_start("@02027") == StartingPoint(StartKind.TIME, 2027)
    assert parse_start("@3027") == StartingPoint(StartKind.TIME, 3027)
