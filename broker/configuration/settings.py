"""The rows of the table of settings (`config_table`), by name.

Owns: what a row says of its setting, the sections, and which settings a topic may override. Leaves to others: the
values.
"""

import typing
from typing import Annotated, Any

import msgspec

from minibroker.broker.configuration.config_key import ConfigKey
from minibroker.broker.configuration.config_table import BrokerConfig

SECTIONS = {
    "broker_id": "Identity and addresses",
    "num_partitions": "Topics",
    "replica_lag_time_max_ms": "Replication",
    "log_segment_bytes": "Logs",
    "socket_request_max_bytes": "Connections and requests",
    "controlled_shutdown_enable": "Shutdown and balance",
    "metrics_listener": "Metrics",
}
"""Headings of the table, by the first field under each."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    """Dotted, as in a configuration file."""
    field: str
    """Name of the field in BrokerConfig."""
    kind: Any
    """The type of the field."""
    default: Any
    """msgspec.NODEFAULT: it must be given."""
    key: ConfigKey
    section: str


def _read_table() -> dict[str, Setting]:
    hints = typing.get_type_hints(BrokerConfig, include_extras=True)
    table: dict[str, Setting] = {}
    section = ""
    for field in msgspec.structs.fields(BrokerConfig):
        section = SECTIONS.get(field.name, section)
        if typing.get_origin(hints[field.name]) is not Annotated:
            continue
        kind, key = typing.get_args(hints[field.name])
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        name = field.name.replace("_", ".")
        table[name] = Setting(name=name, field=field.name, kind=kind, default=default, key=key, section=section)
    return table


SETTINGS: dict[str, Setting] = _read_table()
"""Every setting by its dotted name, in the order of the struct."""

TOPIC_SETTINGS: dict[str, Setting] = {
    setting.key.topic: setting for setting in SETTINGS.values() if setting.key.topic is not None
}
"""Settings that a topic may override, by the name they have for topics."""
