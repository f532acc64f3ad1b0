"""Who is at the other end of a connection, as far as that has been proven.

Owns: the principal that a connection has, which every request on it has, too. Leaves to others: how it is proven
(`broker/authentication`), and what it may do (`broker/authorization`).
"""

import msgspec

from minibroker.protocol.broker_authentication import BrokerName


class Principal(msgspec.Struct, frozen=True):
    """Kafka's KafkaPrincipal: a type and a name."""

    kind: str
    """`User` or `Broker`."""
    name: str
    broker: BrokerName | None = None
    """Of a broker: its registration and its start."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""Whoever has proven nothing: a client, as long as clients have nothing to prove."""


def broker_principal(name: BrokerName) -> Principal:
    return Principal("Broker", str(name.broker_id), name)
