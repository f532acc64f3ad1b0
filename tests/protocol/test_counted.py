"""Numbers with their nouns."""

import pytest

from minibroker.protocol.counted import counted


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
