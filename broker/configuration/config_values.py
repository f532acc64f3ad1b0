"""Conversion of setting values from text and to text. Pure.

Owns: the notation of each type, and the error for a value that does not fit it. Leaves to others: names and sources,
which the caller adds to the error.
"""

import typing
from typing import Any, Literal

from minibroker.broker.configuration.settings import Setting
from minibroker.protocol.wire.messages import BrokerEndpoint
from minibroker.protocol.znodes import format_endpoint, parse_endpoint

ANY_HOST = "0.0.0.0"  # noqa: S104 - a word of the configuration
"""Meaning of an empty host in `listeners`."""

TYPE_NAMES: dict[Any, str] = {
    int: "a number",
    int | None: "a number, -1 for none",
    bool: "true or false",
    str: "text",
    tuple[str, ...]: "names separated by commas",
    tuple[BrokerEndpoint, ...]: "NAME://HOST:PORT,.. with names in capital letters",
    dict[str, str]: "NAME:PROTOCOL,..",
}


VALUE_LENGTH_MAX = 1_000
"""Characters of a value that a client may set: far more than a number or a word needs. Each one is written to
ZooKeeper, sent to every broker and reported as an event."""


class BadValue(ValueError):
    """The text is not a valid value of the setting; the message says what is expected."""


class NotChangeable(BadValue, LookupError):
    """There is no such setting, or none that can be changed so: no value is valid, and there is nothing to remove. To
    the controller, which asks for both, it is a LookupError."""


def parse_value(setting: Setting, text: str) -> Any:
    """The value that `text` represents; raises BadValue with what was expected."""
    text = text.strip()
    kind = setting.kind
    if kind is int or kind == int | None:
        return _parse_number(setting, text)
    if kind is bool:
        return _parse_bool(text)
    if typing.get_origin(kind) is Literal:
        return _parse_choice(text, typing.get_args(kind))
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind == tuple[BrokerEndpoint, ...]:
        return _parse_endpoints(text)
    if kind == dict[str, str]:
        return _parse_map(text)
    assert kind is str, f"{setting.name}: no notation for {kind}"
    return text


def canonical_value(setting: Setting, text: str) -> str:
    """`text` as it is stored and shown, so that no spaces and leading zeros are stored; raises BadValue."""
    length = len(text.strip())
    if length > VALUE_LENGTH_MAX:
        raise BadValue(f"expected at most {VALUE_LENGTH_MAX} characters, not {length}")
    return format_value(parse_value(setting, text))


def format_value(value: Any) -> str:
    """The text of a value in the notation of a configuration file."""
    if value is None:
        return "-1"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return ",".join(f"{name}:{protocol}" for name, protocol in value.items())
    if isinstance(value, tuple):
        return ",".join(format_value(part) for part in value)
    if isinstance(value, BrokerEndpoint):
        return format_endpoint(value.listener, value.host, value.port)
    return str(value)


def expected(setting: Setting) -> str:
    """Describes the valid values of this setting in words."""
    if typing.get_origin(setting.kind) is Literal:
        return " or ".join(typing.get_args(setting.kind))
    words = TYPE_NAMES[setting.kind]
    minimum, maximum = setting.key.minimum, setting.key.maximum
    if minimum is not None and maximum is not None:
        return words.replace("a number", f"a number from {minimum} to {maximum}")
    return words


def _parse_number(setting: Setting, text: str) -> int | None:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise BadValue(f"expected {expected(setting)}")
    number = int(text)
    if number == -1 and setting.kind == int | None:
        return None
    minimum, maximum = setting.key.minimum, setting.key.maximum
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        raise BadValue(f"expected {expected(setting)}")
    return number


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadValue("expected true or false")
    return text.lower() == "true"


def _parse_choice(text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise BadValue(f"expected {' or '.join(choices)}")
    return text


def _parse_endpoints(text: str) -> tuple[BrokerEndpoint, ...]:
    endpoints: list[BrokerEndpoint] = []
    for part in (each.strip() for each in text.split(",")):
        if not part:
            continue
        found = parse_endpoint(part.replace("://:", f"://{ANY_HOST}:", 1))
        if found is None or not is_listener_name(found[0]):
            raise BadValue(
                f"{part!r:.200} is not NAME://HOST:PORT with the name in capital letters, and a host of labels of 1 to"
                " 63 letters, digits and hyphens, or an address in numbers"
            )
        name, host, port = found
        endpoints.append(BrokerEndpoint(listener=name, host=host, port=port))
    return tuple(endpoints)


def is_listener_name(name: str) -> bool:
    return name.isascii() and name == name.upper() and name.replace("_", "").isalnum()


def _parse_map(text: str) -> dict[str, str]:
    result: dict[str, str] = {}
    for part in (each.strip() for each in text.split(",")):
        if not part:
            continue
        name, colon, protocol = part.partition(":")
        if not (colon and name and protocol):
            raise BadValue(f"{part!r:.200} is not NAME:PROTOCOL")
        result[name.strip()] = protocol.strip()
    return result
