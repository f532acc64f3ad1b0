"""The `minibroker` command, also `python -m minibroker`. Each command is a file of commands/, imported when it runs."""

if __name__ == "__main__":
    from minibroker.early_interrupts import end_quietly

    end_quietly()

import click

from minibroker import __version__
from minibroker.command_line import LazyGroup, exit_with, run_command_line
from minibroker.early_interrupts import raise_again

COMMANDS = {
    "cluster": ("minibroker.commands.cluster:cluster", "Start, watch, break and stop a cluster on this machine."),
    "zookeeper": ("minibroker.commands.zookeeper:zookeeper", "Install the ZooKeeper that `cluster up` starts."),
    "doctor": ("minibroker.commands.doctor:doctor", "Check this machine and cluster; one cure per problem."),
    "broker": ("minibroker.commands.broker:broker", "Run one broker in the foreground."),
    "topic": ("minibroker.commands.topic:topic", "Create, list, describe, alter and delete topics."),
    "produce": ("minibroker.commands.produce:produce", "Write the lines of a file or of stdin to a topic."),
    "producer": ("minibroker.commands.producer:producer", "List and delete the names of producers."),
    "consume": ("minibroker.commands.consume:consume", "Print a topic's records."),
    "offsets": ("minibroker.commands.offsets:offsets", "Print the first and end offsets of partitions."),
    "replicas": ("minibroker.commands.replicas:replicas", "Print each replica's role, epoch, LEO, HW, lag and ISR."),
    "partition": ("minibroker.commands.partition:partition", "Elect leaders where an election may lose records."),
    "events": ("minibroker.commands.events:events", "Follow what brokers report: elections, ISR changes, failures."),
    "top": ("minibroker.commands.top:top", "Watch the replicas live, with each election and truncation."),
    "log": ("minibroker.commands.log:log", "Inspect and repair segment files, offline."),
    "verifiable-producer": (
        "minibroker.commands.verifiable_producer:verifiable_producer",
        "Write numbered records; one JSON event per line.",
    ),
    "verifiable-consumer": (
        "minibroker.commands.verifiable_consumer:verifiable_consumer",
        "Read records; one JSON event per line.",
    ),
    "scenario": ("minibroker.commands.scenario:scenario", "Run a replication scenario, step by step."),
    "simulate": (
        "minibroker.commands.simulate:simulate",
        "Run a cluster under faults drawn from a seed, and check it.",
    ),
    "bench": ("minibroker.commands.bench:bench", "Measure a cluster on this machine, alone or next to a real Kafka."),
    "chaos": ("minibroker.commands.chaos:chaos", "Break a real cluster under load, and judge it."),
    "audit": ("minibroker.commands.audit:audit", "Prove from the files that the replicas agree."),
}


OF_COMMANDS = frozenset({"--json", "--timeout", "-b", "--bootstrap-servers", "-t", "--topic", "--data-dir"})


class OutermostGroup(LazyGroup):
    """Tells where an option goes that stands in front of the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in OF_COMMANDS:
                raise
            raise click.UsageError(
                f"{error.option_name} goes behind the command: minibroker COMMAND {error.option_name}", ctx
            ) from None


@click.group(cls=OutermostGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="minibroker")
def minibroker() -> None:
    """A small replicated log: three brokers, leader epochs, in-sync replicas, and an audit that proves them equal.

    Begin with `minibroker cluster up`. Exit codes: 0 success, 1 failure, 2 usage error, 10 the
    check ran and found a problem.
    """


minibroker.result_callback()(exit_with)


def main() -> None:
    """Run the command that the arguments name."""
    raise_again()
    run_command_line(minibroker)


if __name__ == "__main__":
    main()
