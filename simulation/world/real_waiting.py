"""Refusing what would wait in real time while a virtual loop runs: sleeping, starting threads, blocking sockets."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn


class RealWaiting(AssertionError):
    """Simulated code requested real time, a thread, or a socket."""


NEEDS_REAL_TIME = "test what needs one with backend='processes'"


def refuse(what: str) -> NoReturn:
    raise RealWaiting(f"simulated code asked for {what}")


def refuse_connection(address: Any) -> NoReturn:
    refuse(f"a blocking connection to {address} (asyncio.open_connection uses the simulated network)")


@contextlib.contextmanager
def forbid_real_waiting() -> Iterator[None]:
    """While a virtual loop runs, its thread may not sleep, start a thread, or connect a blocking socket: that would
    take real time. Threads that already ran (of a test runner, of a user's program) are not affected."""
    sleep, start, connect, here = time.sleep, threading.Thread.start, socket.socket.connect, threading.get_ident()
    look_up = socket.getaddrinfo

    def guarded_sleep(seconds: Any, /) -> None:
        if threading.get_ident() == here:
            refuse(f"a real sleep of {seconds} s: asyncio.sleep takes virtual time")
        sleep(seconds)

    def guarded_start(thread: threading.Thread) -> None:
        if threading.get_ident() == here:
            refuse(f"a thread ({thread.name}): {NEEDS_REAL_TIME}")
        start(thread)

    def guarded_connect(end: socket.socket, address: Any, /) -> None:
        if threading.get_ident() == here:
            refuse_connection(address)
        connect(end, address)

    def guarded_look_up(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        """`socket.create_connection` begins with it, and real names do not lead to simulated brokers."""
        if threading.get_ident() == here:
            refuse_connection((host, port))
        return look_up(host, port, *arguments, **options)

    time.sleep = guarded_sleep
    threading.Thread.start = guarded_start  # type: ignore[method-assign, assignment]
    socket.socket.connect = guarded_connect  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = guarded_look_up
    try:
        yield
    finally:
        time.sleep = sleep
        threading.Thread.start = start  # type: ignore[method-assign]
        socket.socket.connect = connect  # type: ignore[method-assign]
        socket.getaddrinfo = look_up
