"""What the documents say is true: their code runs, their files exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deployments.config import read_config
from deployments.plan import registry
from simulator.scenario import read_scenario

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("profiles/*.md")])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("code", blocks(README, "python"))
def test_python_blocks_of_the_readme_run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def commands() -> list[str]:
    lines = [line for block in blocks(README, "console") for line in block.splitlines()]
    return [line[2:].split("  #")[0] for line in lines if line.startswith("$ ")]


OFFLINE = [line for line in commands() if " simulate " in line or " goodput " in line]
"""The others need a server and are tested live."""


@pytest.mark.parametrize("command", OFFLINE)
def test_commands_of_the_readme_run(command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    arguments = [str(ROOT / word) if word.endswith(".yaml") else word for word in words[1:]]
    subprocess.run(
        [sys.executable, "-m", "commands.main", *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )


def test_make_has_the_targets_of_the_readme() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in commands():
        if command.startswith("make "):
            target = command.split()[1]
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), command


def test_yaml_blocks_of_the_page_on_models_are_configurations() -> None:
    found = blocks((ROOT / "docs/models.md").read_text(), "yaml")
    assert found
    for block in found:
        assert registry(read_config(yaml.safe_load(block))).models


def test_yaml_blocks_of_the_page_on_operations_are_sections() -> None:
    one = {"name": "a", "slo_ms": 50, "variants": [{"name": "a", "model": "digits:small"}]}
    found = blocks((ROOT / "docs/operations.md").read_text(), "yaml")
    assert found
    for block in found:
        assert registry(read_config({"applications": [one], **yaml.safe_load(block)})).models


def test_yaml_blocks_of_the_scenario_page_are_scenarios() -> None:
    for block in blocks((ROOT / "docs/scenarios.md").read_text(), "yaml"):
        assert read_scenario(yaml.safe_load(block)).applications


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), target
    if document.name == "papers.md":
        for path in re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", text):
            assert (ROOT / path).exists(), path
