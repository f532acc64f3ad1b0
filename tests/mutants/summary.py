"""The summary of a replay or search: which mutants are caught by their records, which anew, and which by nothing."""

import msgspec

from tests.mutants.replay import SECONDS_ANEW_MAX, SEEDS_ANEW_MAX, Outcome, Verdict, is_seed


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """By the mutants' names."""

    caught_by_record: list[str]
    caught_anew: list[str]
    """By nothing but a seed that is not recorded."""
    not_caught: list[str]
    new_seeds: dict[str, str]
    """mutant: a seed found by a search, in place of a recorded one that is stale or missing."""
    stale: dict[str, list[str]]
    """mutant: recorded runs that catch it no longer."""
    not_clean: dict[str, str]
    """As `Replay.not_clean`."""


def summarize(verdicts: list[Verdict], not_clean: dict[str, str]) -> Summary:
    """Names in the order of the verdicts."""

    def named(outcome: Outcome) -> list[str]:
        return [each.name for each in verdicts if each.outcome is outcome]

    return Summary(
        caught_by_record=named(Outcome.RECORD),
        caught_anew=named(Outcome.ANEW),
        not_caught=named(Outcome.NOT),
        new_seeds={each.name: each.anew.run for each in verdicts if each.anew is not None and each.anew.is_caught},
        stale={each.name: each.stale for each in verdicts if each.stale},
        not_clean=not_clean,
    )


def summary_text(summary: Summary, is_recorded: bool) -> str:
    """For people: counts first, then a line for each change."""
    by_record, anew, missed = (len(x) for x in (summary.caught_by_record, summary.caught_anew, summary.not_caught))
    lines = [
        f"{by_record + anew + missed} mutants: {by_record} caught by their records, {anew} caught anew, {missed} not caught"
    ]
    for name, runs in summary.stale.items():
        for run in runs:
            lines.append(f"  {name}: {run} catches it no longer{_instead(summary, name, run)}")
    lines += [f"  {name}: {run} catches it" for name, run in summary.new_seeds.items() if name not in summary.stale]
    lines += [f"  {run} is not clean without a mutant: {text}" for run, text in summary.not_clean.items()]
    if (summary.stale or summary.new_seeds) and not is_recorded:
        lines.append("`replay --record` writes that to caught.json")
    if summary.not_caught:
        lines.append(f"not caught: {' '.join(summary.not_caught)}")
    return "\n".join(lines)


def _instead(summary: Summary, name: str, run: str) -> str:
    if not is_seed(run):
        return ""
    if name in summary.new_seeds:
        return f", {summary.new_seeds[name]} does"
    return f", and no other within {SEEDS_ANEW_MAX} seeds and {SECONDS_ANEW_MAX:.0f} s"
