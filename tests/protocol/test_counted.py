"""Numbers with their nouns, and lists of names."""

import pytest

from minibroker.protocol.counted import NAMES_SHOWN, counted, some_of


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "record", "0 records"),
        (1, "record", "1 record"),
        (2, "record", "2 records"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (3, "index", "3 indexes"),
        (2, "directory", "2 directories"),
    ],
)
def test_a_number_decides_between_singular_and_plural(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (1, "0"), (5, "0, 1, 2, 3, 4"), (6, "0, 1, 2, 3, 4 and 1 more"), (8, "0, 1, 2, 3, 4 and 3 more")],
)
def test_a_list_of_names_says_what_it_leaves_out(count: int, text: str) -> None:
    """Once partitions beyond the fifth were not mentioned at all."""
    assert NAMES_SHOWN == 5
    assert some_of(range(count)) == text


def test_sentences_in_a_list_are_parted_by_more_than_a_comma() -> None:
    assert some_of(["a, b", "c"], "; ") == "a, b; c"
