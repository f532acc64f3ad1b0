"""The files of brokers whose containers are down, changed by a short-lived container with the same volume.

Owns: what happens to these files, and the commands for it. Leaves to others: whether the broker is down. The container
is of the broker's image, so it runs as the brokers' user, and a file that it replaces keeps its owner.
"""

from minibroker.harness.compose_project import ComposeProject, service_of

LOG_DIRECTORY = "/data/log"
LIST = "for file in root.rglob('*'): file.is_file() and print(file.relative_to(root).as_posix())"
READ = "print((root / sys.argv[1]).read_bytes().hex())"
WRITE = "(root / sys.argv[1]).write_bytes(sys.stdin.buffer.read())"
REMOVE = "(root / sys.argv[1]).unlink()"
REMOVE_ALL = "from minibroker.local_cluster.blank_disk import remove_everything; remove_everything(root)"
CUT = "from minibroker.local_cluster.power_loss import cut_unsynced_tails; cut_unsynced_tails(root)"


class ContainerFiles:
    """Of one project."""

    def __init__(self, project: ComposeProject) -> None:
        self._project = project

    async def names(self, broker_id: int) -> list[str]:
        """All, as paths below the log directory, sorted."""
        return sorted((await self._python(broker_id, LIST)).splitlines())

    async def read(self, broker_id: int, name: str) -> bytes:
        return bytes.fromhex(await self._python(broker_id, READ, name))

    async def write(self, broker_id: int, name: str, content: bytes | None) -> None:
        """None removes it."""
        if content is None:
            await self._python(broker_id, REMOVE, name)
        else:
            await self._python(broker_id, WRITE, name, given=content)

    async def remove_all(self, broker_id: int) -> None:
        """As `blank_disk` does with local files."""
        await self._python(broker_id, REMOVE_ALL)

    async def cut_unsynced(self, broker_id: int) -> None:
        """As `power_loss` does with local files."""
        await self._python(broker_id, CUT)

    async def _python(self, broker_id: int, statement: str, *words: str, given: bytes = b"") -> str:
        container = await self._project.container(service_of(broker_id))
        program = f"import sys, pathlib; root = pathlib.Path({LOG_DIRECTORY!r})\n{statement}"
        with_volume = ("--volumes-from", container, "--network", "none", "--entrypoint", "python")
        started = ("docker", "run", "--rm", "-i", *with_volume, self._project.image)
        return await self._project.run(*started, "-c", program, *words, given=given)
