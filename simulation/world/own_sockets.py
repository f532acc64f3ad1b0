"""Sockets that a user's service makes for itself, as aiohttp's client does: never connected, only noted.

Owns: where each would be connected to, and the addresses of names. Leaves to others: the connection over the simulated
network, which the loop opens once it is given the socket.
"""

import socket
from typing import Any
from weakref import WeakKeyDictionary

from minibroker.simulation.world.real_waiting import refuse


class OwnSockets:
    """Of one loop."""

    def __init__(self) -> None:
        self._addresses: WeakKeyDictionary[Any, tuple[str, int]] = WeakKeyDictionary()

    def note(self, sock: Any, address: Any) -> None:
        """`loop.sock_connect` was called."""
        self._addresses[sock] = address[:2]

    def take(self, sock: Any) -> tuple[str, int] | None:
        """Host and port of a noted socket, which is closed: the simulated connection takes its place."""
        address = self._addresses.pop(sock, None) if isinstance(sock, socket.socket) else None
        if address is not None:
            sock.close()
        return address


def resolved(host: object, port: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    """As `getaddrinfo`, for addresses and the name of this machine; no other name can be resolved."""
    text = "127.0.0.1" if host in (None, "", "localhost") else str(host)
    if not all(part.isdigit() for part in text.split(".")):
        refuse(f"the address of {text!r}: the simulated network knows localhost and addresses")
    return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (text, int(str(port or 0))))]
