"""One kazoo client that reports to the event loop, and what its session is allowed to do.

Owns: how kazoo is opened: its one thread, its reconnecting, its credentials for ZooKeeper, and the ACLs of the nodes it
creates. Leaves to others: what its states and answers mean (`zookeeper`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

RECONNECT_DELAY_SECONDS = 0.1
RECONNECT_DELAY_SECONDS_MAX = 1.0
"""kazoo's own back-off grows to an hour, which would lose a session that ZooKeeper still keeps."""

CONNECTS_PER_SESSION = 3
"""Times the servers. kazoo waits a whole session for a connection, and notices a dead server after two thirds of one:
in the last third each of the others is to be tried."""


class SessionGrant:
    """What ZooKeeper granted at a connect, and the loop time at which the request was sent."""

    def __init__(self, session_id: int, timeout_ms: int, sent_at: float) -> None:
        self.session_id = session_id
        self.timeout_ms = timeout_ms
        self.sent_at = sent_at


class LoopQueue:
    """Replaces kazoo's queue of completions: the loop is the worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, call: Callable[[], None]) -> None:
        post(self._loop, call)


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Run on the loop; a call that arrives after the loop's end is dropped."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


def open_kazoo(
    servers: str,
    timeout_ms: int,
    loop: asyncio.AbstractEventLoop,
    granted: Callable[[SessionGrant], None],
    changed: Callable[[str, Any], None],
    refused: Callable[[Any], None],
    ended: Callable[[Any, Exception | None], None],
    credentials: str = "",
) -> Any:
    """A kazoo client that reports to the loop and has no thread except its connection's. `refused`: ZooKeeper accepted
    a connection, but closed it when asked for the session. `ended`: the thread is over, and by which error: this client
    connects no more."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import SequentialThreadingHandler
    from kazoo.protocol.connection import ConnectionDropped
    from kazoo.protocol.serialization import Connect
    from kazoo.retry import KazooRetry

    handler: Any = SequentialThreadingHandler()
    handler.completion_queue = LoopQueue(loop)
    handler.dispatch_callback = lambda callback: post(loop, callback.func, *callback.args)
    handler._running = True  # completions go to the queue, which needs no workers
    handler.start = handler.stop = lambda: None

    silent = logging.Logger(
        "kazoo-silent", level=logging.CRITICAL + 1
    )  # this adapter logs one line per outage, kazoo twenty
    client = KazooClient(
        hosts=servers,
        timeout=timeout_ms / 1000,
        handler=handler,
        logger=silent,
        auth_data=[("digest", credentials)] if credentials else [],
        default_acl=[*secret_acl(credentials), *readable_acl()] if credentials else None,
        connection_retry=KazooRetry(
            max_tries=-1,
            delay=RECONNECT_DELAY_SECONDS,
            max_delay=RECONNECT_DELAY_SECONDS_MAX / 1.2,
            max_jitter=0.2,
        ),
    )
    connect, attempts = handler.create_connection, CONNECTS_PER_SESSION * len(client.hosts)
    handler.create_connection = lambda *address, timeout, **options: connect(
        *address, timeout=timeout / attempts, **options
    )
    connection = client._connection
    invoke = connection._invoke
    ahead = loop.time() - time.monotonic()  # the loop's clock must not be read from another thread

    def invoke_and_record(timeout: float, request: Any, xid: int | None = None) -> Any:
        sent_at = time.monotonic() + ahead
        try:
            result = invoke(timeout, request, xid)
        except ConnectionDropped:
            if isinstance(request, Connect):
                post(loop, refused, client)
            raise
        if isinstance(request, Connect) and result[0].time_out > 0:
            post(loop, granted, SessionGrant(result[0].session_id, result[0].time_out, sent_at))
        return result

    connection._invoke = invoke_and_record
    report_end(client, lambda error: post(loop, ended, client, error))
    client.add_listener(lambda state: post(loop, changed, str(state), client))
    return client


def report_end(client: Any, ended: Callable[[Exception | None], None]) -> None:
    """kazoo itself is silent about a thread that ends after the session, or before there is one."""
    run = client._connection.zk_loop

    def run_and_report() -> None:
        error = None
        try:
            run()
        except Exception as failure:
            error = failure
        ended(error)

    client._connection.zk_loop = run_and_report


def secret_acl(credentials: str) -> list[Any]:
    """Everything is allowed with these credentials, nothing without."""
    from kazoo.security import make_digest_acl

    user, _, password = credentials.partition(":")
    return [make_digest_acl(user, password, all=True)]


def readable_acl() -> list[Any]:
    """Any client may read: the tools and the audit do."""
    from kazoo.security import make_acl

    return [make_acl("world", "anyone", read=True)]


def is_open(entry: Any) -> bool:
    """Whether this entry of a node's ACL lets any client do more than read."""
    from kazoo.security import Permissions

    is_for_all = entry.id.scheme == "world" and entry.id.id == "anyone"
    return is_for_all and bool(entry.perms & ~Permissions.READ)
