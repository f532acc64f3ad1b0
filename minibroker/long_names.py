"""Names of topics that no request can carry, because they are too long or not UTF-8: refused before a broker is asked.

Owns: that check of commands. Leaves to others: whether a name is valid otherwise, which brokers decide.
"""

from collections.abc import Iterable

import click

from minibroker.protocol.ids import TOPIC_NAME_MAX_LENGTH


def refuse_impossible_topics(names: Iterable[str]) -> None:
    """Raise BadParameter for a name that no request can carry."""
    for name in names:
        require_utf8(name, "-t")
        if len(name) > TOPIC_NAME_MAX_LENGTH:
            text = f"'{name}' is no topic's name: give at most {TOPIC_NAME_MAX_LENGTH} characters"
            raise click.BadParameter(text, param_hint="-t")


def require_utf8(text: str, option: str) -> None:
    """Raise BadParameter for a text that was given in other bytes: no request can carry it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{text!a:.80} is not UTF-8", param_hint=option) from None
