"""A small world that uses every port. As a program it prints the trace hash of a seed: `seeded_run.py SEED`."""

import asyncio
import contextlib
import random
import sys

from minibroker.runtime.ports import Coordination, CoordinationError, CoordinationUnavailable, NetworkError, Runtime
from minibroker.simulation.world.world import SimulatedWorld

PORT = 9092
SECONDS = 30
NODES = ("broker-1", "broker-2", "broker-3")


class Echo(asyncio.BufferedProtocol):
    """Appends what it receives to its log and sends it back."""

    def __init__(self, runtime: Runtime) -> None:
        self._file = runtime.disk.open("/data/log", create=True)
        self._buffer = memoryview(bytearray(64))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        self._file.append([data])
        self._transport.write(data)


class Sink(Echo):
    """Discards what it receives."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(64))

    def buffer_updated(self, nbytes: int) -> None:
        pass


async def connect(runtime: Runtime) -> Coordination:
    while True:
        coordination = runtime.open_coordination("zookeeper:2181", 3_000)
        with contextlib.suppress(CoordinationUnavailable):
            await coordination.start()
            return coordination


async def register(runtime: Runtime, name: str) -> None:
    coordination = await connect(runtime)
    while True:
        try:
            await coordination.create(f"/{name}-", b"", ephemeral=True, sequence=True)
            names = {*await coordination.get_children("/")}
            await coordination.set("/", repr(sorted(names)).encode())
        except CoordinationError:
            pass
        await asyncio.sleep(runtime.random.uniform(0.1, 1))


async def send_at_random(runtime: Runtime) -> None:
    while True:
        await asyncio.sleep(runtime.random.expovariate(5))
        try:
            target = runtime.random.choice(NODES)
            transport, _ = await runtime.network.connect(Sink, target, PORT, 500)
        except NetworkError:
            continue
        transport.write(runtime.random.randbytes(runtime.random.randrange(1, 500)))
        await asyncio.sleep(0.01)
        transport.close()


async def node(runtime: Runtime) -> None:
    await runtime.network.listen(lambda: Echo(runtime), "", PORT)
    file = runtime.disk.open("/data/log", create=True)
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(send_at_random(runtime), name=str(number))
        group.create_task(register(runtime, f"n{runtime.random.randrange(10)}"))
        while True:
            await asyncio.sleep(0.5)
            await runtime.disk.in_background(file.sync)


async def drive(world: SimulatedWorld, rng: random.Random) -> None:
    for name in NODES:
        world.start(name, node)
    while world.loop.elapsed < SECONDS:
        await asyncio.sleep(rng.uniform(0.5, 2))
        name = rng.choice(NODES)
        match rng.randrange(6):
            case 0:
                world.kill(name)
            case 1:
                world.power_loss(name)
            case 2:
                world.network.isolate(name)
            case 3:
                world.zookeeper.cut(name)
            case 4:
                world.network.heal_all()
                world.zookeeper.heal()
            case 5 if world.is_alive(name):
                world.pause(name)
                world.loop.call_later(1, world.resume, name)
        await asyncio.sleep(0.5)
        if not world.is_alive(name):
            world.start(name)


def trace_of(seed: int) -> SimulatedWorld:
    world = SimulatedWorld(seed)
    world.run(drive(world, world.random("driver")))
    return world


if __name__ == "__main__":
    print(trace_of(int(sys.argv[1])).trace_hash)
