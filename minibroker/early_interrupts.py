"""Ctrl-C while a program still imports its modules, which is most of the time of a short command.

Owns: that it ends the process at once, with the exit code of an interrupt and without a traceback. Leaves to others:
Ctrl-C from then on (`command_line`).
"""

import os
import signal

EXIT_INTERRUPTED = 130


def end_quietly() -> None:
    """From now on; unless Ctrl-C is ignored, as in what a shell starts in its background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Ctrl-C raises KeyboardInterrupt, as Python does by default."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(EXIT_INTERRUPTED)
