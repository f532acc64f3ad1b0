"""What asyncio offers and a virtual loop does not have: datagrams, other programs, pipes, descriptors.

Owns: refusing each by one sentence. asyncio itself raises an error that says nothing.
"""

import asyncio
from typing import Any, NoReturn

from minibroker.simulation.world.real_waiting import refuse

ELSEWHERE = "which is not simulated: test it with backend='processes'"


class Unsimulated(asyncio.BaseEventLoop):
    """Raises RealWaiting for all of it."""

    async def create_datagram_endpoint(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a datagram socket, {ELSEWHERE}")

    async def create_unix_connection(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a Unix socket, {ELSEWHERE}")

    async def create_unix_server(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a Unix socket, {ELSEWHERE}")

    async def subprocess_exec(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"another program, {ELSEWHERE}")

    async def subprocess_shell(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"another program, {ELSEWHERE}")

    async def connect_read_pipe(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a pipe, {ELSEWHERE}")

    async def connect_write_pipe(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a pipe, {ELSEWHERE}")

    async def start_tls(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"TLS, {ELSEWHERE}")

    def add_reader(self, *arguments: Any) -> NoReturn:  # type: ignore[override]
        refuse(f"a descriptor, {ELSEWHERE}")

    def add_writer(self, *arguments: Any) -> NoReturn:  # type: ignore[override]
        refuse(f"a descriptor, {ELSEWHERE}")

    async def sock_accept(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a socket of its own, {ELSEWHERE}")

    async def sock_recv(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a socket of its own, {ELSEWHERE}")

    async def sock_sendall(self, *arguments: Any, **options: Any) -> NoReturn:
        refuse(f"a socket of its own, {ELSEWHERE}")
