"""Which places are mutated, which are left alone, and that an occurrence means the same to cosmic-ray."""

from tests.mutants.patching import ROOT
from tests.mutation_score.population import Site, module_paths, mutated_source, sites

SOURCE = '''\
"""More than 1 word."""
LIMIT = 5

def ready(count: int = 1, name: str | None = None) -> int | bool:
    value: int | None = None
    if count > LIMIT:
        wake(count)
    logger.info("%d", 7)
    return f"{count + 1}" == name
'''


def changed_lines(source: str, site: Site) -> list[str]:
    """The mutated forms of the site's first line."""
    texts = [mutated_source(source, operator, occurrence) for operator, occurrence in site.mutations]
    return [text.splitlines()[site.start[0] - 1].strip() for text in texts if text is not None]


def test_annotations_texts_and_log_calls_are_left_alone() -> None:
    found = [(site.start[0], site.function) for site in sites("tiny", SOURCE)]
    assert found == [(2, ""), (4, ""), (6, "ready"), (6, "ready"), (7, "ready"), (9, "ready")]


def test_numbers_that_were_chosen_among_many_are_left_alone() -> None:
    constants = "PAUSE_MS = 1_000\nSIZE_BYTES = 64 * 1024\nENDLESS = 1 << 63\nRATE = 0.5\nMASK = 0xFF\nBITS = 0b11111\n"
    source = constants + "limit = 50\nclass Code(Enum):\n    FULL = 56\n"
    found = [
        (site.start[0], "number" if site.mutations[0][0] == "NumberReplacer" else "") for site in sites("tiny", source)
    ]
    assert found == [(2, ""), (3, "number"), (3, ""), *((line, "number") for line in (4, 5, 6, 7, 9))]


def test_each_site_has_the_mutations_of_its_own_text() -> None:
    limit, default, condition, comparison, call, equality = sites("tiny", SOURCE)
    assert changed_lines(SOURCE, limit) == ["LIMIT = 6", "LIMIT = 4"]
    assert "count: int = 2" in changed_lines(SOURCE, default)[0]
    assert changed_lines(SOURCE, condition) == ["if not count > LIMIT:"]
    assert "if count >= LIMIT:" in changed_lines(SOURCE, comparison)
    assert changed_lines(SOURCE, call) == ["pass"]
    assert 'return f"{count + 1}" != name' in changed_lines(SOURCE, equality)


STATE = """\
class Door:
    def __init__(self):
        self.open = False

    def close(self):
        count = 1
        self.open = False
        try:
            self.count += count
        except KeyError:
            del self.seen[1]
        finally:
            self.seen[2]: int = 3
            wake()
"""


def test_changes_of_state_are_left_out_one_by_one_but_not_the_first() -> None:
    found = [site for site in sites("tiny", STATE) if {"RemoveStateChange", "RemoveCall"} & dict(site.mutations).keys()]
    assert [site.start[0] for site in found] == [7, 9, 11, 14]
    assert changed_lines(STATE, found[2]) == ["pass"]


HANDLERS = """\
try:
    wake()
except asyncio.CancelledError:
    pass
except (OSError, codec.Refused, a.b.C) as error:
    pass
except (KeyError):
    pass
"""


def test_each_exception_of_a_handler_is_replaced_dotted_or_not() -> None:
    found = [site for site in sites("tiny", HANDLERS) if "ExceptionReplacer" in dict(site.mutations)]
    assert [changed_lines(HANDLERS, site)[0] for site in found] == [
        "except CosmicRayTestingException:",
        "except (CosmicRayTestingException, codec.Refused, a.b.C) as error:",
        "except (OSError, CosmicRayTestingException, a.b.C) as error:",
        "except (OSError, codec.Refused, CosmicRayTestingException) as error:",
        "except (CosmicRayTestingException):",
    ]


def test_what_stands_in_a_handler_is_told_apart() -> None:
    found = {site.start[0]: site.in_handler for site in sites("tiny", STATE)}
    assert [line for line, is_in_handler in found.items() if is_in_handler] == [11, 13, 14]
    nested = "try:\n    f(1)\nexcept E:\n    if x:\n        g(2)\nelse:\n    h(3)\n"
    calls = [(site.start[0], site.in_handler) for site in sites("tiny", nested) if "RemoveCall" in dict(site.mutations)]
    assert calls == [(2, False), (5, True), (7, False)]


def test_what_runs_at_import_names_what_it_defines() -> None:
    found = {site.start[0]: (site.names, site.first_line, site.last_line) for site in sites("tiny", SOURCE)}
    assert found[2] == (("LIMIT",), 2, 2)
    assert found[4][0] == ("ready",)
    assert found[6] == ((), 6, 6)


def test_what_runs_at_import_in_a_class_names_the_class() -> None:
    source = "class A:\n    x: int = 1\n    def f(self, y=2):\n        return y + 3\nZ = 4\n"
    assert [(site.start[0], site.owner) for site in sites("tiny", source)] == [
        (2, "A"),
        (3, "A"),
        (4, ""),
        (4, ""),
        (5, ""),
    ]


def test_a_statement_of_several_lines_is_one_site_of_all_its_lines() -> None:
    [site] = sites("tiny", "def f(x):\n    return (\n        x\n        + x\n    )\n")
    assert (site.first_line, site.last_line, site.start[0]) == (2, 5, 4)


def test_a_mutation_that_is_no_program_or_the_same_one_is_none() -> None:
    source = "def f(a, *, b, **c):\n    for x in []:\n        g(**c)\n"
    [loop, call] = sites("tiny", source)
    assert changed_lines(source, loop) == []
    assert changed_lines(source, call) == ["pass"]
    assert mutated_source("def f(*, a): pass\n", "ReplaceBinaryOperator_Mul_Add", 0) is None


def test_every_folder_of_the_code_is_there() -> None:
    modules = module_paths(ROOT)
    assert {"broker.log.recovery", "client.consumer.cursor", "controller.core.steps", "protocol.ids"} <= modules.keys()
    assert not any(name.endswith("__init__") for name in modules)
