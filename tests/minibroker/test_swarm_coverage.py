"""The report of what a swarm never entered: it looks for all that should be there."""

from fnmatch import fnmatchcase

from minibroker.simulation.swarm.choices import RunChoices
from minibroker.simulation.swarm.loads.load_options import LOAD_ACTS
from minibroker.simulation.swarm.reached import catalogue
from minibroker.swarm_coverage.excused import EXCUSED, Excuse
from minibroker.swarm_coverage.report import name_of, report
from minibroker.swarm_coverage.source_lines import SourceFile, SourceFunction, read_sources
from minibroker.swarm_runs import LOADED_RUNS_TO_SEE_ALL, RUNS_TO_ENTER_ALL, SwarmSummary

SOURCES = (
    SourceFile(
        path="broker/a.py",
        lines=frozenset(range(1, 11)),
        functions=(
            SourceFunction(name="A.run", lines=frozenset({4, 5, 6})),
            SourceFunction(name="A.real", lines=frozenset({8, 9})),
        ),
    ),
    SourceFile(
        path="client/b.py",
        lines=frozenset(range(1, 5)),
        functions=(SourceFunction(name="Producer.send", lines=frozenset({2, 3})),),
    ),
)
REAL = Excuse(reason="a real disk", names=("function broker/a.py:A.r*l",))
WAITING = Excuse(reason="no load does it yet", names=("API FETCH",), is_open=True)


def everything() -> SwarmSummary:
    """A swarm that missed nothing."""
    runs = RUNS_TO_ENTER_ALL
    total = SwarmSummary(runs=runs, loaded_runs=runs, counted=runs)
    total.injected.update(f"load {act}" for act in LOAD_ACTS)
    total.reached.update(catalogue())
    total.lines = {each.path: {*each.lines} for each in read_sources()}
    return total


def never_entered(total: SwarmSummary) -> list[str]:
    return [each for each in total.complaints if "never entered" in each]


def test_function_that_never_ran_is_named_by_its_file() -> None:
    found = report([], {}, {"broker/a.py": {1, 2, 3, 4}, "client/b.py": {1, 2}}, SOURCES, ())
    assert found.grouped == {"broker/a.py": ["A.real"]}
    assert [(each.folder, each.run, each.lines) for each in found.folders][:2] == [("broker", 4, 10), ("client", 2, 4)]
    assert found.total.run == 6


def test_excused_function_is_not_missing_and_its_lines_are_told() -> None:
    found = report([], {}, {"broker/a.py": {4}, "client/b.py": {2}}, SOURCES, (REAL,))
    assert found.never_entered == ()
    assert found.excused == {"function broker/a.py:A.real": "a real disk"}
    assert found.folders[0].excused == 2
    assert found.folders[0].percent == 10
    assert found.folders[0].percent_of_possible == 12.5


def test_what_waits_for_a_load_is_told_apart() -> None:
    found = report(["API FETCH"], {}, {"broker/a.py": {4}, "client/b.py": {2}}, SOURCES, (REAL, WAITING))
    assert found.never_entered == ()
    assert {*found.excused} == {"API FETCH", "function broker/a.py:A.real"}
    assert found.waiting == ("API FETCH",)
    assert report(["API FETCH"], {"API FETCH": 3}, None, SOURCES, (REAL, WAITING)).needless == ("API FETCH",)


def test_excuse_for_what_is_rare_is_not_needless() -> None:
    rare = Excuse(is_rare=True, reason="one run in a hundred", names=("API FETCH",))
    assert report(["API FETCH"], {"API FETCH": 3}, None, SOURCES, (rare,)).needless == ()
    assert report(["API FETCH"], {}, None, SOURCES, (rare,)).never_entered == ()


def test_call_of_a_client_has_its_public_name() -> None:
    found = report([], {}, {"broker/a.py": {4, 8}}, SOURCES, ())
    assert found.grouped == {"call": ["Producer.send"]}


def test_every_public_call_of_the_clients_has_a_name() -> None:
    calls = {name_of(file, each) for file in read_sources() for each in file.functions}
    for name in ("Producer.send_many", "Producer.flush", "Consumer.seek", "Consumer.__anext__", "AdminClient.offsets"):
        assert f"call {name}" in calls
    assert "call Producer._flush" not in calls


def test_without_a_trace_functions_are_not_judged() -> None:
    found = report(["API FETCH", "event x"], {"event x": 1}, None, SOURCES, ())
    assert found.never_entered == ("API FETCH",)
    assert found.folders == ()


def test_api_or_setting_that_no_run_drew_fails_the_swarm() -> None:
    total = everything()
    assert never_entered(total) == []
    for name in ("API LIST_OFFSETS", "topic setting retention.ms", "setting log.roll.ms", "event replica_truncated"):
        total = everything()
        del total.reached[name]
        kind, _, what = name.rpartition(" ")
        assert never_entered(total) == [f"never entered in {RUNS_TO_ENTER_ALL} runs: {kind}: {what}"]


def test_function_that_no_run_entered_fails_the_swarm() -> None:
    total = everything()
    total.lines["client/producer/producer.py"] = set()
    assert any("call: Producer.__init__" in each for each in never_entered(total))
    total = everything()
    total.lines["controller/core/election.py"] = set()
    assert any("controller/core/election.py:" in each for each in never_entered(total))


def test_swarm_that_is_small_or_leaves_out_loads_or_disk_faults_is_not_judged() -> None:
    few, without, beyond = RUNS_TO_ENTER_ALL - 1, RunChoices(disk_faults=False), RunChoices(beyond=True)
    for name, value in (("loaded_runs", few), ("choices", without), ("choices", beyond)):
        total = everything()
        del total.reached["API LIST_OFFSETS"]
        setattr(total, name, value)
        assert never_entered(total) == []


def test_every_excuse_covers_something_that_exists() -> None:
    names = [*catalogue(), *(name_of(file, each) for file in read_sources() for each in file.functions)]
    likes = [like for each in EXCUSED for like in each.names]
    assert [like for like in likes if not any(fnmatchcase(name, like) for name in names)] == []
    assert len(likes) == len({*likes})


def test_what_no_load_did_is_missing_once_enough_runs_had_loads() -> None:
    total = everything()
    del total.injected["load send"]
    assert "load send" in total.never_seen
    total.loaded_runs = LOADED_RUNS_TO_SEE_ALL - 1
    assert "load send" not in total.never_seen
