"""docs/EVENTS.md is what the catalogue says."""

from tests.docs.events_page import PAGE, made


def test_the_page_of_events_is_the_catalogue() -> None:
    assert PAGE.read_text() == made(), "run: python -m tests.docs.events_page"
