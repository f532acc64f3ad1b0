"""The settings of one topic: its own overrides, and the broker's settings for the rest.

Owns: how overrides and the broker's settings become one effective set, and whether an override is allowed. Leaves to
others: where overrides are stored (`/config/topics/<t>`) and which peers may change them. docs/QUESTIONS.md lists the
steps that add a setting.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from minibroker.broker.configuration.config_table import NEVER, BrokerConfig
from minibroker.broker.configuration.config_values import BadValue, NotChangeable, canonical_value, parse_value
from minibroker.broker.configuration.settings import TOPIC_SETTINGS
from minibroker.broker.log.config import LogConfig
from minibroker.protocol.similar_names import similar_name


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Effective settings of one topic. Names are the topic's own; None means no limit. The defaults are the broker's
    settings (`config_table`)."""

    min_insync_replicas: int
    unclean_leader_election_enable: bool
    max_message_bytes: int
    segment_bytes: int
    segment_ms: int
    retention_ms: int | None
    retention_bytes: int | None
    cleanup_policy: str
    index_interval_bytes: int
    segment_index_bytes: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    producer_id_expiration_ms: int
    """The broker's setting; a topic cannot override it."""

    @property
    def counts_only_synced(self) -> bool:
        """Whether only what survives power loss counts for the high watermark, not all that is written (hardening rule
        2)."""
        return self.flush_messages < NEVER or self.flush_ms < NEVER


def resolve_topic_config(broker_config: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """The effective settings. An override that is not understood is skipped: it was checked when it was set, and a
    broker of another version must still open the log."""
    values: dict[str, Any] = {"producer_id_expiration_ms": broker_config.producer_id_expiration_ms}
    for name, setting in TOPIC_SETTINGS.items():
        value = getattr(broker_config, setting.field)
        if name in overrides:
            try:
                value = parse_value(setting, overrides[name])
            except BadValue:
                pass
        values[name.replace(".", "_")] = value
    return TopicConfig(**values)


def accepted_topic_value(name: str, value: str) -> str:
    """The value as it is stored; raises BadValue with why a topic cannot have this setting, as a sentence."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        near = similar_name(name, TOPIC_SETTINGS)
        hint = f" Did you mean {near}?" if near else f" There are: {', '.join(TOPIC_SETTINGS)}."
        raise NotChangeable(f"{name!r:.200} is not a topic setting.{hint}")
    try:
        return canonical_value(setting, value)
    except BadValue as problem:
        raise BadValue(f"{name}={value.strip()!r:.200}: {problem}.") from None


def log_config(topic_config: TopicConfig) -> LogConfig:
    """The part of a topic's settings that its log needs."""
    wanted = {name: getattr(topic_config, name) for name in LogConfig.__struct_fields__}
    return msgspec.convert(wanted, LogConfig)
