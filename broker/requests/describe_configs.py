"""Answers DescribeConfigs: each setting with its value, source and meaning. Pure.

Owns: how settings are shown. Leaves to others: where they are stored.
"""

from collections.abc import Iterable, Mapping

from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.configuration.config_values import BadValue, format_value, parse_value
from minibroker.broker.configuration.settings import SETTINGS, TOPIC_SETTINGS, Setting
from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    ResourceType,
)


def answer_describe_configs(
    request: DescribeConfigsRequest,
    config: BrokerConfig,
    dynamic_overrides: Mapping[str, str],
    image: MetadataImage,
) -> DescribeConfigsResponse:
    """`config`: the effective settings; `dynamic_overrides`: the part of them that came from /config/brokers."""
    return DescribeConfigsResponse(
        results=[_describe(resource, config, dynamic_overrides, image) for resource in request.resources]
    )


def _describe(
    resource: DescribeConfigsResource, config: BrokerConfig, dynamic: Mapping[str, str], image: MetadataImage
) -> DescribeConfigsResult:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        if name not in image.topics:
            return _refused(resource, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} is not known")
        found = _topic_configs(image.topic_configs(name), config, dynamic)
    elif resource.resource_type == ResourceType.BROKER:
        if name != str(config.broker_id):
            problem = f"this is broker {config.broker_id}: ask broker {name!r} for its settings"
            return _refused(resource, ErrorCode.INVALID_REQUEST, problem)
        found = [
            _described(name, setting, format_value(getattr(config, setting.field)), _source(setting, config, dynamic))
            for name, setting in SETTINGS.items()
        ]
    else:
        problem = f"resource type {resource.resource_type}: expected 2 (topic) or 4 (broker)"
        return _refused(resource, ErrorCode.INVALID_REQUEST, problem)
    keys = resource.configuration_keys
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=name,
        configs=[each for each in found if keys is None or each.name in keys],
    )


def _topic_configs(
    overrides: Mapping[str, str], config: BrokerConfig, dynamic: Mapping[str, str]
) -> Iterable[DescribedConfig]:
    for name, setting in TOPIC_SETTINGS.items():
        if name in overrides and _is_understood(setting, overrides[name]):
            value = format_value(parse_value(setting, overrides[name]))
            yield _described(name, setting, value, ConfigSource.DYNAMIC_TOPIC, read_only=False)
        else:
            value = format_value(getattr(config, setting.field))
            yield _described(name, setting, value, _source(setting, config, dynamic), read_only=False)


def _is_understood(setting: Setting, text: str) -> bool:
    try:
        parse_value(setting, text)
    except BadValue:
        return False
    return True


def _source(setting: Setting, config: BrokerConfig, dynamic: Mapping[str, str]) -> ConfigSource:
    if setting.name in dynamic:
        return ConfigSource.DYNAMIC_BROKER
    return ConfigSource.STATIC_BROKER if setting.name in config.sources else ConfigSource.DEFAULT


def _described(
    name: str, setting: Setting, value: str, source: ConfigSource, read_only: bool | None = None
) -> DescribedConfig:
    is_sensitive = setting.key.is_secret
    return DescribedConfig(
        name=name,
        value=None if is_sensitive else value,
        read_only=not setting.key.dynamic if read_only is None else read_only,
        config_source=source,
        is_sensitive=is_sensitive,
        documentation=setting.key.doc,
    )


def _refused(resource: DescribeConfigsResource, code: ErrorCode, message: str) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
