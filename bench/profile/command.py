"""`minibroker bench profile` and `make profile`: profile the hot paths, print tables or JSON."""

import asyncio
import tempfile
from pathlib import Path

import click
import msgspec

from minibroker.bench.profile.hot_path import HotPath, LayerCost
from minibroker.bench.profile.run import profile_hot_paths
from minibroker.bench.profile.samplers import NoSampler
from minibroker.command_line import CommandFailed, ProgressLine, json_option, print_table
from minibroker.local_cluster.cluster_file import ClusterFailed

ROWS_MAX = 25


@click.command()
@click.option("--record-bytes", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--batch-bytes", type=click.IntRange(1_000), default=131_072, show_default=True, help="batch_size.")
@click.option("--seconds", type=click.IntRange(1), default=5, show_default=True, help="Of each of the ten windows.")
@json_option
def profile(record_bytes: int, batch_bytes: int, seconds: int, as_json: bool) -> int:
    """Where the microseconds of a produce and of a fetch go, system calls included.

    Starts three brokers, loads them, and looks into leader, follower, producer and consumer from outside (py-spy,
    perf). As root, or where ptrace is allowed.
    """

    progress = ProgressLine(after_s=0.0)
    with tempfile.TemporaryDirectory(prefix="minibroker-profile-") as directory:
        try:
            paths = asyncio.run(profile_hot_paths(Path(directory), record_bytes, batch_bytes, seconds, progress.show))
        except (NoSampler, ClusterFailed) as error:
            raise CommandFailed(str(error)) from None
        finally:
            progress.clear()
    if as_json:
        for path in paths:
            click.echo(msgspec.json.encode(path))
        return 0
    for path in paths:
        print_hot_path(path)
    return 0


def print_hot_path(path: HotPath) -> None:
    """Three tables: layers, functions, system calls."""
    click.secho(f"\n{path.name}", bold=True)
    click.echo(
        f"{path.us_per_request:.0f} us of CPU per request ({path.request}), {path.kernel_us_per_request:.0f} of them in"
        f" the kernel; {path.requests_per_s:.0f} requests/s, {path.mb_per_s:.1f} MB/s,"
        f" {path.cpu_s_per_gb:.2f} CPU s/GB, busy {path.busy:.0%}"
    )
    tracer_note = "not counted" if path.tracer_cost is None else f"x{path.tracer_cost:.2f} while calls were counted"
    click.echo(f"{path.samples} samples; CPU per request x{path.sampler_cost:.2f} while sampled, {tracer_note}\n")
    _print_costs("layer", path.layers)
    _print_costs("function", path.functions)
    if path.system_calls:
        print_table(
            ("system call", "per request", "us each", "us per request", ""),
            [
                (call.name, f"{call.calls:.2f}", f"{call.us_each:.1f}", f"{call.us:.1f}", "waits" if call.waits else "")
                for call in path.system_calls
                if call.calls >= 0.01
            ],
        )


def _print_costs(title: str, costs: list[LayerCost]) -> None:
    rows = [(c.where, f"{c.us:.1f}", f"{c.share * 100:.1f}", f"{c.total_us:.1f}") for c in costs[:ROWS_MAX]]
    print_table((title, "us", "%", "with callees"), rows)
    click.echo()
