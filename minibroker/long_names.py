"""Names of topics that are too long for any request: refused before a broker is asked.

Owns: that check of commands. Leaves to others: whether a name is valid otherwise, which brokers decide.
"""

from collections.abc import Iterable

import click

from minibroker.protocol.ids import TOPIC_NAME_MAX_LENGTH


def refuse_long_topics(names: Iterable[str]) -> None:
    """Raise BadParameter for a name that no request can carry."""
    for name in names:
        if len(name) > TOPIC_NAME_MAX_LENGTH:
            text = f"'{name}' is no topic's name: give at most {TOPIC_NAME_MAX_LENGTH} characters"
            raise click.BadParameter(text, param_hint="-t")
