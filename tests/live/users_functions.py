"""Functions of a user's own that call the stages of `users_stages`."""

import asyncio
import time
from typing import Any


async def objects(inputs: Any, stage: Any) -> Any:
    """Finds blocks, and classifies each of them; goes on without those that are black."""
    found = await stage("detect", inputs)
    boxes = found.outputs["boxes"][:, :4].astype(int)

    async def named(box: Any) -> Any:
        left, top, right, bottom = box
        try:
            result = await stage("classify", found.picture[top:bottom, left:right])
        except stage.Lost as lost:
            return {"box": box, "missing": lost.reason}
        return {"box": box, "class": result.classes(1)[0]["class"]}

    return await asyncio.gather(*[named(each) for each in boxes])


async def narrowed(inputs: Any, stage: Any) -> Any:
    """Cuts the picture in half until what it holds is of one colour: a loop."""
    picture, steps = inputs.picture, 0
    while len((await stage("detect", picture)).outputs["boxes"]) > 1:
        picture, steps = picture[:, : picture.shape[1] // 2], steps + 1
    return steps


async def black(inputs: Any, stage: Any) -> Any:
    """Has a stage fail, and does not mind about it."""
    return await stage("classify", inputs.picture * 0)


async def broken(inputs: Any, stage: Any) -> Any:
    raise RuntimeError("no such thing")


async def blocking(inputs: Any, stage: Any) -> Any:
    """Holds its thread, far longer than its queries have time."""
    time.sleep(4.0)


async def hanging(inputs: Any, stage: Any) -> Any:
    """Waits for what never comes."""
    await stage("detect", inputs)
    await asyncio.Event().wait()
