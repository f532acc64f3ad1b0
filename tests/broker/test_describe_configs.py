"""DescribeConfigs: value, source and meaning of each setting."""

from minibroker.broker.configuration.config import load_config
from minibroker.broker.configuration.dynamic_config import apply_overrides
from minibroker.broker.configuration.settings import SETTINGS, TOPIC_SETTINGS
from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.requests.describe_configs import answer_describe_configs
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
    DescribedConfig,
    ResourceType,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)

STATIC = load_config(
    None, ["broker.id=1", "log.dirs=/d", "zookeeper.connect=zk:2181", "min.insync.replicas=2", "log.retention.bytes=7"]
)
DYNAMIC = {"log.retention.bytes": "8"}
CONFIG, _ = apply_overrides(STATIC, DYNAMIC, "ZooKeeper")


def image() -> MetadataImage:
    image = MetadataImage(1, "cluster")
    partition = UpdateMetadataPartition(
        partition_index=0, controller_epoch=1, leader=1, leader_epoch=0, isr=[1], partition_epoch=0, replicas=[1]
    )
    topic = UpdateMetadataTopic(
        topic_name="lines",
        topic_id="id",
        configs={"segment.bytes": " 4096", "flush.messages": "not understood"},
        partition_states=[partition],
    )
    image.apply_update(
        UpdateMetadataRequest(controller_id=1, controller_epoch=1, broker_epoch=1, topic_states=[topic]), 1
    )
    return image


def describe(resource_type: int, name: str, keys: list[str] | None = None) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(resource_type=resource_type, resource_name=name, configuration_keys=keys)
    answer = answer_describe_configs(DescribeConfigsRequest(resources=[resource]), CONFIG, DYNAMIC, image())
    [result] = answer.results
    return result


def by_name(result: DescribeConfigsResult) -> dict[str, DescribedConfig]:
    return {config.name: config for config in result.configs}


def test_topic_shows_its_own_settings_over_its_brokers() -> None:
    found = by_name(describe(ResourceType.TOPIC, "lines"))
    assert set(found) == set(TOPIC_SETTINGS)
    shown = {name: (config.value, config.config_source) for name, config in found.items()}
    assert shown["segment.bytes"] == ("4096", ConfigSource.DYNAMIC_TOPIC)
    assert shown["min.insync.replicas"] == ("2", ConfigSource.STATIC_BROKER)
    assert shown["retention.bytes"] == ("8", ConfigSource.DYNAMIC_BROKER)
    assert shown["segment.ms"] == ("604800000", ConfigSource.DEFAULT)
    assert shown["flush.messages"] == ("9223372036854775807", ConfigSource.DEFAULT)
    assert not any(config.read_only for config in found.values())


def test_sources_and_resources_have_kafkas_numbers() -> None:
    """Programs that describe settings of both compare them."""
    assert {each.name: each.value for each in ConfigSource} == {
        "DYNAMIC_TOPIC": 1,
        "DYNAMIC_BROKER": 2,
        "STATIC_BROKER": 4,
        "DEFAULT": 5,
    }
    assert {each.name: each.value for each in ResourceType} == {"TOPIC": 2, "BROKER": 4}


def test_broker_shows_all_its_settings_with_their_meaning() -> None:
    found = by_name(describe(ResourceType.BROKER, "1"))
    assert set(found) == set(SETTINGS)
    assert found["broker.id"].read_only
    assert not found["min.insync.replicas"].read_only
    assert found["log.retention.bytes"].config_source == ConfigSource.DYNAMIC_BROKER
    assert all(config.documentation for config in found.values())


def test_only_what_is_asked_for_is_shown() -> None:
    assert list(by_name(describe(ResourceType.TOPIC, "lines", ["segment.ms", "unknown"]))) == ["segment.ms"]


def test_unknown_resources_are_refused_one_by_one() -> None:
    assert describe(ResourceType.TOPIC, "other").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(ResourceType.BROKER, "2").error_code == ErrorCode.INVALID_REQUEST
    assert describe(99, "x").error_code == ErrorCode.INVALID_REQUEST
