"""A server that speaks just enough of ZooKeeper's protocol for kazoo to keep a session with it."""

import asyncio
import struct

PING_XID = -2
NO_NODE = -101


class LittleZooKeeper:
    """Grants every session, and answers every request with 'no such node'."""

    def __init__(self) -> None:
        self.sessions = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._connections: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def drop_connections(self) -> None:
        connections, self._connections = self._connections, []
        for each in connections:
            each.transport.abort()

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(writer)
        try:
            _, _, timeout_ms, session_id = struct.unpack_from("!iqiq", await _frame(reader))
            if not session_id:
                self.sessions += 1
            granted = struct.pack("!iiqi16s?", 0, timeout_ms, session_id or self.sessions, 16, b"", False)
            _answer(writer, granted)
            while True:
                (xid,) = struct.unpack_from("!i", await _frame(reader))
                _answer(writer, struct.pack("!iqi", xid, 1, 0 if xid == PING_XID else NO_NODE))
        except (asyncio.IncompleteReadError, ConnectionError):
            return


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _answer(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(struct.pack("!i", len(content)) + content)
