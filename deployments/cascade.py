"""The function of `cascade.yaml`: asks a large model where a small one is not sure."""

from collections.abc import Mapping
from typing import Any

from fermata.foundation.stage_calls import StageCalls

SURE = 0.6
"""Score from which on the small model is believed."""


async def run(inputs: Mapping[str, Any], stage: StageCalls) -> dict[str, Any]:
    """The three best classes of a picture, and the stage that found them."""
    found = await stage("small", inputs)
    if found.classes(1)[0]["score"] >= SURE:
        return {"by": "small", "classes": found.classes(3)}
    try:
        found = await stage("large", inputs)
    except stage.Lost:
        # Better than nothing; the answer is marked as partial.
        return {"by": "small", "classes": found.classes(3)}
    return {"by": "large", "classes": found.classes(3)}
