"""The embedded models, with their real weights: right answers, and the same ones everywhere."""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fermata.deployments.models import detector, digits, imagenet, text
from fermata.deployments.models.catalog import EMBEDDED, describe, open_model
from fermata.deployments.models.minilm import Tokens, embed, load_weights, weights_folder
from fermata.deployments.models.model import Array
from fermata.deployments.models.network import load_torchvision
from fermata.deployments.models.pictures.picture import Pixels, centre_square, whole_frame
from fermata.deployments.models.video import bundled_video
from fermata.foundation.errors import ConfigError

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

pytestmark = pytest.mark.live

SENTENCES = (
    ("sport", "The goalkeeper saved two penalties in the final."),
    ("sport", "The cyclist attacked on the last climb of the stage."),
    ("politics", "The senate rejected the bill by two votes."),
    ("politics", "The opposition party named its candidate for mayor."),
    ("business", "The startup raised ten million dollars from investors."),
    ("business", "The carmaker will cut two thousand jobs to save costs."),
    ("technology", "The browser now blocks trackers by default."),
    ("technology", "Developers moved the database to the cloud."),
    ("science", "A fossil found in Patagonia belongs to an unknown dinosaur."),
    ("science", "The probe entered orbit around Jupiter's moon."),
    ("health", "The vaccine protects children against measles."),
    ("health", "A nurse checked his blood pressure after surgery."),
    ("food", "Simmer the tomatoes with garlic and basil for twenty minutes."),
    ("food", "The chef grilled lamb and served it with rice."),
    ("travel", "You need a visa and a passport to enter the country."),
    ("travel", "The hostel is close to the airport and the sights."),
    ("arts", "The orchestra performed a symphony by Mahler."),
    ("arts", "The sculptor carved the statue from white marble."),
    ("weather", "Fog in the morning, then a dry and mild afternoon."),
    ("weather", "Thunderstorms and hail hit the coast last night."),
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def frames(video: str, every: int) -> list[Pixels]:
    av = pytest.importorskip("av")
    with av.open(str(bundled_video(video))) as film:
        return [
            each.to_ndarray(format="rgb24")
            for index, each in enumerate(film.decode(video=0))
            if index % every == 0
        ]


def labels_of(model: Any, batch: Array) -> list[str]:
    return [model.card.labels[index] for index in np.asarray(model(batch)).argmax(axis=1)]


def test_digits_grow_in_accuracy_and_differ_by_class(folder: Path) -> None:
    images, labels = digits.held_out()
    accuracy: list[float] = []
    for name in ("nano", "small", "medium", "large"):
        model = digits.load(name, folder=folder)
        right = np.asarray(model(images)).argmax(axis=1) == labels
        assert model.card.accuracy == pytest.approx(right.mean(), abs=1e-4)
        assert model.card.recall[8] == pytest.approx(right[labels == 8].mean(), abs=1e-4)
        accuracy.append(float(right.mean()))
    assert accuracy == sorted(accuracy)
    assert accuracy[0] < 0.85 < 0.98 < accuracy[-1]
    assert digits.load("nano", folder=folder).card.recall[1] < 0.5


def test_held_out_images_are_not_among_those_trained_on() -> None:
    images, _labels = digits._data()
    seen = {image.tobytes() for image in images[digits.HELD_OUT :]}
    assert not [image for image in images[: digits.HELD_OUT] if image.tobytes() in seen]
    assert len(images) - digits.HELD_OUT == 1300


def test_digits_in_numpy_and_torch_agree_and_take_both_shapes(folder: Path) -> None:
    images, _labels = digits.held_out()
    model = digits.load("medium", folder=folder)
    trained = digits._trained("medium", digits.SIZES["medium"], folder)
    plain = digits.DigitsModel(model.card, trained.layers)
    np.testing.assert_allclose(plain(images), np.asarray(model(images)), atol=1e-5)
    square = images.reshape(-1, 1, 8, 8)
    np.testing.assert_array_equal(np.asarray(model(square)), np.asarray(model(images)))
    with pytest.raises(ConfigError, match="must be float32"):
        model(images.astype(np.float64))


def test_two_processes_that_start_at_once_share_one_training(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from fermata.deployments.models import digits;"
        "print(digits.load('small', folder=pathlib.Path(sys.argv[1])).card.accuracy)"
    )
    starts = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    told = [start.communicate(timeout=120)[0] for start in starts]
    assert told[0] == told[1] != b""
    assert len(list(tmp_path.glob("*.npz"))) == 1
    assert not list(tmp_path.glob("*.part"))


def test_a_damaged_cache_is_trained_again(tmp_path: Path) -> None:
    first = digits.load("nano", folder=tmp_path)
    (file,) = tmp_path.glob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    assert digits.load("nano", folder=tmp_path).card == first.card


def test_a_folder_that_cannot_be_written_still_gives_a_model() -> None:
    assert digits.load("nano", folder=Path("/proc/nowhere")).card.accuracy


def test_imagenet_names_what_is_in_a_photograph() -> None:
    from sklearn.datasets import load_sample_images

    china, flower = load_sample_images().images
    for name in imagenet.NAMES:
        model = imagenet.load(name)
        size = imagenet.NATIVE[name]
        assert labels_of(model, centre_square(china, size)[None]) == ["palace"]
    assert labels_of(imagenet.load("lite0"), centre_square(flower, 224)[None]) == ["daisy"]


def test_imagenet_names_what_is_in_the_bundled_video() -> None:
    model = imagenet.load("lite0", 224)
    batch = np.stack([centre_square(each, 224) for each in frames("carphone_pristine", 40)])
    # A man in a suit and tie, who telephones in a car.
    assert set(labels_of(model, batch)) <= {"bow tie", "Windsor tie", "suit", "seat belt"}


def test_imagenet_takes_pixels_or_normalised_floats_and_any_size() -> None:
    model = imagenet.load("lite0", 128)
    pixels = model.card.make_batch(2)
    mean = np.array(model.card.mean, np.float32)[:, None, None]
    std = np.array(model.card.std, np.float32)[:, None, None]
    floats = ((pixels.astype(np.float32) / 255) - mean) / std
    scores = np.asarray(model(pixels))
    np.testing.assert_allclose(scores, np.asarray(model(floats)), atol=1e-4)
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)
    # One by one as in a batch.
    np.testing.assert_allclose(scores[1:], np.asarray(model(pixels[1:])), atol=1e-5)
    with pytest.raises(ConfigError, match="must be uint8 or float32"):
        model(pixels[:, :, :64])


def test_folding_batch_norms_changes_nothing() -> None:
    from efficientnet_lite_pytorch import EfficientNet

    plain = EfficientNet.from_name("efficientnet-lite0", image_size=160)
    plain.load_state_dict(torch.load(imagenet._weights_path("lite0"), weights_only=True))
    model = imagenet.load("lite0", 160)
    pixels = torch.from_numpy(model.card.make_batch(1))
    with torch.inference_mode():
        wanted = plain.eval()((pixels.float() - 127) / 128).softmax(dim=1).numpy()
    np.testing.assert_allclose(np.asarray(model(pixels.numpy())), wanted, atol=1e-5)


def test_text_finds_topics() -> None:
    model = text.load()
    tokens = Tokens(text.LENGTH)([sentence for _topic, sentence in SENTENCES])
    right = [
        found == topic
        for found, (topic, _) in zip(labels_of(model, tokens), SENTENCES, strict=True)
    ]
    assert sum(right) >= 0.8 * len(SENTENCES)


def test_no_more_of_a_text_is_read_than_there_are_tokens_for() -> None:
    tokens = Tokens(8)
    began_s = time.process_time()
    found = tokens(["a word " * 1_000_000, "a word " * 4])
    # All of it would take ten seconds.
    assert time.process_time() - began_s < 1.0
    assert found[0].tolist()[:-1] == found[1].tolist()[:-1]


def test_text_equals_the_reference_implementation() -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.BertModel.from_pretrained(weights_folder()).eval()
    tokens = torch.from_numpy(Tokens(32)([sentence for _topic, sentence in SENTENCES]))
    seen = (tokens != 0).long()
    with torch.inference_mode():
        hidden = reference(tokens, attention_mask=seen).last_hidden_state
        means = (hidden * seen[:, :, None]).sum(dim=1) / seen.sum(dim=1, keepdim=True)
        wanted = torch.nn.functional.normalize(means, dim=1)
        found = embed(load_weights(), tokens)
    assert float((wanted - found).abs().max()) < 1e-5


def test_text_survives_padding_alone_and_ids_that_do_not_exist() -> None:
    model = text.load("vectors", 16)
    tokens = np.zeros((2, 16), np.int64)
    tokens[1] = (10**12, -5) * 8
    assert np.isfinite(np.asarray(model(tokens))).all()


def test_faces_are_found_where_they_are_in_the_frame_that_was_sent() -> None:
    model = detector.load(size=320)
    frame = frames("carphone_pristine", 1000)[0]
    height, width = frame.shape[:2]
    (found,) = model(whole_frame(frame, 320)[None])
    (row,) = detector.to_frame(found, height, width, 320)
    # Read off the frame by eye: the face lies between (60, 30) and (118, 105) of 176 x 144.
    assert row[:2].min() > 25
    assert row[0] > 55
    assert row[2] < 122
    assert row[3] < 110
    assert row[4] > 0.8
    blank, two = model(np.stack([np.zeros_like(whole_frame(frame, 320)), whole_frame(frame, 320)]))
    assert blank.shape == (0, 6)
    np.testing.assert_allclose(two, found, atol=1e-2)


def test_faces_equal_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(detector._weights_path(), options)
    # The only shape that the file allows.
    pixels = np.random.default_rng(0).random((10, 3, 32, 32), dtype=np.float32) * 255
    wanted = session.run(None, {session.get_inputs()[0].name: pixels})
    with torch.inference_mode():
        found = detector.load(size=32).module(torch.from_numpy(pixels))
    for left, right in zip(wanted, found, strict=True):
        np.testing.assert_allclose(left, right.numpy(), atol=1e-3)


def test_torchvision_says_when_it_has_no_weights() -> None:
    model = load_torchvision("resnet18", 64)
    assert np.asarray(model(model.card.make_batch(2))).shape == (2, 1000)
    assert model.card.trained == bool(model.card.file_bytes)


@pytest.mark.parametrize("name", [name for name in EMBEDDED if name != "digits:xl"])
def test_every_embedded_model_opens_and_answers_each_request(
    name: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    model = open_model(name)
    assert model.card.name == name
    described = describe(name)
    assert described is not None
    # Training alone tells the rest.
    learnt = {each: getattr(model.card, each) for each in ("accuracy", "recall", "file_bytes")}
    assert replace(described, **learnt) == model.card
    answers = model(model.card.make_batch(3))
    # By name, where a model has several outputs.
    outputs = list(answers.values()) if isinstance(answers, Mapping) else [answers]
    assert [len(each) for each in outputs] == [3] * len(outputs)
    assert outputs
