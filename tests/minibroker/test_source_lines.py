"""Which lines and functions count: those that do something when the program runs."""

from minibroker.swarm_coverage.source_lines import FOLDERS, read_source, read_sources

TEXT = '''"""A module."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import never


class Port(Protocol):
    """Only a form."""

    def call(self) -> int:
        """Nothing runs here."""
        ...


class Clock:
    limit = 3

    def read(self, numbers: list[int]) -> list[int]:
        """Numbers below the limit."""
        return sorted(
            (each for each in numbers if each < self.limit),
            key=lambda each: -each,
        )

    async def wait(self) -> None:
        async def inner() -> None:
            print("inner")

        await inner()
'''


def test_functions_are_named_by_class_and_own_their_lambdas_and_comprehensions() -> None:
    source = read_source("client/clock.py", TEXT)
    assert {each.name: sorted(each.lines) for each in source.functions} == {
        "Clock.read": [22, 23, 24],
        "Clock.wait": [28, 31],
        "Clock.wait.<locals>.inner": [29],
    }


def test_what_never_runs_does_not_count() -> None:
    lines = read_source("client/clock.py", TEXT).lines
    assert not lines & {6, 13, 14}
    assert {1, 3, 5, 9, 17, 18, 20, 27} <= lines


def test_every_module_of_the_four_folders_is_read() -> None:
    paths = [each.path for each in read_sources()]
    assert {path.partition("/")[0] for path in paths} == {*FOLDERS}
    assert "broker/replication/leader.py" in paths
    assert len(paths) == len({*paths})
