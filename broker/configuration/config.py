"""Where settings come from (file, environment, command line), and whether they fit together.

Owns: precedence (--set over environment over file over default), the error for a wrong name or value, and the rules
between settings. Leaves to others: which settings exist (`config_table`).

A wrong setting prevents the start: a broker that runs with a misread file is worse than one that does not run. Every
error names the setting, the value, what was expected and where the value came from.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from minibroker.broker.configuration.config_key import ConfigKey
from minibroker.broker.configuration.config_table import MIB, BrokerConfig
from minibroker.broker.configuration.config_values import ANY_HOST, BadValue, expected, format_value, parse_value
from minibroker.broker.configuration.settings import SETTINGS, TOPIC_SETTINGS, Setting
from minibroker.protocol.similar_names import similar_name
from minibroker.protocol.wire.message_types import LISTENERS_MAX
from minibroker.protocol.wire.messages import BrokerEndpoint
from minibroker.protocol.znodes import parse_endpoint

__all__ = [
    "ANY_HOST",
    "RESERVED_VARIABLES",
    "BrokerConfig",
    "ConfigError",
    "ConfigKey",
    "DescribedSetting",
    "advertised_endpoints",
    "broken_rule",
    "describe",
    "load_config",
    "warnings",
]

HIDDEN = "[hidden]"
"""Shown instead of the value of a secret."""
ENVIRONMENT_PREFIX = "MINIBROKER_"

RESERVED_VARIABLES: dict[str, str] = {
    "MINIBROKER_BOOTSTRAP_SERVERS": "command line: what -b defaults to, HOST:PORT,HOST:PORT",
    "MINIBROKER_DATA_DIR": "command line: what --data-dir of `cluster` defaults to",
    "MINIBROKER_CONFIG": "command line: what --config of `broker` defaults to",
    "MINIBROKER_CACHE_DIR": "command line: the folder of `zookeeper install`, else ~/.cache/minibroker",
    "MINIBROKER_LOG_LEVEL": "every broker: DEBUG, INFO, WARNING or ERROR",
    "MINIBROKER_LOG_FORMAT": "every broker: text, or json (one object per line, see EVENTS.md)",
}
"""Variables with the prefix of settings that are not settings: a broker ignores them."""

LOG_VARIABLES = {
    "MINIBROKER_LOG_LEVEL": ("DEBUG", "INFO", "WARNING", "ERROR"),
    "MINIBROKER_LOG_FORMAT": ("text", "json"),
}
"""What those two may be, in upper or lower case."""

RETIRED_NAMES = {
    "log.retention.hours": "log.retention.ms",
    "log.retention.minutes": "log.retention.ms",
    "log.roll.hours": "log.roll.ms",
    "log.dir": "log.dirs",
    "host.name": "listeners",
    "port": "listeners",
    "advertised.host.name": "advertised.listeners",
    "advertised.port": "advertised.listeners",
    "security.inter.broker.protocol": "inter.broker.listener.name",
}
"""Kafka's alternative names of settings that have one name here."""


NEEDLESS_NAMES = {
    "num.network.threads": "one event loop serves all connections",
    "num.io.threads": "one event loop serves all connections",
    "background.threads": "disk work off the event loop has one bounded pool",
    "queued.max.requests": "queued.max.request.bytes limits waiting requests",
    "num.replica.fetchers": "one connection to each leader carries all partitions",
    "num.recovery.threads.per.data.dir": "logs are recovered one after another, at the speed of the disk",
    "log.flush.scheduler.interval.ms": "a sync that log.flush.interval.ms asks for begins at once",
    "log.flush.start.offset.checkpoint.interval.ms": "log.flush.offset.checkpoint.interval.ms applies to both",
    "log.initial.task.delay.ms": "retention and checkpoints keep their intervals from the start on",
    "log.retention.check.interval.minutes": "use log.retention.check.interval.ms",
    "log.cleaner.enable": "there is no compaction",
    "controller.socket.timeout.ms": "request.timeout.ms also applies to the controller's requests",
    "producer.id.expiration.check.interval.ms": "expired producer ids are removed every ten minutes, or "
    "twice in producer.id.expiration.ms where that is sooner",
    "offsets.topic.replication.factor": "there are no consumer groups",
    "transaction.state.log.replication.factor": "there are no transactions",
    "broker.rack": "replicas are placed without regard to racks",
}
"""Kafka's settings that are not needed here, and why."""


class ConfigError(Exception):
    """A setting with which a broker cannot start."""


class DescribedSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting with its value and source."""

    name: str
    value: str
    source: str
    doc: str


def load_config(
    file_text: str | None = None,
    settings: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    file_name: str = "file",
) -> BrokerConfig:
    """Settings of `key=value` lines, overridden by the environment, overridden by `settings`; raises ConfigError."""
    texts: dict[str, tuple[str, str]] = {}
    texts.update(_read_file(file_text or "", file_name))
    texts.update(_read_environment(environment or {}))
    texts.update(_read_options(settings))
    values = {SETTINGS[name].field: _parse(SETTINGS[name], text, source) for name, (text, source) in texts.items()}
    for setting in SETTINGS.values():
        if setting.default is msgspec.NODEFAULT and setting.field not in values:
            raise ConfigError(
                f"{setting.name} is not set: {setting.key.doc} Give it in the file, as {_variable(setting.name)},"
                f" or with --set {setting.name}=.."
            )
    config = BrokerConfig(**values, sources={name: source for name, (_, source) in texts.items()})
    if config.listeners and not config.inter_broker_listener_name:
        config = msgspec.structs.replace(config, inter_broker_listener_name=config.listeners[0].listener)
    problem = broken_rule(config)
    if problem is not None:
        raise ConfigError(problem)
    return config


def broken_rule(config: BrokerConfig) -> str | None:
    """The first violated rule between settings, as a sentence; None if all hold."""
    return next((problem for rule in RULES if (problem := rule(config)) is not None), None)


def describe(config: BrokerConfig) -> list[DescribedSetting]:
    """Every setting with its value and source, in the order of the table."""
    return [
        DescribedSetting(
            name=setting.name,
            value=HIDDEN if setting.key.is_secret and setting.name in config.sources else _shown(config, setting),
            source=config.source(setting.name),
            doc=setting.key.doc,
        )
        for setting in SETTINGS.values()
    ]


def _shown(config: BrokerConfig, setting: Setting) -> str:
    return format_value(getattr(config, setting.field))


# ------------------------------------------------------------------------------------------------------- sources
Texts = dict[str, tuple[str, str]]
"""Value and source, by the setting's name."""


def _read_file(text: str, file_name: str) -> Texts:
    texts: Texts = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not line or line.startswith(("#", "!")):
            continue
        source = f"{file_name} line {number}"
        name, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"{source}: {line!r:.200} is not key=value")
        name = _checked_name(name.strip(), source)
        if name in texts:
            raise ConfigError(f"{name} is given twice: {texts[name][1]} and {source}")
        texts[name] = (value, source)
    return texts


def _read_environment(environment: Mapping[str, str]) -> Texts:
    texts: Texts = {}
    for variable in sorted(environment):
        choices = LOG_VARIABLES.get(variable, ())
        if choices and environment[variable].lower() not in ("", *map(str.lower, choices)):
            raise ConfigError(
                f"environment variable {variable} is {environment[variable]!r:.200}: give one of {', '.join(choices)}"
            )
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in RESERVED_VARIABLES:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
        if name not in SETTINGS:
            near = similar_name(variable, [*map(_variable, SETTINGS), *RESERVED_VARIABLES])
            hint = f" Did you mean {near}?" if near else ""
            raise ConfigError(f"environment variable {variable} does not name a setting.{hint}")
        texts[name] = (environment[variable], f"environment {variable}")
    return texts


def _read_options(settings: Sequence[str]) -> Texts:
    texts: Texts = {}
    for option in settings:
        name, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(f"--set {option!r:.200}: expected key=value")
        name = _checked_name(name.strip(), "--set")
        texts[name] = (value, f"--set {name}")
    return texts


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper().replace(".", "_")


def _checked_name(name: str, source: str) -> str:
    if name in SETTINGS:
        return name
    if name in RETIRED_NAMES:
        raise ConfigError(f"{source}: {name} is not known here: use {RETIRED_NAMES[name]}")
    if name in NEEDLESS_NAMES:
        raise ConfigError(f"{source}: {name} has no meaning here, leave it out: {NEEDLESS_NAMES[name]}")
    if name in TOPIC_SETTINGS:
        raise ConfigError(
            f"{source}: {name} is a setting of topics; what a broker gives to topics without it is"
            f" {TOPIC_SETTINGS[name].name}"
        )
    near = similar_name(name, SETTINGS)
    hint = f" Did you mean {near}?" if near else " docs/CONFIGURATION.md lists what there is."
    raise ConfigError(f"{source}: {name!r:.200} is not a broker setting.{hint}")


def _parse(setting: Setting, text: str, source: str) -> Any:
    try:
        text.encode()  # ZooKeeper, answers and events carry UTF-8 only
    except UnicodeEncodeError:
        raise ConfigError(f"{setting.name}: its value is not UTF-8 ({source})") from None
    try:
        return parse_value(setting, text)
    except BadValue as problem:
        raise ConfigError(f"{setting.name}={text.strip()!r:.200}: {problem} ({source})") from None


# --------------------------------------------------------------------------------------------- rules between them
def _place(config: BrokerConfig, name: str) -> str:
    return f"{name}={format_value(getattr(config, SETTINGS[name].field))} ({config.source(name)})"


def _one_directory(config: BrokerConfig) -> str | None:
    if len(config.log_dirs) != 1:
        return f"{_place(config, 'log.dirs')}: expected exactly one directory"
    if "\0" in config.log_dir:
        return f"{_place(config, 'log.dirs')!r:.200}: no name of a directory has a NUL character"
    return None


def _zookeeper_servers(config: BrokerConfig) -> str | None:
    for server in config.zookeeper_connect.split(","):
        found = parse_endpoint(f"ZOOKEEPER://{server.strip()}")
        if found is None or found[2] == 0:
            return f"{_place(config, 'zookeeper.connect')}: {server!r:.200} is not HOST:PORT"
    return None


def _listeners(config: BrokerConfig) -> str | None:
    if not config.listeners:
        return f"{_place(config, 'listeners')}: expected at least one NAME://HOST:PORT"
    for name in ("listeners", "advertised.listeners"):
        endpoints: tuple[BrokerEndpoint, ...] = getattr(config, SETTINGS[name].field)
        names = [endpoint.listener for endpoint in endpoints]
        if len(set(names)) != len(names):
            return f"{_place(config, name)}: a listener name is used twice"
        if len(names) > LISTENERS_MAX:
            return f"{_place(config, name)}: expected at most {LISTENERS_MAX} endpoints, not {len(names)}"
    ports = [(endpoint.host, endpoint.port) for endpoint in config.listeners if endpoint.port]
    if len(set(ports)) != len(ports):
        return f"{_place(config, 'listeners')}: an address is used twice"
    return None


def _advertised(config: BrokerConfig) -> str | None:
    bound = {endpoint.listener for endpoint in config.listeners}
    for endpoint in config.advertised_listeners:
        if endpoint.listener not in bound:
            return f"{_place(config, 'advertised.listeners')}: {endpoint.listener} is not among listeners"
    for endpoint in _advertised_listeners(config):
        if endpoint.host in (ANY_HOST, "::"):
            return (
                f"{endpoint.listener}://{endpoint.host} is not an address that a client can connect to: set"
                f" advertised.listeners to what clients of that listener reach, as in"
                f" {endpoint.listener}://localhost:{endpoint.port}"
            )
    if config.inter_broker_listener not in {endpoint.listener for endpoint in _advertised_listeners(config)}:
        return f"{_place(config, 'inter.broker.listener.name')}: expected the name of an advertised listener"
    return None


def _advertised_listeners(config: BrokerConfig) -> tuple[BrokerEndpoint, ...]:
    return config.advertised_listeners or config.listeners


def _only_plaintext(config: BrokerConfig) -> str | None:
    for name, protocol in config.listener_security_protocol_map.items():
        if protocol != "PLAINTEXT":
            return f"{_place(config, 'listener.security.protocol.map')}: {name}:{protocol}: expected PLAINTEXT"
    return None


def _no_auto_create(config: BrokerConfig) -> str | None:
    if not config.auto_create_topics_enable:
        return None
    return (
        f"{_place(config, 'auto.create.topics.enable')}: expected false: create topics with `minibroker topic create`"
    )


def _metrics_address(config: BrokerConfig) -> str | None:
    if not config.metrics_listener or parse_endpoint(f"METRICS://{config.metrics_listener}") is not None:
        return None
    return f"{_place(config, 'metrics.listener')}: expected HOST:PORT, as in 127.0.0.1:9404, or nothing"


def _at_most(smaller: str, larger: str, margin: int = 0, why: str = "") -> Callable[[BrokerConfig], str | None]:
    def check(config: BrokerConfig) -> str | None:
        low, high = (getattr(config, SETTINGS[name].field) for name in (smaller, larger))
        if low + margin <= high:
            return None
        more = f", less {margin} for {why}" if margin else ""
        return f"{_place(config, smaller)}: expected at most {_place(config, larger)}{more}"

    return check


FRAME_OVERHEAD_BYTES = 4096
"""Size of a produce request beyond its one batch: names of the topic, client and fields."""
BROKER_RESERVE_BYTES = 24 * MIB
"""Part of queued.max.request.bytes for other brokers alone, so that replication survives a flood of clients."""


def _digest_credentials(config: BrokerConfig) -> str | None:
    user, colon, password = config.zookeeper_digest_credentials.partition(":")
    if config.zookeeper_digest_credentials and not (user and colon and password):
        return "zookeeper.digest.credentials: a user and a password are needed, as in brokers:a-long-password"
    return None


RULES: tuple[Callable[[BrokerConfig], str | None], ...] = (
    _one_directory,
    _zookeeper_servers,
    _digest_credentials,
    _listeners,
    _advertised,
    _only_plaintext,
    _no_auto_create,
    _metrics_address,
    _at_most("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    _at_most("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    _at_most("replica.fetch.max.bytes", "replica.fetch.response.max.bytes"),
    _at_most("message.max.bytes", "socket.request.max.bytes", FRAME_OVERHEAD_BYTES, "the frame around it"),
    _at_most("socket.request.max.bytes", "queued.max.request.bytes", BROKER_RESERVE_BYTES, "other brokers' requests"),
)


def warnings(config: BrokerConfig) -> list[str]:
    """Warnings that a broker logs at its start about settings that are allowed, but rarely intended."""
    found: list[str] = []
    if config.replica_truncation_rule == "high-watermark":
        found.append(
            "replica.truncation.rule=high-watermark loses acknowledged records when leaders change: for teaching only"
        )
    if config.unclean_leader_election_enable:
        found.append("unclean.leader.election.enable=true may lose acknowledged records")
    if config.min_insync_replicas > config.default_replication_factor:
        found.append(
            f"min.insync.replicas={config.min_insync_replicas} is above"
            f" default.replication.factor={config.default_replication_factor}: a topic created with the defaults needs"
            " all its replicas for acks=all"
        )
    return found


# ----------------------------------------------------------------------------------------------------- addresses
def advertised_endpoints(config: BrokerConfig, bound_ports: Mapping[str, int]) -> tuple[BrokerEndpoint, ...]:
    """The endpoints to register. `bound_ports`: the actual port of each listener, for those configured with port 0."""
    return tuple(
        endpoint
        if endpoint.port
        else BrokerEndpoint(listener=endpoint.listener, host=endpoint.host, port=bound_ports[endpoint.listener])
        for endpoint in _advertised_listeners(config)
    )


def expected_value(name: str) -> str:
    """In words, for documentation."""
    return expected(SETTINGS[name])
