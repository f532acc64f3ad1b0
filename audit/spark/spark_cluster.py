"""A Spark cluster as the audit's driver sees it: is the master reachable, is there an executor, is it still there.

Owns: limits for the waits that would last minutes or for ever in Spark itself. Local masters need none of it.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from minibroker.audit.errors import AuditError

if TYPE_CHECKING:
    from pyspark import SparkContext

REACH_SECONDS = 5.0
EXECUTOR_SECONDS = 30.0
"""An executor starts in 2 to 5 s. A busy cluster takes longer to provide one, but then the user should know."""
LOOK_SECONDS = 0.25
STANDALONE = "spark://"


def is_local(master: str | None) -> bool:
    return re.match(r"local($|[\[-])", master or "") is not None


def local_address_towards(master: str) -> str | None:
    """The address under which this host reaches a standalone master (its executors call the driver there); None for
    other masters. Spark would try for a minute and hide the reason."""
    if not master.startswith(STANDALONE):
        return None
    causes = []
    for place in master.removeprefix(STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise AuditError(f"Spark's master {master} is not an address: use spark://HOST:PORT")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            causes.append(f"{place}: {error.strerror or error}")
    raise AuditError(f"Spark's master cannot be reached ({'; '.join(causes)})")


def count_executors(context: "SparkContext") -> int:
    """The number of executors; the driver is not one."""
    scala = context._jsc.sc()
    return len(scala.statusTracker().getExecutorInfos()) - 1


class ExecutorWatch:
    """Ends the jobs of a context that has had no executor for too long."""

    def __init__(self, context: "SparkContext", *, clock: Callable[[], float] = time.monotonic, limit_s: float) -> None:
        self._context = context
        self._clock = clock
        self._limit_s = limit_s
        self._last_executor_at: float = clock()
        self._had_executors = False
        self.problem: str | None = None

    def poll(self) -> None:
        """Record how many executors there are now; after too long without any, cancel the running jobs."""
        if count_executors(self._context) > 0:
            self._last_executor_at, self._had_executors = self._clock(), True
        elif self.problem is None and self._clock() - self._last_executor_at > self._limit_s:
            self.problem = self._what_is_wrong()
            self._context.cancelAllJobs()

    def _what_is_wrong(self) -> str:
        master = self._context.master
        if self._had_executors:
            return f"the last executor of {master} is gone, and no other has registered within {self._limit_s:.0f} s"
        return (
            f"no executor has registered with {master} within {self._limit_s:.0f} s: no worker there has a core and the"
            f" memory free ({self._context._conf.get('spark.executor.memory', '1g')}), or none can reach this driver"
        )


@contextmanager
def watched_executors(context: "SparkContext") -> Iterator[None]:
    """Jobs in this block end with AuditError when a cluster has had no executor for EXECUTOR_SECONDS."""
    if is_local(context.master):
        yield
        return
    watch, done = ExecutorWatch(context, limit_s=EXECUTOR_SECONDS), threading.Event()

    def watch_until_done() -> None:
        while not done.wait(LOOK_SECONDS) and watch.problem is None:
            with suppress(Exception):  # the JVM is gone: the running job reports it
                watch.poll()

    watcher = threading.Thread(target=watch_until_done, name="audit executors", daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        if watch.problem is not None:
            raise AuditError(watch.problem) from None
        raise
    finally:
        done.set()
        watcher.join(LOOK_SECONDS * 4)


def wanted_master(given: str | None, fallback: str) -> str:
    return given or os.environ.get("SPARK_MASTER") or fallback
