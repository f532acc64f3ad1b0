"""`make test` runs the fast commands of the pages; `make docs-all` (DOCS_COMMANDS=all) the slow and Docker ones too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.commands import KINDS, ROOT, SECONDS_MAX, blocks, of_kind, pages, run
from tests.system.compose_cluster import why_no_engine

PAGES = [page.relative_to(ROOT).as_posix() for page in pages()]


def run_page(name: str, kind: str, scratch: Path) -> None:
    page = ROOT / name
    problem = run(of_kind(blocks(page, page.read_text()), kind), scratch)
    if problem:
        pytest.fail(f"{name}, its {kind} commands: {problem}", pytrace=False)


def with_kind(kind: str) -> list[str]:
    """The pages that have such commands, so that a page without them is not reported as skipped."""
    return [name for name in PAGES if any(b.kind == kind for b in blocks(ROOT / name, (ROOT / name).read_text()))]


@pytest.mark.parametrize("name", PAGES)
def test_every_shell_block_has_a_tag_for_how_it_is_tested(name: str) -> None:
    page = ROOT / name
    untagged = [f"{block.where}: ```sh" for block in blocks(page, page.read_text()) if not block.kind]
    how = f"write ```sh and one of {', '.join(KINDS)} (and `root` to run it in the project's folder)"
    assert untagged == [], how


@pytest.mark.system
@pytest.mark.timeout(SECONDS_MAX["fast"] + 60)
@pytest.mark.parametrize("name", with_kind("fast"))
def test_fast_commands_work(name: str, tmp_path: Path) -> None:
    run_page(name, "fast", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_MAX["slow"] + 60)
@pytest.mark.skipif(os.environ.get("DOCS_COMMANDS") != "all", reason="slow commands of the pages: make docs-all")
@pytest.mark.parametrize("name", with_kind("slow"))
def test_slow_commands_work(name: str, tmp_path: Path) -> None:
    run_page(name, "slow", tmp_path)


@pytest.mark.docker
@pytest.mark.timeout(SECONDS_MAX["docker"] + 60)
@pytest.mark.skipif(os.environ.get("DOCS_COMMANDS") != "all", reason="Docker's commands of the pages: make docs-all")
@pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine() or "an engine runs")
@pytest.mark.parametrize("name", with_kind("docker"))
def test_docker_commands_work(name: str, tmp_path: Path) -> None:
    run_page(name, "docker", tmp_path)


def test_blocks_run_in_order_in_one_folder(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    text = (
        "```sh fast\necho one > file\n```\ntext\n```sh fast\ntest $(cat file) = one\n```\n```text\nnot a command\n```\n"
    )
    assert run(blocks(page, text), tmp_path) is None


def test_a_slow_block_finds_the_files_of_the_fast_blocks_before_it(tmp_path: Path) -> None:
    text = "```sh fast\necho one > file\n```\n```sh docker\nfalse\n```\n```sh slow\ntest $(cat file) = one\n```\n"
    assert run(of_kind(blocks(ROOT / "README.md", text), "slow"), tmp_path) is None


def test_failing_block_is_named(tmp_path: Path) -> None:
    found = blocks(ROOT / "README.md", "```sh fast\ntrue\n```\n\n```sh fast\necho lost >&2; false | cat\n```\n")
    problem = run(found, tmp_path)
    assert problem is not None
    assert "exit code 1" in problem and "README.md:6" in problem and "lost" in problem
