"""What the documents say is true: their commands and code run, their files exist."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
import yaml
from documents import PAGES, ROOT, Block, blocks, commands, play, serves

from fermata.commands.main import app
from fermata.deployments import cascade
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.served.registry import registry
from fermata.foundation.stage_calls import StageLostError
from fermata.foundation.user_code import find_beside
from fermata.simulator.scenario.scenario import read_scenario

README = ROOT / "README.md"
PROGRAMS = [ROOT / name for name in ("README.md", "docs/scenarios.md", "profiles/README.md")]
"""Pages whose blocks in Python stand alone."""
PRINTED = ("configuration.md", "metrics.md")
"""Their lines are as long as what they are printed from."""
PICTURE_BYTES_MAX = 150 << 10
README_LINES_MAX = 120
TABLES_SHARE_MAX = 0.25
LINE_MAX = 100


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


OFFLINE = [page for page in PAGES if commands(page) and not serves(page)]
"""The others need a server and are played live."""
LEFT_OUT = [(page, block) for page in PAGES for block in blocks(page, "console") if block.not_run]


@pytest.mark.parametrize("page", OFFLINE, ids=named)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    play(page, tmp_path)


@pytest.mark.parametrize(("page", "block"), LEFT_OUT, ids=lambda given: getattr(given, "name", ""))
def test_commands_that_are_not_run_name_what_there_is(page: Path, block: Block) -> None:
    """Files, targets and our own verbs at least."""
    for command in block.commands():
        words = command.split()
        for word in words:
            if re.match(r"(k8s|deployments|simulator|benchmarks)/", word):
                assert (ROOT / word).exists(), command
        if "-m" in words and words[0] == "python":
            assert (ROOT / (words[words.index("-m") + 1].replace(".", "/") + ".py")).exists()
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_verb_in_the_documents_is_one() -> None:
    verbs = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        for verb in re.findall(r"`(?:\.venv/bin/)?fermata ([a-z]+)", page.read_text()):
            assert verb in verbs, f"{named(page)}: fermata {verb}"


@pytest.mark.parametrize("page", PROGRAMS, ids=named)
def test_python_blocks_of_a_page_run(page: Path) -> None:
    found = blocks(page, "python")
    assert found
    for block in found:
        code = block.text
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_yaml_blocks_of_the_page_on_models_are_configurations() -> None:
    found = blocks(ROOT / "docs/models.md", "yaml")
    assert found
    for block in found:
        assert registry(read_config(yaml.safe_load(block.text))).models


def test_yaml_blocks_of_the_page_on_operations_are_sections() -> None:
    one = {"name": "a", "slo_ms": 50, "variants": [{"name": "a", "model": "digits:small"}]}
    found = blocks(ROOT / "docs/operations.md", "yaml")
    assert found
    for block in found:
        assert registry(read_config({"applications": [one], **yaml.safe_load(block.text)})).models


def test_yaml_blocks_of_the_scenario_page_are_scenarios() -> None:
    for block in blocks(ROOT / "docs/scenarios.md", "yaml"):
        assert read_scenario(yaml.safe_load(block.text)).applications


def test_yaml_blocks_of_the_pipelines_page_are_serving_files_and_a_scenario() -> None:
    objects, sure, words, chosen, called, simulated = blocks(ROOT / "docs/pipelines.md", "yaml")
    find_beside(ROOT / "deployments/cascade.yaml")
    model, _ = registry(read_config(yaml.safe_load(called.text))).known("cascade")
    assert model.pipeline is not None
    assert model.pipeline.function == "cascade:run"
    assert registry(read_config(yaml.safe_load(objects.text))).find("objects")
    sure_of, _ = registry(read_config(yaml.safe_load(sure.text))).known("sure")
    assert sure_of.pipeline is not None
    assert sure_of.pipeline.has_conditions
    for block in (words, chosen):
        assert registry(read_config(yaml.safe_load(block.text))).find("words")
    assert read_scenario(yaml.safe_load(simulated.text)).pipelines


@pytest.mark.parametrize(
    ("scores", "lost", "by"),
    [({"small": 0.7}, "", "small"), ({"small": 0.5, "large": 0.9}, "", "large"),
     ({"small": 0.5}, "large", "small")],
)  # fmt: skip
def test_the_function_of_the_pipelines_page_runs(
    scores: dict[str, float], lost: str, by: str
) -> None:
    """And so does the one that is shipped, which is the same."""

    class Stages:
        Lost = StageLostError

        async def __call__(self, name: str, given: object = None) -> object:
            if name == lost:
                raise StageLostError(name, "late")
            best = [{"class": name, "score": scores[name]}]
            return SimpleNamespace(classes=lambda count: best)

    (code,) = blocks(ROOT / "docs/pipelines.md", "python")
    printed: dict[str, Any] = {}
    exec(code.text, printed)
    for function in (printed["run"], cascade.run):
        assert asyncio.run(function({}, Stages()))["by"] == by


def test_pictures_of_the_readme_are_small() -> None:
    found = re.findall(r"docs/images/[\w-]+\.png", README.read_text())
    assert found
    for name in found:
        assert (ROOT / name).stat().st_size < PICTURE_BYTES_MAX, name


def test_the_readme_is_short_and_mostly_text() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= README_LINES_MAX
    tables = [line.replace("|", " ") for line in lines if line.startswith("|")]
    words = len(" ".join(lines).split())
    assert len(" ".join(tables).split()) <= TABLES_SHARE_MAX * words


@pytest.mark.parametrize("document", PAGES, ids=named)
def test_lines_of_text_are_short(document: Path) -> None:
    """So that diffs read; rows of tables and blocks are as long as they have to be."""
    if document.name in PRINTED:
        return
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > LINE_MAX] == []


@pytest.mark.parametrize("document", PAGES, ids=named)
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"(?:\]\(|src=\"|srcset=\")([^)#\"]+)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), target
    if document.name == "papers.md":
        for path in re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", text):
            assert (ROOT / path).exists(), path
