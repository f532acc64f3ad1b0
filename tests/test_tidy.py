"""Applies the house rules. The rules are in tests/tidy/, with their reasons."""

from __future__ import annotations

import gc
import re
import tomllib
from collections.abc import Callable, Iterator

import pytest

from tests.tidy.cycles import check_cycles, check_type_checking
from tests.tidy.docstrings import check_docstrings
from tests.tidy.documents import check_files, check_identifiers, check_links
from tests.tidy.hazards import (
    check_conditional_writes,
    check_hash_order,
    check_iteration,
    check_patching,
    check_sleep,
)
from tests.tidy.imports import check_imports
from tests.tidy.purity import check_ports, check_purity
from tests.tidy.references import Page, check_references
from tests.tidy.replica_state import check_replica_state
from tests.tidy.shape import check_definitions, check_finished, check_name, check_size
from tests.tidy.source import CODE_FOLDERS, PACKAGES, ROOT, SourceFile, forget_files, project_files, text_files
from tests.tidy.vocabulary import ALLOWED_IN, check_class_names, check_words

RULES: list[Callable[[SourceFile], list[str]]] = [
    check_imports,
    check_type_checking,
    check_purity,
    check_ports,
    check_hash_order,
    check_iteration,
    check_conditional_writes,
    check_sleep,
    check_patching,
    check_replica_state,
    check_size,
    check_name,
    check_definitions,
    check_finished,
]
REFERENCES_ARE_FREE_IN = ("CHANGELOG.md", "tests/tidy/references.py", "tests/tidy/test_rules.py")
"""History, and examples of what the rule finds."""
# Written so that this file does not match itself.
ELSEWHERE = re.compile(r"(?<![\w/-])(?:\.\./)?" + "shared" + r"/|/" + "work/|/" + "root/")


def fail_with(problems: list[str]) -> None:
    if problems:
        pytest.fail(f"{len(problems)} found\n" + "\n".join(problems), pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def _without_collections() -> Iterator[None]:
    """The trees of all files are two million objects. Each collection would search them, here and in all tests that
    follow in this process."""
    gc.disable()
    yield
    gc.enable()
    forget_files()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removeprefix("check_"))
def test_rule_holds(rule: Callable[[SourceFile], list[str]]) -> None:
    fail_with([problem for file in project_files() for problem in rule(file)])


def test_no_module_imports_itself_through_others() -> None:
    fail_with(check_cycles(project_files()))


def test_links_of_documents_resolve() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    fail_with([problem for page in sorted(pages) for problem in check_links(page, ROOT)])


def test_names_in_documents_exist() -> None:
    code = (path for path in text_files() if path.suffix != ".md")
    names = frozenset(word for path in code for word in re.findall(r"[A-Za-z_]\w*", path.read_text(errors="replace")))
    files = frozenset(path.stem for path in text_files())
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    history = {ROOT / "CHANGELOG.md"}
    fail_with([found for page in sorted({*pages} - history) for found in check_identifiers(page, ROOT, names | files)])


def test_files_named_in_documents_exist() -> None:
    files = frozenset(path.relative_to(ROOT).as_posix() for path in text_files())
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"}
    fail_with([found for page in sorted(pages) for found in check_files(page, ROOT, files)])


def test_names_in_docstrings_exist() -> None:
    fail_with(check_docstrings(project_files()))


def test_references_to_the_replication_rules_resolve() -> None:
    rules = Page.read((ROOT / "docs" / "REPLICATION.md").read_text())
    assert rules.sections and rules.rules and rules.invariants
    paths = [path.relative_to(ROOT).as_posix() for path in text_files() if path.suffix in (".py", ".md", ".txt")]
    seen = [path for path in paths if path not in REFERENCES_ARE_FREE_IN]
    fail_with([found for path in seen for found in check_references(path, (ROOT / path).read_text(), rules)])


def test_no_file_refers_to_a_place_outside_the_project() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if ELSEWHERE.search(line)
    ]
    fail_with(problems)


def test_no_private_word_stands_where_the_field_has_a_term() -> None:
    paths = [path.relative_to(ROOT) for path in text_files() if path.suffix in (".py", ".md")]
    seen = [path for path in paths if path.as_posix() not in ALLOWED_IN]
    fail_with([problem for path in seen for problem in check_words(path, (ROOT / path).read_text(errors="replace"))])


def test_public_classes_of_the_product_have_different_names() -> None:
    fail_with(check_class_names(file for file in project_files() if file.folder != "tests"))


def test_every_folder_of_code_is_a_package() -> None:
    folders = {(ROOT / file.path).parent for file in project_files()}
    without = [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()]
    fail_with([f"{folder.relative_to(ROOT)}: needs an __init__.py" for folder in without])


def test_tests_mirror_the_folders() -> None:
    known = {*CODE_FOLDERS, "docs", "docker", "mutants", "mutation_score", "system", "tidy"}
    inside = {file.path.split("/")[1] for file in project_files("tests") if file.path.count("/") > 1}
    fail_with([f"tests/{name}: no folder of that name next to tests/" for name in sorted(inside - known)])


def test_links_give_each_folder_its_import_name() -> None:
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "minibroker").iterdir() if path.is_symlink()}
    assert {name: links.get(name) for name in PACKAGES} == {name: f"../{name}" for name in PACKAGES}


def test_images_are_built_from_every_linked_folder() -> None:
    kept = (ROOT / ".dockerignore").read_text().split()
    linked = [path.name for path in (ROOT / "minibroker").iterdir() if path.is_symlink()]
    assert [name for name in sorted(linked) if f"!{name}" not in kept] == [], "add them to .dockerignore"


def test_build_backend_is_the_locked_one() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        required = tomllib.load(file)["build-system"]["requires"]
    locked = (ROOT / "requirements" / "build.lock").read_text()
    assert all(f"{name} " in locked for name in required), "run `make lock`"


def test_every_dependency_is_locked_and_no_registry_is_named() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    names = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    locked = (ROOT / "requirements" / "dev.lock").read_text()
    bare = [re.split(r"[<>=~! ]", name)[0] for name in names]
    assert [name for name in bare if not re.search(rf"^{name}==", locked, re.MULTILINE)] == [], "run `make lock`"
    assert "://" not in locked
