"""SneakPeek models by an embedding: from folders of pictures, tables of texts and archives."""

import csv
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fermata.commands.main import app
from fermata.deployments.models.digits import held_out, training_data
from fermata.deployments.sneakpeek.building import BuildOptions, build, build_model
from fermata.deployments.sneakpeek.labelled_data import ArchiveData, ArrayData, FolderData, TextData
from fermata.deployments.sneakpeek.projection import discriminant, fit_projection
from fermata.deployments.sneakpeek.store import checksum_of, load_model, save_model
from fermata.foundation.errors import ConfigError

RNG = np.random.default_rng(7)
COLOURS = {"blue": (20, 40, 200), "green": (30, 180, 40), "red": (210, 30, 20)}


def pictures(folder: Path, each: int = 12, side: int = 40) -> Path:
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            noise = RNG.integers(-25, 25, (side, side + number, 3))
            pixels = (np.array(colour) + noise).clip(0, 255).astype(np.uint8)
            kind = "jpg" if number % 2 else "png"
            Image.fromarray(pixels).save(folder / name / f"{number}.{kind}")
    return folder


def texts(path: Path) -> Path:
    things = {
        "food": ("soup", "bread", "cheese", "cake"),
        "sport": ("goal", "match", "team", "cup"),
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["label", "text"])
        for topic, words in things.items():
            for first in words:
                for second in words:
                    rows.writerow([topic, f"The {first} and the {second},\n all of {topic}"])
    return path


def mean_colours(samples: np.ndarray) -> np.ndarray:
    """An embedding of a user's own."""
    return np.asarray(samples.mean(axis=(2, 3)))


def test_dimensions_are_chosen_by_held_out_data() -> None:
    model = build_model(*training_data())
    images, labels = held_out()
    assert (model.index.votes(images).argmax(axis=1) == labels).mean() > 0.97
    assert build_model(*training_data(), dimensions=3).accuracy < 0.85


def test_no_matrix_of_features_by_features_is_made() -> None:
    samples = RNG.standard_normal((40, 60_000), dtype=np.float32)
    tracemalloc.start()
    projection = fit_projection(samples, 5)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert projection.axes.shape == (5, 60_000)
    # The samples take 9.6 MB, the matrix would take 14 GB.
    assert most < 60e6
    assert np.allclose(projection.axes @ projection.axes.T, np.eye(5), atol=1e-3)


def test_few_samples_and_few_features_give_the_same_directions() -> None:
    wide = RNG.standard_normal((30, 50), dtype=np.float32) * np.linspace(5, 1, 50, dtype=np.float32)
    spread = np.cov(wide.T.astype(np.float64))
    axes = np.linalg.eigh(spread)[1][:, ::-1][:, :3].T
    assert np.abs(np.sum(axes * fit_projection(wide, 3).axes, axis=1)) == pytest.approx(1, abs=1e-3)


def test_directions_that_tell_classes_apart() -> None:
    labels = np.arange(200) % 2
    points = RNG.standard_normal((200, 3)) * (1, 20, 1)
    points[:, 0] += 4 * labels
    (axis,) = discriminant(points.astype(np.float32), labels, 1)
    assert abs(axis[0]) > 10 * abs(axis[1])


@pytest.mark.parametrize("embedding", ["raw", "imagenet:lite0@32/3", f"{__name__}:mean_colours"])
def test_folder_of_pictures_is_looked_at(tmp_path: Path, embedding: str) -> None:
    data = FolderData(pictures(tmp_path / "data"), 32, "centre")
    assert data.names == ("blue", "green", "red")
    built = build(data, BuildOptions(embedding=embedding))
    assert (built.votes.argmax(axis=1) == built.labels).all()
    save_model(tmp_path / "model.npz", built.model)
    model = load_model(tmp_path / "model.npz", tmp_path / "data")
    assert model.names == data.names
    green = np.broadcast_to(np.array(COLOURS["green"], np.uint8)[:, None, None], (3, 32, 32))
    assert model.sees((3, 32, 32))
    assert model.look([green]).argmax() == 1
    # Channels last, as some models have them.
    assert model.look([green.transpose(1, 2, 0)]).argmax() == 1


def test_pictures_of_other_sizes_are_scaled_by_the_embedding(tmp_path: Path) -> None:
    data = FolderData(pictures(tmp_path / "data"), 32, "whole")
    model = build(data, BuildOptions(embedding="imagenet:lite0@32/3")).model
    assert model.sees((3, 50, 70))
    red = np.broadcast_to(np.array(COLOURS["red"], np.uint8)[:, None, None], (3, 50, 70))
    assert model.look([red]).argmax() == 2
    assert not model.sees((7,))


def test_table_of_texts_is_looked_at(tmp_path: Path) -> None:
    data = TextData(texts(tmp_path / "texts.csv"), 16)
    assert (data.names, len(data.labels)) == (("food", "sport"), 32)
    built = build(data, BuildOptions(embedding="text:vectors"))
    assert (built.votes.argmax(axis=1) == built.labels).mean() > 0.9
    save_model(tmp_path / "model.npz", built.model)
    assert load_model(tmp_path / "model.npz", tmp_path / "texts.csv").sees((64,))


def test_archive_is_read_in_parts(tmp_path: Path) -> None:
    samples = RNG.integers(0, 255, (600, 3, 64, 64), dtype=np.uint8)
    labels = np.arange(600) % 4
    for number, save in enumerate((np.savez, np.savez_compressed)):
        path = tmp_path / f"{number}.npz"
        save(path, samples=samples, labels=labels)
        data = ArchiveData(path)
        wanted = np.array([0, 5, 340, 599])
        parts = list(data.parts(wanted))
        assert len(parts) > 1
        assert np.concatenate([numbers for numbers, _ in parts]).tolist() == wanted.tolist()
        assert np.array_equal(np.concatenate([rows for _, rows in parts]), samples[wanted])
        assert checksum_of(path) == ArrayData(samples, labels).checksum()


def test_classes_are_in_the_order_asked_for(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "data")
    data = FolderData(folder, 8, "centre", names=("red", "green", "blue"))
    assert data.names[data.labels[0]] == "blue"
    with pytest.raises(ConfigError, match="holds 'red' too; --labels must name all"):
        FolderData(folder, 8, "centre", names=("green", "blue"))
    with pytest.raises(ConfigError, match="no samples of 'pink'"):
        FolderData(folder, 8, "centre", names=("red", "green", "blue", "pink"))
    for number in range(11):
        (tmp_path / "numbers" / str(number)).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "numbers" / str(number) / "one.png")
    assert FolderData(tmp_path / "numbers", 8, "centre").names[9:] == ("9", "10")


def test_what_cannot_be_built_from_is_refused_by_name(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match="holds no pictures"):
        FolderData(empty, 8, "centre")
    folder = pictures(tmp_path / "data")
    (folder / "void").mkdir()
    with pytest.raises(
        ConfigError, match=r"class='void': holds no pictures in .*; add some or remove"
    ):
        FolderData(folder, 8, "centre")
    (folder / "void").rmdir()
    alone = tmp_path / "alone"
    (alone / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(alone / "cat" / "one.png")
    with pytest.raises(ConfigError, match="has one class, 'cat'"):
        FolderData(alone, 8, "centre")
    with pytest.raises(ConfigError, match="embedding='nothing'"):
        build(FolderData(folder, 8, "centre"), BuildOptions(embedding="nothing"))
    with pytest.raises(ConfigError, match="cannot be imported"):
        build(FolderData(folder, 8, "centre"), BuildOptions(embedding="no_such:thing"))
    table = tmp_path / "texts.csv"
    table.write_text("words,label\nhello,a\n")
    with pytest.raises(ConfigError, match="has no column text"):
        TextData(table, 8)


def test_unreadable_picture_is_named_or_left_out(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "data")
    (folder / "red" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    with pytest.raises(ConfigError, match=r"broken.jpg'?.*--skip-unreadable"):
        build(FolderData(folder, 8, "centre"), BuildOptions())
    data = FolderData(folder, 8, "centre", skip=True)
    built = build(data, BuildOptions())
    assert built.samples == 36
    assert [each.name for each in data.unreadable] == ["broken.jpg"]


def test_command_prints_what_a_look_is_like(tmp_path: Path) -> None:
    folder, output = pictures(tmp_path / "data"), tmp_path / "model.npz"
    asked = ["sneakpeek", "build", str(folder), "-o", str(output), "--size", "32"]
    asked += ["--embedding", "imagenet:lite0@32/3"]
    told = CliRunner().invoke(app, [*asked, "--json"])
    assert told.exit_code == 0, told.output
    about = json.loads(told.stdout)
    assert about["names"] == ["blue", "green", "red"]
    assert about["recall"] == [1.0, 1.0, 1.0]
    assert about["confused"] == []
    assert about["embedding"] == "imagenet:lite0@32/3"
    assert about["look_ms"] > 0
    assert load_model(output).embedding == "imagenet:lite0@32/3"
    shown = CliRunner().invoke(app, asked)
    assert "green" in shown.stdout
    assert "100.0%" in shown.stdout
    refused = CliRunner().invoke(app, ["sneakpeek", "build", str(tmp_path / "no"), "-o", "x.npz"])
    assert refused.exit_code != 0


def test_command_tells_what_a_look_is_worth(tmp_path: Path) -> None:
    labels = np.arange(120) % 2
    samples = (4 * labels[:, None] + RNG.standard_normal((120, 3))).astype(np.float32)
    np.savez(tmp_path / "data.npz", samples=samples, labels=labels)
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        """
rate_rps: 60
backends: 1
policy: deferred
applications:
  - name: falls
    slo_ms: 150
    classes: {frequencies: [0.8, 0.2]}
    variants:
      - {name: small, alpha_ms: 4, beta_ms: 0, recall: [0.99, 0.4]}
      - {name: large, alpha_ms: 40, beta_ms: 0, recall: [0.99, 0.95]}
"""
    )
    asked = ["sneakpeek", "build", str(tmp_path / "data.npz"), "-o", str(tmp_path / "look.npz")]
    told = CliRunner().invoke(app, [*asked, "--for", str(scenario), "--json"])
    assert told.exit_code == 0, told.output
    worth = json.loads(told.stdout)["worth"]
    assert (worth["application"], worth["rate_rps"]) == ("falls", 60)
    assert worth["with_looks"] > worth["without"] + 0.02
