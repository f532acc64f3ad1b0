"""What is kept between runs, and what the report makes of it."""

from pathlib import Path

import pytest

from tests.mutation_score.measuring import KillerReach
from tests.mutation_score.population import Site
from tests.mutation_score.reach import Reach
from tests.mutation_score.report import STRICT_ROW, scores, scores_text
from tests.mutation_score.results import Result, Results, Stage
from tests.mutation_score.sample import DrawnMutant
from tests.mutation_score.survivors import Survivor, SurvivorClass, load_survivors


def drawn(name: str, module: str = "client.retry", line: int = 10, names: tuple[str, ...] = ()) -> DrawnMutant:
    site = Site(module=module, function="f", first_line=line, last_line=line, start=(line, 0), names=names)
    return DrawnMutant(name=name, site=site, operator="AddNot", occurrence=0, before="if a:", after="if not a:")


def result(name: str, killer: str | None, stage: Stage = "tests", world: str = "w1") -> Result:
    return Result(
        name=name,
        stage=stage,
        module_digest="m1",
        world_digest=world,
        killer=killer,
        killers=3,
        place="client/retry.py:10 f",
        change="if a: -> if not a:",
    )


def reopened(path: Path, world: str) -> Results:
    return Results(path, {"tests": world, "seeds": world})


def test_a_killed_mutant_holds_until_its_module_changes_and_a_survivor_until_anything_does(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "results.jsonl"
    results = reopened(path, "w1")
    results.add(result("killed", "tests/x.py::test_y"))
    results.add(result("survivor", None))
    for world, survives in (("w1", True), ("w2", False)):
        later = reopened(path, world)
        assert later.find("killed", "tests", "m1") == result("killed", "tests/x.py::test_y")
        assert later.find("killed", "tests", "m2") is None
        assert (later.find("survivor", "tests", "m1") is not None) is survives
        assert later.find("survivor", "seeds", "m1") is None


def test_a_half_written_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    reopened(path, "w1").add(result("a", None))
    path.write_bytes(path.read_bytes() + b'{"name":"b"')
    assert reopened(path, "w1").find("a", "tests", "m1") is not None


def test_the_score_leaves_out_equivalent_mutants() -> None:
    tried = [
        (drawn("a"), result("a", "tests/x.py::test_y")),
        (drawn("b"), result("b", "seed:3", stage="seeds")),
        (drawn("c"), result("c", "timeout")),
        (drawn("d"), result("d", None)),
        (drawn("e"), result("e", None)),
        (drawn("f", module="controller.core.steps"), result("f", None)),
    ]
    equivalent = Survivor(
        name="d", where="client.retry f", change="", sorted_as=SurvivorClass.EQUIVALENT, reason="both orders are one"
    )
    rows = {row.folder: row for row in scores(tried, {"d": equivalent})}
    client = rows["client"]
    assert (client.tried, client.by_tests, client.by_seeds, client.by_time) == (5, 1, 1, 1)
    assert (client.equivalent, client.unsorted, client.score) == (1, 1, 0.75)
    assert rows["all"].score == 0.6
    assert rows[STRICT_ROW].score == 0.0
    assert "75% ± 43% below the goal" in scores_text([client])


def test_killers_are_those_that_execute_the_line_fastest_first() -> None:
    def killer(name: str, line: int, cpu_seconds: float, passed: bool = True) -> KillerReach:
        lines = {"client.retry": f"{1 << line:x}"}
        return KillerReach(killer=name, file="x", passed=passed, cpu_seconds=cpu_seconds, lines=lines)

    reach = Reach(
        [
            killer("slow", 10, 5.0),
            killer("fast", 10, 0.1),
            killer("elsewhere", 11, 0.1),
            killer("failing", 10, 0.1, passed=False),
            killer("too slow", 10, 60.0),
            killer("seed:1", 10, 1.0),
        ]
    )
    assert [each.killer for each in reach.tests(drawn("a"))] == ["fast", "slow"]
    assert [each.killer for each in reach.seeds(drawn("a"))] == ["seed:1"]
    assert [each.killer for each in reach.failed] == ["failing"]


def test_a_line_that_no_trace_shows_is_tried_on_the_tests_of_its_function() -> None:
    lines = Path("controller/core/steps.py").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines, start=1) if line.startswith("def step("))
    inside = KillerReach(killer="inside", file="x", lines={"controller.core.steps": f"{1 << first + 2:x}"})
    outside = KillerReach(killer="outside", file="x", lines={"controller.core.steps": f"{1 << first - 2:x}"})
    site = Site(module="controller.core.steps", function="step", first_line=1, last_line=1, start=(1, 0))
    mutant = DrawnMutant(name="a", site=site, operator="AddNot", occurrence=0, before="", after="")
    assert [each.killer for each in Reach([inside, outside]).tests(mutant)] == ["inside"]


def test_a_function_that_only_imports_call_is_tried_on_the_users_of_what_it_makes() -> None:
    """The row of the table of settings was left out, and no test was tried on it, though dozens would fail."""
    module, function = "broker.configuration.dynamic_config", "_read_table"
    lines = Path("broker/configuration/dynamic_config.py").read_text(encoding="utf-8").splitlines()
    used = next(number for number, line in enumerate(lines, start=1) if "SETTINGS.get(" in line)
    user = KillerReach(killer="user", file="x", lines={module: f"{1 << used:x}"})
    other = KillerReach(killer="other", file="x", lines={module: f"{1 << used - 1:x}"})
    site = Site(module="broker.configuration.settings", function=function, first_line=1, last_line=1, start=(1, 0))
    mutant = DrawnMutant(name="a", site=site, operator="RemoveStateChange", occurrence=0, before="", after="")
    assert [each.killer for each in Reach([user, other]).tests(mutant)] == ["user"]


@pytest.mark.parametrize(
    ("mutated", "name", "module", "use"),
    [
        ("client.limits", "step", "controller.core.steps", "def step("),
        ("protocol.wire.codec", "IncomingFrame", "protocol.wire.codec", "_request_frames.decode("),
    ],
    ids=["a constant where its name is used", "a message where the decoder made of it is used"],
)
def test_a_mutant_of_a_definition_is_noticed_by_its_users(mutated: str, name: str, module: str, use: str) -> None:
    """One of a message survived once: no line of a function names the message itself."""
    lines = Path(f"{module.replace('.', '/')}.py").read_text(encoding="utf-8").splitlines()
    used = next(number for number, line in enumerate(lines, start=1) if use in line)
    user = KillerReach(killer="user", file="x", lines={module: f"{1 << used:x}"})
    other = KillerReach(killer="other", file="x", lines={module: f"{1 << used - 1:x}"})
    mutant = drawn("a", module=mutated, line=1, names=(name,))
    assert [each.killer for each in Reach([user, other]).tests(mutant)] == ["user"]


@pytest.mark.parametrize(
    ("owner", "names"), [("BrokerCounters", ("bytes_in",)), ("", ("TITLE_OF_NOTHING", "BrokerCounters"))]
)
def test_a_mutant_in_a_class_is_tried_on_tests_that_name_the_class(owner: str, names: tuple[str, ...]) -> None:
    """One of a default survived, because its test reads all fields of the class at once."""

    def killer(name: str, file: str, cpu_seconds: float = 0.1) -> KillerReach:
        return KillerReach(killer=name, file=file, cpu_seconds=cpu_seconds)

    naming, silent, elsewhere = (
        "tests/broker/test_gauges.py",
        "tests/broker/test_alarms.py",
        "tests/client/test_admin.py",
    )
    killers = [killer("all", naming), killer("slow", naming, 60.0), killer("other", silent), killer("far", elsewhere)]
    site = Site(
        module="broker.monitoring.metrics",
        function="",
        first_line=1,
        last_line=1,
        start=(1, 0),
        names=names,
        owner=owner,
    )
    mutant = DrawnMutant(name="a", site=site, operator="NumberReplacer", occurrence=0, before="", after="")
    assert [each.killer for each in Reach(killers).tests(mutant)] == ["all"]


def test_every_sorted_survivor_has_a_reason() -> None:
    assert all(each.reason and each.where and each.change for each in load_survivors().values())
