"""What the type of a setting does not say: its meaning, its bounds, and who may override it.

Owns: that description. Leaves to others: the settings (`config_table`), and where their values come from (`config`).
"""

import msgspec


class ConfigKey(msgspec.Struct, frozen=True, kw_only=True):
    """What the type of a setting does not say."""

    doc: str
    minimum: int | None = None
    maximum: int | None = None
    topic: str | None = None
    """Name under which a topic may override it; None: the broker's only."""
    is_secret: bool = False
    """Its value is never shown."""
    dynamic: bool = False
    """May be changed at runtime in /config/brokers/<id>."""
