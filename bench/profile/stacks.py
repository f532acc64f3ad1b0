"""What a process was doing in its sampled stacks: py-spy's folded stacks, by layer and by function.

Owns: the names of layers, and how samples become shares. Pure: no process, file or clock.

A folded stack is `outermost;...;innermost count`. Python frames have the form `name (folder/file.py:12)`, machine code
frames `name (file.c:12)` or `name (library.so)`. py-spy leaves out the interpreter's own loop, so time spent in byte
code counts for the innermost Python frame.
"""

import itertools
import re
from collections.abc import Callable, Iterable

import msgspec

FRAME = re.compile(r"^(?P<name>.*?) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")
PROJECT_FOLDERS = ("protocol", "runtime", "broker", "controller", "client", "bench", "minibroker")
SYSTEM_CALL = re.compile(
    r"(?P<read>p?readv?(64)?(v2)?|recv(from|msg|_into)?)|(?P<write>p?writev?(64)?(v2)?|send(to|msg)?)|(?P<sync>f(data)?sync)"
)
"""libc functions that do little except their system call, by purpose."""
WAITING = frozenset(
    {
        *("epoll_wait", "epoll_pwait", "poll", "select", "PyThread_acquire_lock_timed"),
        *("pthread_cond_wait", "pthread_cond_timedwait", "sem_wait", "sem_timedwait", "futex"),
    }
)
"""Functions in which a thread has nothing to do, or waits for the interpreter's lock. Walking a stack wakes the thread,
so where the cores are busy py-spy takes it for a running one at the next sample: such samples are left out. So a poll
costs nothing here."""
LIBRARIES = (("crc32c", "crc32c"), ("msgpack", "msgpack"), ("msgspec", "msgspec"), ("uvloop", "uvloop"))
"""A part of a library's file name, and its layer."""
LOOP_RUNNERS = ("uvloop/__init__.py", "asyncio/runners.py")
EVENT_LOOP = "(event loop)"
UVLOOP_SOURCES = frozenset({"loop.c", "core.c", "linux.c", "stream.c", "loop-watcher.c", "tcp.c", "queue.h", "timer.c"})
MEMORY_NAMES = re.compile(r"malloc|free|calloc|realloc|Malloc|Alloc|dealloc|madvise|brk|mmap|munmap")
COPY_NAMES = re.compile(r"memmove|memcpy|memset|bytes_concat|bytes_join|PyBytes_FromStringAndSize")


class StackFrame(msgspec.Struct, frozen=True):
    """One level of a stack."""

    name: str
    file: str

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    @property
    def folder(self) -> str | None:
        """The folder of this project that contains the code, including a sub-folder of the broker; None for other
        code."""
        words = self.file.split("/")
        if not self.is_python or "site-packages" in words:
            return None
        if words[0] == "minibroker" and len(words) > 2:
            words = words[1:]
        if words[0] not in PROJECT_FOLDERS or len(words) < 2:
            return None
        return "/".join(words[:-1])

    @property
    def label(self) -> str:
        """`Class.method (file.py)`, for readers."""
        return f"{self.name} ({self.file.removeprefix('minibroker/')})"


class Stack(msgspec.Struct, frozen=True):
    """Frames from the outermost to the innermost, and how often they were sampled."""

    frames: tuple[StackFrame, ...]
    samples: int


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The share of a process's time, from 0 to 1."""

    name: str
    itself: float
    """The time in it, or in other code (libraries, system calls) that it called."""
    total: float
    """With everything that it called."""


def parse_folded(text: str) -> list[Stack]:
    """Raises ValueError on a line that is not a folded stack."""
    stacks = []
    for line in text.splitlines():
        names, _, count = line.rpartition(" ")
        if not names or not count.isdigit():
            raise ValueError(f"not a folded stack: {line[:100]!r}")
        stacks.append(Stack(tuple(_parse_frame(name) for name in names.split(";")), int(count)))
    return stacks


def _parse_frame(text: str) -> StackFrame:
    found = FRAME.match(text)
    return StackFrame(text, "") if found is None else StackFrame(found["name"], found["file"])


def without_waiting(stacks: Iterable[Stack]) -> list[Stack]:
    """The stacks of threads that used a core."""
    return [stack for stack in stacks if not any(frame.name in WAITING for frame in _machine_code(stack))]


def _machine_code(stack: Stack) -> list[StackFrame]:
    """The frames that the innermost Python frame called, the innermost first."""
    return list(itertools.takewhile(lambda frame: not frame.is_python, reversed(stack.frames)))


def samples_of(stacks: Iterable[Stack]) -> int:
    return sum(stack.samples for stack in stacks)


def shares_by_layer(stacks: Iterable[Stack]) -> list[Share]:
    """Each sample counts for the one layer of its innermost frame; the largest first."""
    return _sorted_shares(stacks, lambda stack: layer_of(stack), lambda stack: {layer_of(stack)})


def shares_by_function(stacks: Iterable[Stack]) -> list[Share]:
    """Functions of this project, by their own time; a stack without any of them counts for the event loop."""
    return _sorted_shares(stacks, _innermost_label, lambda stack: _project_labels(stack))


def _sorted_shares(
    stacks: Iterable[Stack], owner: Callable[[Stack], str], callers: Callable[[Stack], set[str]]
) -> list[Share]:
    kept = list(stacks)
    whole = samples_of(kept) or 1
    itself: dict[str, int] = {}
    total: dict[str, int] = {}
    for stack in kept:
        own = owner(stack)
        itself[own] = itself.get(own, 0) + stack.samples
        for name in {own, *callers(stack)}:
            total[name] = total.get(name, 0) + stack.samples
    shares = [
        Share(name=name, itself=itself.get(name, 0) / whole, total=count / whole) for name, count in total.items()
    ]
    return sorted(shares, key=lambda share: (-share.itself, -share.total, share.name))


def _project_labels(stack: Stack) -> set[str]:
    inside = itertools.takewhile(lambda frame: not frame.file.startswith(LOOP_RUNNERS), reversed(stack.frames))
    return {frame.label for frame in inside if frame.folder}


def _innermost_label(stack: Stack) -> str:
    frame = _innermost_project_frame(stack)
    return EVENT_LOOP if frame is None else frame.label


def _innermost_project_frame(stack: Stack) -> StackFrame | None:
    """None where the event loop itself was busy: the code that started the loop is on every stack and has no
    meaning."""
    for frame in reversed(stack.frames):
        if frame.file.startswith(LOOP_RUNNERS):
            return None
        if frame.folder:
            return frame
    return None


def layer_of(stack: Stack) -> str:
    """`write: broker/log` is a system call under that folder; `broker/log` is byte code in it; `msgspec` a library."""
    owner = _innermost_project_frame(stack)
    folder = EVENT_LOOP if owner is None else owner.folder or EVENT_LOOP
    machine = _machine_code(stack)
    call = SYSTEM_CALL.fullmatch(machine[0].name) if machine else None
    if call is not None and machine[0].file.startswith("libc"):
        return f"{call.lastgroup}: {_socket_or_file(machine, folder)}"
    for frame in machine:
        for part, layer in LIBRARIES:
            if part in frame.file:
                return layer
        if frame.file in UVLOOP_SOURCES:
            return "uvloop"
    if machine and COPY_NAMES.search(machine[0].name):
        return f"copies: {folder}"
    if machine and MEMORY_NAMES.search(machine[0].name):
        return f"memory: {folder}"
    python = stack.frames[: len(stack.frames) - len(machine)]
    if python and python[-1].folder is None and not python[-1].file.startswith(LOOP_RUNNERS):
        return python[-1].file.split("/")[0].removesuffix(".py")
    return folder


def _socket_or_file(machine: list[StackFrame], folder: str) -> str:
    return (
        "socket" if any(frame.file in UVLOOP_SOURCES or "uvloop" in frame.file for frame in machine) else f"in {folder}"
    )
