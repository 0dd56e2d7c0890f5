"""Options of `fermata profile` that say what models are judged on."""

from pathlib import Path
from typing import Annotated

import typer

LabelledData = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|FOLDER",
        help="Labelled test set: an .npz with samples [n, ...] and labels [n] from 0 up, a folder "
        "with a folder of pictures for each class, or `digits`, the embedded ones that no model "
        "was trained on. Measures accuracy, recall by class and the confusion matrix, too.",
    ),
]
Video = Annotated[
    str,
    typer.Option(
        metavar="CLIP|FOLDER",
        help="Frames to judge detectors on: a video, a folder of pictures, or a bundled clip "
        "(bikes, bigbuckbunny, carphone_pristine). Writes accuracy by input size.",
    ),
]
Reference = Annotated[
    str,
    typer.Option(
        metavar="MODEL|LABELS",
        help="Boxes that are wanted: those of a better detector, as in "
        "objects:yolov4-tiny@608, or a .json file in COCO's format.",
    ),
]
Frames = Annotated[int, typer.Option(help="Frames of --video, at most.", min=1)]
Every = Annotated[int, typer.Option(help="One frame of so many of --video.", min=1)]
Metric = Annotated[str, typer.Option(help="map or f1, both at an overlap of 0.5.")]
Boxes = Annotated[
    str,
    typer.Option(
        metavar="OUTPUT[,FORMAT]",
        help="Output with boxes of one's own detector, as in boxes,cxcywh,shares.",
    ),
]
Mean = Annotated[str, typer.Option(help="As input.mean, for pictures of one's own detector.")]
Std = Annotated[str, typer.Option(help="As input.std; together 0,0,0 and 1,1,1 unless given.")]
Fit = Annotated[str, typer.Option(help="As input.fit; whole unless the model says.")]
