"""The `minibroker` command, also `python -m minibroker`: one small file a command, in commands/, imported when run."""

import click

from minibroker import __version__
from minibroker.command_line import LazyGroup, exit_with, run_command_line

COMMANDS = {
    "cluster": ("minibroker.commands.cluster:cluster", "Start, watch, break and stop a cluster on this machine."),
    "doctor": ("minibroker.commands.doctor:doctor", "Check what minibroker needs here; one cure a line."),
    "broker": ("minibroker.commands.broker:broker", "Run one broker in the foreground."),
    "topic": ("minibroker.commands.topic:topic", "Create, list, describe, alter and delete topics."),
    "produce": ("minibroker.commands.produce:produce", "Write the lines of a file or of stdin to a topic."),
    "consume": ("minibroker.commands.consume:consume", "Print a topic's records."),
    "offsets": ("minibroker.commands.offsets:offsets", "Print the first and end offsets of partitions."),
    "replicas": ("minibroker.commands.replicas:replicas", "Print each replica's role, epoch, LEO, HW, lag and ISR."),
    "partition": ("minibroker.commands.partition:partition", "Elect where nobody can without a loss."),
    "top": ("minibroker.commands.top:top", "Watch the replicas live, with each election and truncation."),
    "log": ("minibroker.commands.log:log", "Look into segment files, offline."),
    "verifiable-producer": (
        "minibroker.commands.verifiable_producer:verifiable_producer",
        "Write numbered records; one JSON event a line.",
    ),
    "verifiable-consumer": (
        "minibroker.commands.verifiable_consumer:verifiable_consumer",
        "Read records; one JSON event a line.",
    ),
    "scenario": ("minibroker.commands.scenario:scenario", "Tell a story of replication, step by step."),
    "simulate": (
        "minibroker.commands.simulate:simulate",
        "Run a cluster under faults drawn from a seed, and judge it.",
    ),
    "bench": ("minibroker.commands.bench:bench", "Measure a cluster on this machine, alone or beside a real Kafka."),
    "audit": ("minibroker.commands.audit:audit", "Prove from the files that the replicas agree."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="minibroker")
def minibroker() -> None:
    """A small replicated log: three brokers, leader epochs, in-sync replicas, and an audit that proves them equal.

    Begin with `minibroker cluster up`. Exit codes: 0 fine, 1 could not, 2 usage, 10 asked and found something wrong.
    """


minibroker.result_callback()(exit_with)


def main() -> None:
    """Entry point of the installed command."""
    run_command_line(minibroker)


if __name__ == "__main__":
    main()
