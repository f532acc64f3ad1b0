"""A TCP proxy in front of a real ZooKeeper: injects the faults that the simulated one has built in."""

import asyncio
import contextlib
from collections.abc import Coroutine


class ZooKeeperProxy:
    """Forwards bytes on its own loop until a fault is set."""

    def __init__(self, port: int) -> None:
        self._target_port = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_request = asyncio.Event()
        self._may_answer = asyncio.Event()
        self.heal()

    async def start(self) -> str:
        """The servers string for a client."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Nothing gets through; connections stay open."""
        self._may_request.clear()
        self._may_answer.clear()

    def cut_answers(self) -> None:
        """Requests get through, answers do not."""
        self._may_answer.clear()

    def heal(self) -> None:
        self._may_request.set()
        self._may_answer.set()

    def reset(self) -> None:
        """Break all connections. Bytes held back are lost."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.reset()
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve(reader, writer))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        await self._may_request.wait()
        try:
            answers, requests = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(requests)
        self._spawn(forward(reader, requests, self._may_request))
        self._spawn(forward(answers, writer, self._may_answer))


async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter, may_pass: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            await may_pass.wait()
            target.write(data)
    target.close()
