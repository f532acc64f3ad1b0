"""Settings: their sources, and the errors for wrong ones."""

import re
from pathlib import Path

import msgspec
import pytest

from minibroker.broker.configuration.config import (
    LOG_VARIABLES,
    RESERVED_VARIABLES,
    BrokerConfig,
    ConfigError,
    advertised_endpoints,
    describe,
    load_config,
    warnings,
)
from minibroker.broker.configuration.config_docs import page
from minibroker.broker.configuration.config_table import NEVER
from minibroker.broker.configuration.config_values import VALUE_LENGTH_MAX, BadValue, format_value, parse_value
from minibroker.broker.configuration.settings import SETTINGS, TOPIC_SETTINGS
from minibroker.broker.configuration.topic_config import TopicConfig, accepted_topic_value, resolve_topic_config
from minibroker.protocol.wire.message_types import LISTENERS_MAX
from tests.tidy.source import PACKAGES, ROOT, project_files

NEEDED = ["broker.id=1", "log.dirs=/data", "zookeeper.connect=localhost:2181"]


def load(*settings: str, file: str | None = None, environment: dict[str, str] | None = None) -> BrokerConfig:
    return load_config(file, [*NEEDED, *settings], environment or {})


def refusal(*settings: str, file: str | None = None, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        load(*settings, file=file, environment=environment)
    return str(error.value)


def test_an_ipv6_address_of_zookeeper_has_brackets() -> None:
    assert load("zookeeper.connect=[::1]:2181,host_1.example:2181").zookeeper_connect


def test_defaults_are_kafkas() -> None:
    config = load()
    assert config.replica_lag_time_max_ms == 30_000
    assert config.zookeeper_session_timeout_ms == 18_000
    assert config.log_segment_bytes == 2**30
    assert config.log_retention_bytes is None
    assert config.log_flush_interval_messages == NEVER
    assert config.unclean_leader_election_enable is False


def test_precedence_is_option_then_environment_then_file_then_default() -> None:
    file = "# a comment\n\nnum.partitions=2\nmin.insync.replicas = 2\nreplica.fetch.backoff.ms=7\n"
    environment = {"MINIBROKER_NUM_PARTITIONS": "3", "MINIBROKER_MIN_INSYNC_REPLICAS": "3", "PATH": "/bin"}
    config = load("num.partitions=4", file=file, environment=environment)
    assert (config.num_partitions, config.min_insync_replicas, config.replica_fetch_backoff_ms) == (4, 3, 7)
    assert config.source("num.partitions") == "--set num.partitions"
    assert config.source("min.insync.replicas") == "environment MINIBROKER_MIN_INSYNC_REPLICAS"
    assert config.source("replica.fetch.backoff.ms") == "file line 5"
    assert config.source("fetch.max.bytes") == "default"


def test_describe_lists_every_setting_with_value_and_source() -> None:
    lines = {line.name: line for line in describe(load("log.retention.bytes=5"))}
    assert list(lines) == list(SETTINGS)
    assert (lines["log.retention.bytes"].value, lines["log.retention.bytes"].source) == (
        "5",
        "--set log.retention.bytes",
    )
    assert lines["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert lines["delete.topic.enable"].value == "true"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("min.insync.replica=2", "Did you mean min.insync.replicas?"),
        ("segment.bytes=2000000", "log.segment.bytes"),
        ("log.retention.hours=1", "use log.retention.ms"),
        ("num.io.threads=8", "has no meaning here, leave it out: one event loop"),
        ("gibberish=1", "docs/CONFIGURATION.md"),
        ("min.insync.replicas", "expected key=value"),
        ("min.insync.replicas=two", "min.insync.replicas='two': expected a number from 1 to 100"),
        ("min.insync.replicas=0", "expected a number from 1 to 100"),
        ("min.insync.replicas=²", "expected a number"),
        ("broker.id=2147483648", "expected a number from 0 to 2147483647"),
        ("replica.fetch.wait.max.ms=2147483648", "expected a number from 0 to 2147483647"),
        ("log.retention.ms=-2", "expected a number from 0"),
        ("delete.topic.enable=yes", "expected true or false (--set delete.topic.enable)"),
        ("replica.truncation.rule=kip-101", "expected leader-epoch or high-watermark"),
        ("log.dirs=/a,/b", "expected exactly one directory"),
        ("zookeeper.connect=localhost", "'localhost' is not HOST:PORT"),
        ("zookeeper.connect=a:2181,b:2181/chroot", "is not HOST:PORT"),
        ("zookeeper.connect=1:2:3", "is not HOST:PORT"),
        ("zookeeper.connect=X://h:1", "is not HOST:PORT"),
        ("zookeeper.connect=::1:2181", "is not HOST:PORT"),
        ("zookeeper.digest.credentials=brokers", "a user and a password are needed"),
        ("zookeeper.digest.credentials=brokers:", "a user and a password are needed"),
        ("zookeeper.digest.credentials=:secret", "a user and a password are needed"),
        ("log.dirs=a\0b", "no name of a directory has a NUL"),
        ("listeners=", "expected at least one"),
        ("listeners=PLAINTEXT//x:1", "is not NAME://HOST:PORT"),
        ("listeners=plain://x:1", "capital letters"),
        ("advertised.listeners=PLAINTEXT://broker4..example:1", "labels of 1 to 63"),
        (f"advertised.listeners=PLAINTEXT://{'x' * 64}:1", "labels of 1 to 63"),
        ("advertised.listeners=PLAINTEXT://a b:1", "labels of 1 to 63"),
        ("listeners=A://x:1,A://x:2", "a listener name is used twice"),
        ("listeners=A://x:1,B://x:1", "an address is used twice"),
        ("listeners=A://0.0.0.0:1", "set advertised.listeners"),
        ("listeners=A://:1", "set advertised.listeners"),
        ("advertised.listeners=B://x:1", "B is not among listeners"),
        ("inter.broker.listener.name=B", "expected the name of an advertised listener"),
        ("listener.security.protocol.map=PLAINTEXT:SSL", "expected PLAINTEXT"),
        ("listener.security.protocol.map=PLAINTEXT", "is not NAME:PROTOCOL"),
        ("auto.create.topics.enable=true", "expected false"),
        ("metrics.listener=9404", "expected HOST:PORT"),
        ("metrics.listener=:9404", "expected HOST:PORT"),
        ("metrics.listener=::1:9404", "expected HOST:PORT"),
        ("replica.lag.time.max.ms=100", "replica.fetch.wait.max.ms=500 (default): expected at most"),
        ("message.max.bytes=16777216", "socket.request.max.bytes=16777216 (default), less 4096"),
        (
            "queued.max.request.bytes=65536",
            "expected at most queued.max.request.bytes=65536 (--set queued.max.request.bytes), less 25165824",
        ),
    ],
)
def test_wrong_setting_is_named_with_what_was_expected(setting: str, message: str) -> None:
    assert message in refusal(setting)


@pytest.mark.parametrize(
    ("setting", "lowest"),
    [
        ("listeners=A://h:{}", 0),
        ("advertised.listeners=PLAINTEXT://h:{}", 0),
        ("zookeeper.connect=h:{}", 1),
        ("zookeeper.connect=h:2181,[::1]:{}", 1),
        ("metrics.listener=h:{}", 0),
        ("metrics.listener=[::1]:{}", 0),
    ],
)
def test_each_port_is_one_that_tcp_has(setting: str, lowest: int) -> None:
    """0, where it is allowed: any free port. What is accepted here and refused later ends a broker in its start."""
    for port in (lowest, 65535):
        load(setting.format(port))
    for wrong in ("-1", "65536", "165535", "0000065536", "", "x", "²", *(["0"] if lowest else [])):
        assert "HOST:PORT" in refusal(setting.format(wrong)), wrong


def test_missing_setting_is_named_with_the_ways_to_give_it() -> None:
    with pytest.raises(ConfigError, match=r"broker\.id is not set.*MINIBROKER_BROKER_ID.*--set broker\.id"):
        load_config(None, NEEDED[1:], {})


def test_unknown_variable_is_refused_with_the_nearest_known() -> None:
    message = refusal(environment={"MINIBROKER_MIN_INSYNC_REPLICA": "2"})
    assert "Did you mean MINIBROKER_MIN_INSYNC_REPLICAS?" in message


@pytest.mark.parametrize("variable", RESERVED_VARIABLES)
def test_variables_of_the_command_line_are_not_settings(variable: str) -> None:
    value = LOG_VARIABLES.get(variable, ("anything",))[0]
    assert load(environment={variable: value}) == load()


def test_a_level_and_a_format_that_no_log_has_are_refused_with_the_choices() -> None:
    """Once a level was a traceback."""
    message = refusal(environment={"MINIBROKER_LOG_LEVEL": "LOUD"})
    assert message == "environment variable MINIBROKER_LOG_LEVEL is 'LOUD': give one of DEBUG, INFO, WARNING, ERROR"
    assert "is 'xml': give one of text, json" in refusal(environment={"MINIBROKER_LOG_FORMAT": "xml"})
    for level in ("", "debug"):
        assert load(environment={"MINIBROKER_LOG_LEVEL": level}) == load()


def test_a_line_that_is_not_a_setting_is_refused_with_its_number() -> None:
    assert "file line 2: 'broker.id 1' is not key=value" in refusal(file="\nbroker.id 1")


def test_setting_given_twice_in_the_file_is_refused() -> None:
    assert "num.partitions is given twice: file line 1 and file line 2" in refusal(
        file="num.partitions=1\nnum.partitions=2"
    )


def test_advertised_endpoints_are_the_listeners_with_their_real_ports() -> None:
    config = load("listeners=IN://127.0.0.1:0,OUT://[::1]:9999", "inter.broker.listener.name=OUT")
    endpoints = advertised_endpoints(config, {"IN": 4711, "OUT": 9999})
    assert [(e.listener, e.host, e.port) for e in endpoints] == [("IN", "127.0.0.1", 4711), ("OUT", "::1", 9999)]
    assert config.inter_broker_listener == "OUT"


def test_brokers_use_the_first_listener_unless_configured_otherwise() -> None:
    config = load("listeners=IN://127.0.0.1:0,OUT://127.0.0.1:9999")
    assert config.inter_broker_listener_name == config.inter_broker_listener == "IN"
    assert config.source("inter.broker.listener.name") == "default"


def test_an_empty_place_in_a_list_of_endpoints_is_passed_over() -> None:
    config = load("listeners=,PLAINTEXT://one:1,, OUTSIDE://two:2 ,")
    assert [(each.listener, each.port) for each in config.listeners] == [("PLAINTEXT", 1), ("OUTSIDE", 2)]


def test_advertised_listeners_win() -> None:
    config = load("listeners=IN://:0,OUT://:9", "advertised.listeners=IN://a:0,OUT://b:10")
    endpoints = advertised_endpoints(config, {"IN": 4711, "OUT": 9})
    assert [(e.listener, e.host, e.port) for e in endpoints] == [("IN", "a", 4711), ("OUT", "b", 10)]


def test_metrics_address() -> None:
    assert load().metrics_address is None
    assert load("metrics.listener=127.0.0.1:9404").metrics_address == ("127.0.0.1", 9404)
    assert load("metrics.listener=[::1]:9404").metrics_address == ("::1", 9404)


def test_dangerous_settings_warn() -> None:
    assert warnings(load("default.replication.factor=3", "min.insync.replicas=2")) == []
    message = " ".join(
        warnings(
            load(
                "replica.truncation.rule=high-watermark", "unclean.leader.election.enable=true", "min.insync.replicas=2"
            )
        )
    )
    assert "high-watermark loses" in message
    assert "unclean" in message
    assert "needs all its replicas" in message


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_survives_being_written_and_read(name: str) -> None:
    setting = SETTINGS[name]
    if setting.default is not msgspec.NODEFAULT:
        assert parse_value(setting, format_value(setting.default)) == setting.default


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_documented_and_every_number_bounded(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.key.doc.endswith(".")
    assert setting.section
    if setting.kind in (int, int | None):
        assert setting.key.minimum is not None
        assert setting.key.maximum is not None


# topics


def test_topic_without_overrides_has_its_brokers_settings() -> None:
    config = load(
        "min.insync.replicas=2", "log.segment.bytes=2048", "log.retention.ms=-1", "producer.id.expiration.ms=9"
    )
    topic = resolve_topic_config(config, {})
    assert (topic.min_insync_replicas, topic.segment_bytes, topic.retention_ms) == (2, 2048, None)
    assert topic.producer_id_expiration_ms == 9


def test_topic_overrides_win() -> None:
    topic = resolve_topic_config(load(), {"min.insync.replicas": "2", "retention.bytes": "10", "flush.messages": "1"})
    assert (topic.min_insync_replicas, topic.retention_bytes, topic.flush_messages) == (2, 10, 1)
    assert topic.counts_only_synced


def test_an_override_of_another_version_is_ignored() -> None:
    topic = resolve_topic_config(load(), {"min.insync.replicas": "many", "brand.new": "1"})
    assert topic == resolve_topic_config(load(), {})


def test_topic_config_has_exactly_the_topic_settings() -> None:
    fields = {name.replace(".", "_") for name in TOPIC_SETTINGS} | {"producer_id_expiration_ms"}
    assert set(TopicConfig.__struct_fields__) == fields


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("min.insync.replicas", "2", None),
        ("retention.ms", "-1", None),
        ("cleanup.policy", "delete", None),
        ("cleanup.policy", "compact", "cleanup.policy='compact': expected delete."),
        ("min.insync.replicas", "0", "expected a number from 1 to 100"),
        ("min.insync", "2", "Did you mean min.insync.replicas?"),
        ("num.partitions", "2", "is not a topic setting"),
    ],
)
def test_topic_setting_is_checked(name: str, value: str, message: str | None) -> None:
    if message is None:
        assert accepted_topic_value(name, value) == value
    else:
        with pytest.raises(BadValue, match=re.escape(message)) as refused:
            accepted_topic_value(name, value)
        assert isinstance(refused.value, LookupError) == ("topic setting" in message or "mean" in message)


def test_a_topic_setting_is_stored_as_its_value_is_written_and_no_longer() -> None:
    assert accepted_topic_value("retention.ms", " " * 32_000 + "007 ") == "7"
    assert accepted_topic_value("unclean.leader.election.enable", " TRUE") == "true"
    with pytest.raises(BadValue, match="expected at most 1000 characters, not 1001") as refused:
        accepted_topic_value("cleanup.policy", "x" * (VALUE_LENGTH_MAX + 1))
    assert len(str(refused.value)) < 400


# the document


def test_configuration_document_matches_the_tables() -> None:
    document = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"
    assert document.read_text() == page(), (
        "run: python -m minibroker.broker.configuration.config_docs > docs/CONFIGURATION.md"
    )


def test_every_setting_of_a_topic_is_used_somewhere() -> None:
    """By its name in the controller, or as a field in the broker."""
    root = Path(__file__).parents[2]
    named = sources_in(root / "controller")
    read = "".join(sources_in(root / "broker" / folder) for folder in ("log", "replicas", "replication", "requests"))
    read += (root / "broker" / "configuration" / "topic_config.py").read_text()
    unused = [name for name in TOPIC_SETTINGS if f'"{name}"' not in named and f".{name.replace('.', '_')}" not in read]
    assert unused == ["cleanup.policy"], "it has one value"


def sources_in(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.rglob("*.py")) if path.name != "config_table.py")


PROPERTIES = {"log_dirs": "log_dir", "metrics_listener": "metrics_address"}
"""Settings that are read through a property of BrokerConfig."""


def test_every_setting_is_used_somewhere() -> None:
    sources = sources_in(Path(__file__).parents[2] / "broker")
    ignored = [
        setting.name
        for setting in SETTINGS.values()
        if setting.key.topic is None and f".{PROPERTIES.get(setting.field, setting.field)}" not in sources
    ]
    assert ignored == []


def test_each_variable_of_the_product_is_a_setting_or_is_reserved() -> None:
    """A broker refuses any other, so a variable that only a command reads would keep all brokers from starting."""
    named = {
        variable
        for file in project_files("minibroker", *PACKAGES)
        for variable in re.findall(r'"(MINIBROKER_[A-Z_]*[A-Z])"', (ROOT / file.path).read_text())
    }
    settings = {f"MINIBROKER_{name.upper().replace('.', '_')}" for name in SETTINGS}
    assert "MINIBROKER_CACHE_DIR" in named
    assert named <= settings | RESERVED_VARIABLES.keys()


def test_each_reserved_variable_has_a_reader() -> None:
    """docs/CONFIGURATION.md listed a port for the health check of the Docker image, and nothing read it."""
    table = "broker/configuration/config.py"
    sources = [(ROOT / file.path).read_text() for file in project_files("minibroker", *PACKAGES) if file.path != table]
    assert [name for name in RESERVED_VARIABLES if not any(f'"{name}"' in source for source in sources)] == []


@pytest.mark.parametrize("name", ["zookeeper.digest.credentials", "log.dirs", "listener.security.protocol.map"])
def test_a_value_that_is_no_utf8_is_refused(name: str) -> None:
    """So bytes of another encoding in the environment are read. The credentials ended the process as a bug, and no
    answer could carry the others. The value is not shown: it may be a secret."""
    assert refusal(f"{name}=a\udcff:PLAINTEXT") == f"{name}: its value is not UTF-8 (--set {name})"


def test_there_are_at_most_as_many_listeners_as_a_registration_may_name() -> None:
    """With one more the broker started, and no controller could read its registration."""
    for name in ("listeners", "advertised.listeners"):
        endpoints = [f"L{number}://127.0.0.1:{9_000 + number}" for number in range(LISTENERS_MAX + 1)]
        enough = f"listeners={','.join(endpoints[:-1])}"
        load(enough, f"{name}={','.join(endpoints[:-1])}")
        assert f"at most {LISTENERS_MAX}" in refusal(enough, f"{name}={','.join(endpoints)}")
