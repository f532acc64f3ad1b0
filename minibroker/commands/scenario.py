"""`minibroker scenario list` and `scenario run`: replication scenarios, run step by step."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    LazyGroup,
    ProgressLine,
    WrongUsage,
    has_colour,
    json_option,
    print_json,
    print_table,
)
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.scenarios.staging.played_variant import PlayedVariant
    from minibroker.scenarios.staging.scenario import Scenario, TruncationRule, Variant
    from minibroker.scenarios.staging.stage import ScenarioStep

COMMANDS = {
    "list": ("minibroker.commands.scenario:list_scenarios", "List the scenarios."),
    "run": ("minibroker.commands.scenario:run", "Run a scenario and audit its disks."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def scenario() -> None:
    """Run a replication scenario, step by step.

    The real broker, controller and client run in one process, in virtual time, with control over every message.
    docs/scenarios/ has a page for each scenario.
    """


@click.command("list")
@json_option
def list_scenarios(as_json: bool) -> int:
    """List the scenarios.

    TRUNCATION: 'both' where the rule of truncation decides how it ends (run it with both), else 'no effect'.
    """
    from minibroker.scenarios.catalogue import all_scenarios

    scenarios = all_scenarios()
    if as_json:
        for each in scenarios:
            rules = [rule.value for rule in each.rules]
            variants = [
                {"name": variant.name, "title": variant.title, "live": variant.live} for variant in each.variants
            ]
            print_json({"name": each.name, "title": each.title, "truncation": rules, "variants": variants})
        return EXIT_FINE
    rows = [
        (
            each.name,
            "both" if len(each.rules) > 1 else "no effect",
            "yes" if any(variant.live for variant in each.variants) else "",
            each.title,
        )
        for each in scenarios
    ]
    print_table(("NAME", "TRUNCATION", "LIVE", "SCENARIO"), rows)
    return EXIT_FINE


@click.command()
@click.argument("name")
@click.option(
    "--truncation",
    type=click.Choice(["leader-epoch", "high-watermark"]),
    default="leader-epoch",
    show_default=True,
    help="How a new follower truncates its log; high-watermark is Kafka's way before 0.11.",
)
@click.option(
    "--lag-rule",
    type=click.Choice(["messages", "time"]),
    help="burst-lag: what makes a follower out of sync. [default: first messages, then time]",
)
@click.option("--live", is_flag=True, help="On a real ZooKeeper and real broker processes; needs Java.")
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Where the audit of a live scenario runs: in this process, or on Spark.",
)
@click.option("--step", "by_step", is_flag=True, help="Wait for a key after each step.")
@json_option
@read_or_not()
def run(name: str, truncation: str, lag_rule: str | None, live: bool, engine: str, by_step: bool, as_json: bool) -> int:
    """Run a scenario and audit its disks.

    Exit code 0 if it ended as expected under this rule, expected losses included; 10 if not.
    """
    from minibroker.scenarios.catalogue import UnknownScenario, find_scenario
    from minibroker.scenarios.staging.scenario import TruncationRule

    try:
        found = find_scenario(name)
    except UnknownScenario as error:
        raise WrongUsage(str(error)) from None
    rule = TruncationRule(truncation)
    if rule not in found.rules:
        rules = ", ".join(each.value for each in found.rules)
        raise WrongUsage(f"{name} runs with --truncation {rules}: the rule makes no difference to it")
    variants = [variant for variant in found.variants if lag_rule in (None, variant.name)]
    if not variants:
        raise WrongUsage(f"--lag-rule belongs to burst-lag; leave it out for {name}")
    if live:
        variants = [variant for variant in variants if variant.live]
        if not variants:
            raise WrongUsage(f"{name} needs a simulation: run it without --live")
    reached = [_play(found, variant, rule, engine if live else None, by_step, as_json) for variant in variants]
    return EXIT_FINE if all(reached) else EXIT_FOUND_WRONG


def _play(
    played: "Scenario",
    variant: "Variant",
    rule: "TruncationRule",
    live_engine: str | None,
    by_step: bool,
    as_json: bool,
) -> bool:
    from minibroker.scenarios.staging import slides
    from minibroker.scenarios.staging.played_variant import play_variant

    in_colour = sys.stdout.isatty() and has_colour()
    progress = ProgressLine()

    def show(step: "ScenarioStep") -> None:
        progress.clear()
        if as_json:
            print_json(slides.step_as_json(step))
        else:
            slides.print_slide(step, in_colour=in_colour)
        if by_step and live_engine is None:
            wait_for_key()

    def wait_for_key() -> None:
        progress.clear()
        if sys.stdin.isatty():  # not click.pause, which treats Ctrl-C as a key
            click.echo("-- press a key for the next step --", err=True, nl=False)
            click.getchar()
            click.echo("\r\x1b[K", err=True, nl=False)

    if as_json:
        print_json(slides.variant_as_json(played, variant, rule))
    else:
        slides.print_heading(played, variant, rule, in_colour=in_colour)
    if live_engine is None:
        result = play_variant(variant, rule, show)
    else:
        result = _play_live(variant, rule, show, live_engine, progress, wait_for_key if by_step else None)
    if as_json:
        print_json(slides.ending_as_json(result))
    else:
        slides.print_ending(result)
    return result.reached_its_end


def _play_live(
    variant: "Variant",
    rule: "TruncationRule",
    show: Callable[["ScenarioStep"], None],
    engine: str,
    progress: ProgressLine,
    pause: Callable[[], None] | None,
) -> "PlayedVariant":
    from minibroker.scenarios.live.played_variant import CANNOT_PLAY, play_variant_live

    try:
        return play_variant_live(variant, rule, show, engine=engine, report=progress.show, pause=pause)
    except CANNOT_PLAY as error:
        raise CommandFailed(str(error)) from None
    finally:
        progress.clear()
