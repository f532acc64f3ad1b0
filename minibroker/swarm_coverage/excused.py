"""What no swarm has to enter, with the reason of each."""

import msgspec


class Excuse(msgspec.Struct, frozen=True, kw_only=True):
    """One reason, and what it covers."""

    reason: str
    names: tuple[str, ...]
    """As a report has them; `*` stands for any text."""


EXCUSED: tuple[Excuse, ...] = ()
