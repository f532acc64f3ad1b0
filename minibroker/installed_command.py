"""The entry point of the installed command `minibroker`; `python -m minibroker` is `__main__`."""

from minibroker.early_interrupts import end_quietly


def main() -> None:
    """Import the rest, and run the command that the arguments name."""
    end_quietly()
    from minibroker.__main__ import main as run

    run()
