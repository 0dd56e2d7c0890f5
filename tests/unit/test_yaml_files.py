"""YAML files: what is lost or misread without a word elsewhere is refused here, in one line."""

from pathlib import Path

import pytest

from fermata.deployments.config.deployment import load_config
from fermata.foundation.errors import ConfigError
from fermata.foundation.validation import read_yaml


def written(folder: Path, text: str) -> Path:
    path = folder / "given.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backend: {count: 2}\nname: x\nbackend: {count: 1}\n", "line 3: key 'backend' is there"),
        ("applications:\n  - {name: a, slo_ms: 5, name: b}\n", "line 2: key 'name' is there twice"),
        ('{"name": "a", "name": "b"}', "line 1: key 'name' is there twice; keep one"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"{path}: {message}"):
        read_yaml(path)


def test_mappings_may_be_merged_and_have_the_same_keys_apart(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {z: 3}\nc: {<<: *a, <<: *b, x: 4}\n1: one\n'1': text\n"
    text += "d: [{e: &e {<<: *a, x: 5}}]\nf: {<<: *e}\n"
    found = read_yaml(written(tmp_path, text))
    assert isinstance(found, dict)
    assert found["c"]["x"] == 4
    assert found["f"] == {"x": 5, "y": 2}
    assert (found[1], found["1"]) == ("one", "text")


@pytest.mark.parametrize(
    ("text", "held"), [("", "nothing"), ("- 1\n", "a list"), ("words\n", "a str")]
)
def test_a_file_without_keys_is_told_so(tmp_path: Path, text: str, held: str) -> None:
    with pytest.raises(ConfigError, match=f"holds {held}; write keys and values, applications at"):
        load_config(written(tmp_path, text))
