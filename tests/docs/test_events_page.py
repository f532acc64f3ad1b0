"""docs/EVENTS.md lists the events of the catalogue."""

from tests.docs.events_page import PAGE, made


def test_events_of_the_page_are_those_of_the_catalogue() -> None:
    assert PAGE.read_text() == made(), "run: python -m tests.docs.events_page"
