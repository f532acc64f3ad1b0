"""A real Spark standalone master and its workers, from pyspark's own jars, on loopback."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from minibroker.audit.spark.prerequisites import find_java

JARS = Path(pyspark.__file__).parent / "jars" / "*"
HOST = "127.0.0.1"
UP_SECONDS = 40.0
ADD_OPENS = (
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "java.util", "sun.nio.ch")),
    "--add-modules=jdk.incubator.vector",
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


class StandaloneSpark:
    """One master, and workers of one core each that can be killed with their executors."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"spark://{HOST}:{free_port()}"
        self.workers: list[subprocess.Popen[bytes]] = []
        port = self.url.rpartition(":")[2]
        self.master = self._start("master", "master.Master", ["--host", HOST, "--port", port, "--webui-port", "0"])
        self._wait_for("master", "I have been elected leader")

    def add_worker(self, memory: str = "1g") -> "subprocess.Popen[bytes]":
        name = f"worker-{len(self.workers)}"
        limits = ["--cores", "1", "--memory", memory, "--work-dir", str(self.directory / name)]
        worker = self._start(name, "worker.Worker", ["--host", HOST, "--webui-port", "0", *limits, self.url])
        self.workers.append(worker)
        self._wait_for(name, "Successfully registered with master")
        return worker

    def kill(self, worker: "subprocess.Popen[bytes]") -> None:
        """Kill the worker and its executors at once, as if the machine lost power."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        for process in (*self.workers, self.master):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, main: str, arguments: list[str]) -> "subprocess.Popen[bytes]":
        command = [str(find_java()), "-Xmx256m", *ADD_OPENS, "-cp", str(JARS), f"org.apache.spark.deploy.{main}"]
        environment = {
            key: value for key, value in os.environ.items() if not re.match("SPARK_|PYSPARK_|PYTHONPATH", key)
        }
        environment |= {
            "SPARK_LOCAL_IP": HOST,
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, *arguments], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _wait_for(self, name: str, sentence: str) -> None:
        deadline = time.monotonic() + UP_SECONDS
        while sentence not in self.log(name):
            assert time.monotonic() < deadline, self.log(name)[-2000:]
            time.sleep(0.05)


@contextmanager
def standalone_spark(directory: Path, workers: int = 2) -> Iterator[StandaloneSpark]:
    directory.mkdir(parents=True, exist_ok=True)
    spark = StandaloneSpark(directory)
    try:
        for _ in range(workers):
            spark.add_worker()
        yield spark
    finally:
        spark.stop()
