"""The authenticated identity of a connection's peer.

Owns: the principal of a connection, which is also that of every request on it. Leaves to others: how it is proven
(`broker/authentication`), and what it may do (`broker/authorization`).
"""

import msgspec

from minibroker.protocol.wire.broker_authentication import BrokerName


class Principal(msgspec.Struct, frozen=True):
    """Kafka's KafkaPrincipal: a type and a name."""

    kind: str
    """`User` or `Broker`."""
    name: str
    broker: BrokerName | None = None
    """For a broker: its registration and its incarnation."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""A peer without authentication: a client, as clients do not authenticate themselves."""


def broker_principal(name: BrokerName) -> Principal:
    return Principal("Broker", str(name.broker_id), name)
