"""docs/CONFIGURATION.md, made from the tables.

    python -m minibroker.broker.configuration.config_docs > docs/CONFIGURATION.md

Owns: how settings are presented to readers. A test fails if the file differs from what this prints.
"""

import sys
from collections.abc import Iterator

import msgspec

from minibroker.broker.configuration.config import NEEDLESS_NAMES, RESERVED_VARIABLES, RETIRED_NAMES
from minibroker.broker.configuration.config_table import NEVER
from minibroker.broker.configuration.config_values import expected, format_value
from minibroker.broker.configuration.settings import SETTINGS, TOPIC_SETTINGS, Setting

INTRODUCTION = """\
# Configuration

<!-- Made by `python -m minibroker.broker.configuration.config_docs > docs/CONFIGURATION.md`;
edit broker/configuration/config_table.py instead. -->

A broker takes its settings from four places; the first that names a setting counts:

1. `minibroker broker --set key=value`
2. the environment: `MINIBROKER_MIN_INSYNC_REPLICAS=2` for `min.insync.replicas`
3. the file of `--config`: lines `key=value`; empty lines and lines that begin with `#` are ignored
4. the default

Settings marked *dynamic* may also be changed while the broker runs, by IncrementalAlterConfigs on the broker. Such a
value is kept in ZooKeeper (`/config/brokers/<id>`) and overrides all four.

An unknown name, an invalid value or settings that contradict each other end the start with exit code 2. The message
names the setting, its value, what was expected and where the value came from. `minibroker broker --print-config` shows
every value with its source; so does DescribeConfigs on a running broker.

Names and defaults are Kafka's where Kafka has the setting. `-1` stands for no limit.
"""

TOPIC_INTRODUCTION = """\
## Settings of topics

Given with `minibroker topic create --config key=value` or `topic alter`, kept in ZooKeeper (`/config/topics/<topic>`),
and applied by every broker with the next UpdateMetadata. For a setting that a topic does not override, its leader and
each follower use the value of their own broker, so give all brokers of a cluster the same defaults.
"""

VARIABLES_INTRODUCTION = """\
## Other variables

These also begin with `MINIBROKER_`, but are not settings of a broker:
"""


def page() -> str:
    """The whole document."""
    return "\n".join([INTRODUCTION, *_broker_sections(), TOPIC_INTRODUCTION, *_topic_table(), "", *_variables()]) + "\n"


def _broker_sections() -> Iterator[str]:
    section = ""
    for name, setting in SETTINGS.items():
        if setting.section != section:
            if section:
                yield ""
            section = setting.section
            yield f"## {section}\n\n| setting | default | value | meaning |\n|---|---|---|---|"
        notes = ["*dynamic*"] if setting.key.dynamic else []
        if setting.key.topic is not None:
            notes.append(f"topics: `{setting.key.topic}`")
        meaning = " ".join([setting.key.doc, f"({'; '.join(notes)})" if notes else ""]).strip()
        yield f"| `{name}` | {_default(setting)} | {_value(setting)} | {_cell(meaning)} |"
    yield ""


def _topic_table() -> Iterator[str]:
    yield "| setting of a topic | default: the broker's setting | value |\n|---|---|---|"
    for name, setting in TOPIC_SETTINGS.items():
        yield f"| `{name}` | `{setting.name}` ({_default(setting)}) | {_value(setting)} |"


def _variables() -> Iterator[str]:
    yield VARIABLES_INTRODUCTION
    yield "| variable | for |\n|---|---|"
    for name, meaning in RESERVED_VARIABLES.items():
        yield f"| `{name}` | {_cell(meaning)} |"
    yield "\nOther names in Kafka, and what to use here:\n\n| Kafka | here |\n|---|---|"
    for name, instead in RETIRED_NAMES.items():
        yield f"| `{name}` | `{instead}` |"
    for name, reason in NEEDLESS_NAMES.items():
        yield f"| `{name}` | leave it out: {_cell(reason)} |"


def _default(setting: Setting) -> str:
    if setting.default is msgspec.NODEFAULT:
        return "must be given"
    if setting.default == NEVER:
        return "never"
    text = format_value(setting.default)
    return f"`{text}`" if text else "empty"


def _value(setting: Setting) -> str:
    return _cell(expected(setting).replace(str(NEVER), "2^63-1").replace(str(2**31 - 1), "2^31-1"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
