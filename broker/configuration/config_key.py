"""The part of a setting's definition that its type does not express: meaning, bounds, and where it may be overridden.

Owns: that description. Leaves to others: the settings (`config_table`), and where their values come from (`config`).
"""

import msgspec


class ConfigKey(msgspec.Struct, frozen=True, kw_only=True):
    """Description of one setting besides its name, type and default."""

    doc: str
    minimum: int | None = None
    maximum: int | None = None
    topic: str | None = None
    """Name under which a topic may override it; None: for brokers only."""
    is_secret: bool = False
    """Its value is never shown."""
    dynamic: bool = False
    """May be changed at runtime in /config/brokers/<id>."""
