"""The promise in docs/OPERATIONS.md, from simulation.swarm.promise: `python -m tests.docs.promise_table` renews it."""

from pathlib import Path

from minibroker.simulation.swarm.promise import render_promise

PAGE = Path(__file__).parents[2] / "docs" / "OPERATIONS.md"
BEGIN = "<!-- made by python -m tests.docs.promise_table: begin -->\n"
END = "<!-- end -->\n"


def page_with_table() -> str:
    """The whole page with the table as the code has it now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, marker, after = rest.partition(END)
    assert marker, f"{PAGE} has no markers for the promise"
    return f"{before}{BEGIN}\n{render_promise()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
