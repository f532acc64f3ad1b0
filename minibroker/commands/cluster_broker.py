"""`minibroker cluster kill|pause|resume|stop|start`: commands for single processes of a cluster on this machine."""

from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    WrongUsage,
    human_bytes,
    json_option,
    print_json,
    timeout_option,
    warn,
)
from minibroker.commands.cluster import data_dir_option, pasteable, run_on_cluster

if TYPE_CHECKING:
    from minibroker.local_cluster.local_cluster import LocalCluster

ZOOKEEPER = "zookeeper"


def _only_one(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> str:
    """Click would say 'unexpected extra argument'."""
    if len(names) > 1:
        raise click.UsageError(f"{', '.join(names)}: one process at a time: run the command once for each", ctx)
    return names[0]


NAME = click.argument(
    "name", nargs=-1, required=True, callback=_only_one, metavar="ID|controller|leader:TOPIC-PARTITION|zookeeper"
)


def _on_process(doing: str) -> Callable[[Callable[..., Coroutine[Any, Any, dict[str, Any]]]], Callable[..., int]]:
    """Turn `async (cluster, id or None for ZooKeeper, ..) -> facts` into a command on one process of the data
    directory."""

    def decorate(work: Callable[..., Coroutine[Any, Any, dict[str, Any]]]) -> Callable[..., int]:
        @wraps(work)
        def command(name: str, data_dir: Path, timeout_s: float, as_json: bool, **options: Any) -> int:
            warnings: list[str] = []

            async def act() -> dict[str, Any]:
                from minibroker.local_cluster.broker_names import resolve
                from minibroker.local_cluster.local_cluster import LocalCluster

                local = LocalCluster.open(data_dir)
                if name == ZOOKEEPER:
                    facts = await work(local, None, timeout_s, **options)
                    return {ZOOKEEPER: local.record.zookeeper.connect, "action": doing} | facts
                broker_id = await resolve(local, name)
                facts = await work(local, broker_id, timeout_s, **options)
                warnings.extend(local.warnings)
                return {"broker": broker_id, "action": doing} | facts

            facts = run_on_cluster(act(), data_dir, timeout_s + 5, f"cluster {doing}")
            for warning in warnings:
                warn(pasteable(warning, data_dir))
            if as_json:
                print_json(facts)
            else:
                told = ("broker", ZOOKEEPER, "action")
                rest = "".join(f", {key}: {value}" for key, value in facts.items() if key not in told)
                who = ZOOKEEPER if ZOOKEEPER in facts else f"broker {facts['broker']}"
                click.echo(f"{who}: {doing}{rest}")
            return EXIT_FINE

        return data_dir_option(timeout_option(40)(json_option(NAME(command))))

    return decorate


@click.command()
@click.option(
    "--power-loss", is_flag=True, help="Then cut its logs above their recovery points: unsynced bytes are lost."
)
@_on_process("killed")
async def kill(local: "LocalCluster", broker_id: int | None, timeout_s: float, power_loss: bool) -> dict[str, Any]:
    """SIGKILL a process; --power-loss cuts a broker's unsynced tail."""
    if broker_id is None:
        if power_loss:
            raise WrongUsage("--power-loss is for brokers: ZooKeeper has synced all that it acknowledged")
        await local.zookeeper.kill()
        return {}
    if not power_loss:
        await local.kill(broker_id)
        return {}
    cuts = await local.lose_power(broker_id)
    lost = sum(cut.bytes_lost for cut in cuts)
    return {"lost to the power cut": human_bytes(lost), "logs cut": sum(1 for cut in cuts if cut.bytes_lost)}


@click.command()
@_on_process("paused")
async def pause(local: "LocalCluster", broker_id: int | None, timeout_s: float) -> dict[str, Any]:
    """SIGSTOP a process: it hangs."""
    await (local.zookeeper.pause() if broker_id is None else local.pause(broker_id))
    return {}


@click.command()
@_on_process("resumed")
async def resume(local: "LocalCluster", broker_id: int | None, timeout_s: float) -> dict[str, Any]:
    """SIGCONT a paused process."""
    await (local.zookeeper.resume() if broker_id is None else local.resume(broker_id))
    return {}


@click.command()
@_on_process("stopped")
async def stop(local: "LocalCluster", broker_id: int | None, timeout_s: float) -> dict[str, Any]:
    """Stop a process cleanly: a broker hands leadership over."""
    if broker_id is None:
        local.zookeeper.require_own()
        await local.zookeeper.stop()
    else:
        await local.stop(broker_id, timeout_s)
    return {}


@click.command()
@click.argument("names", nargs=-1, metavar="[ID|controller|leader:TOPIC-PARTITION|zookeeper]...")
@data_dir_option
@timeout_option(40)
@json_option
def start(names: tuple[str, ...], data_dir: Path, timeout_s: float, as_json: bool) -> int:
    """Start what is down: all, or the named brokers."""

    async def begin() -> tuple[list[tuple[str, str]], list[str]]:
        """What was started, with its address, and why others were not, or need another command."""
        import asyncio

        from minibroker.commands.broker import NECESSARY_SETTINGS, problem_of_settings
        from minibroker.local_cluster.broker_names import resolve_all
        from minibroker.local_cluster.broker_process import inherited_variables
        from minibroker.local_cluster.cluster_file import ClusterFailed
        from minibroker.local_cluster.local_cluster import LocalCluster
        from minibroker.local_cluster.zookeeper_process import PortTaken

        if problem := problem_of_settings(NECESSARY_SETTINGS, inherited_variables()):
            raise WrongUsage(f"no broker would start: {problem}")
        local = LocalCluster.open(data_dir)
        wants_zookeeper = ZOOKEEPER in names or (not names and local.zookeeper.is_down())
        down = [each for each in local.broker_ids if local.process_state(each) in ("down", "dead")]
        ids = await resolve_all(local, [name for name in names if name != ZOOKEEPER]) if names else down
        if wants_zookeeper:
            await local.start_zookeeper(timeout_s)
        local.zookeeper.require()
        ids = list(dict.fromkeys(ids))
        ends = await asyncio.gather(*(local.start(each, timeout_s) for each in ids), return_exceptions=True)
        started = [(ZOOKEEPER, local.record.zookeeper.connect)] if wants_zookeeper else []
        problems: list[str] = [] if names else local.paused(*local.broker_ids)
        for broker_id, end in zip(ids, ends, strict=True):
            if end is None:
                started.append((str(broker_id), local.server(broker_id)))
            elif isinstance(end, (ClusterFailed, PortTaken)):
                problems.append(str(end))
            else:
                raise end
        return started, problems

    started, problems = run_on_cluster(begin(), data_dir, timeout_s + 5, "cluster start")
    for name, address in started:
        if as_json:
            print_json(
                {"broker": int(name), "action": "started", "address": address}
                if name.isdigit()
                else {ZOOKEEPER: address, "action": "started"}
            )
        else:
            click.echo(f"{f'broker {name}' if name.isdigit() else name}: started, address: {address}")
    if problems:
        raise CommandFailed(pasteable("; ".join(problems), data_dir))
    if not started and not as_json:
        click.echo("nothing is down")
    return EXIT_FINE
