"""Parts of pictures on a GPU by two kernels, one along either side.

The weights are those of `cutting`, computed where they are used. A batch takes two launches, not a
hundred: each gives Python's lock away, and must wait to have it back.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl

Tensor = Any
ROWS = 16
"""Rows that one program makes."""


@triton.jit  # type: ignore[untyped-decorator]
def weight(pixel, middle, stretch, low, high, cubic: tl.constexpr):  # type: ignore[no-untyped-def]
    """Weight of a pixel in a point of the input, as Pillow has it; not divided by their sum yet."""
    far = tl.abs((pixel + 0.5 - middle) / stretch)
    if cubic:
        # Pillow's bicubic filter, as a sum of one part within 2 pixels and one within 1.
        two = tl.maximum(2.0 - far, 0.0)
        one = tl.maximum(1.0 - far, 0.0)
        found = 0.5 * two * two * (two - 1.0) + one * one * (1.0 - 2.0 * one)
    else:
        found = tl.maximum(1.0 - far, 0.0)
    return tl.where((pixel >= low) & (pixel < high), found, 0.0)


@triton.jit(do_not_specialize=["height_max", "wanted"])  # type: ignore[untyped-decorator]
def across(  # type: ignore[no-untyped-def]
    told, made, height_max, wanted, columns: tl.constexpr, block: tl.constexpr, cubic: tl.constexpr
):
    """Bytes [part, 3, height_max, wanted]: all rows of a part, scaled along them."""
    part, line = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    row = told + part * 13
    frame = tl.load(row).to(tl.int64).to(tl.pointer_type(tl.uint8))
    height, width = tl.load(row + 1).to(tl.int32), tl.load(row + 2).to(tl.int32)
    begin, scale = tl.load(row + 3).to(tl.float32), tl.load(row + 4).to(tl.float32)
    low, high = tl.load(row + 5).to(tl.float32), tl.load(row + 6).to(tl.float32)
    filled = tl.load(row + 7).to(tl.int32)
    top, bottom = tl.load(row + 10).to(tl.int32), tl.load(row + 11).to(tl.int32)
    channel, down = line // height_max, line % height_max
    shown = (channel < 3) & (down >= top) & (down < bottom)
    column = tl.arange(0, columns)
    middle = begin + (column.to(tl.float32) + 0.5) * scale
    stretch = tl.maximum(scale, 1.0)
    reach = stretch * (2.0 if cubic else 1.0)
    first = tl.floor(middle - reach + 0.5).to(tl.int32)
    total = tl.zeros((columns,), tl.float32)
    value = tl.zeros((block, columns), tl.float32)
    source = frame + (channel * height + down).to(tl.int64) * width
    for tap in range(tl.ceil(2.0 * reach).to(tl.int32) + 1):
        pixel = first + tap
        there = (pixel >= 0) & (pixel < width) & (column < filled)
        share = weight(pixel.to(tl.float32), middle, stretch, low, high, cubic)
        share = tl.where(there, share, 0.0)
        total += share
        seen = tl.load(source[:, None] + pixel[None, :], shown[:, None] & there[None, :], other=0)
        value += seen.to(tl.float32) * share[None, :]
    value /= tl.where(total == 0.0, 1.0, total)[None, :]
    value = tl.minimum(tl.maximum(tl.floor(value + 0.5), 0.0), 255.0)
    place = (part * 3 * height_max + line).to(tl.int64) * wanted
    inside = (column < wanted)[None, :] & shown[:, None]
    tl.store(made + place[:, None] + column[None, :], value.to(tl.uint8), inside)


@triton.jit(do_not_specialize=["height_max", "wanted", "lines"])  # type: ignore[untyped-decorator]
def down(  # type: ignore[no-untyped-def]
    told, rows, made, height_max, wanted, lines, columns: tl.constexpr, block: tl.constexpr,
    cubic: tl.constexpr,
):  # fmt: skip
    """Bytes [part, 3, lines, wanted], from what `across` has made."""
    part, channel = tl.program_id(0), tl.program_id(1)
    line = tl.program_id(2) * block + tl.arange(0, block)
    row = told + part * 13
    height = tl.load(row + 1).to(tl.int32)
    begin, scale = tl.load(row + 8).to(tl.float32), tl.load(row + 9).to(tl.float32)
    low, high = tl.load(row + 10).to(tl.float32), tl.load(row + 11).to(tl.float32)
    filled = tl.load(row + 12).to(tl.int32)
    column = tl.arange(0, columns)
    middle = begin + (line.to(tl.float32) + 0.5) * scale
    stretch = tl.maximum(scale, 1.0)
    reach = stretch * (2.0 if cubic else 1.0)
    first = tl.floor(middle - reach + 0.5).to(tl.int32)
    total = tl.zeros((block,), tl.float32)
    value = tl.zeros((block, columns), tl.float32)
    source = rows + (part * 3 + channel).to(tl.int64) * height_max * wanted
    for tap in range(tl.ceil(2.0 * reach).to(tl.int32) + 1):
        pixel = first + tap
        share = weight(pixel.to(tl.float32), middle, stretch, low, high, cubic)
        there = (pixel >= 0) & (pixel < height) & (line < filled) & (share != 0.0)
        share = tl.where(there, share, 0.0)
        total += share
        seen = tl.load(
            source + pixel[:, None] * wanted + column[None, :],
            there[:, None] & (column < wanted)[None, :],
            other=0,
        )
        value += seen.to(tl.float32) * share[:, None]
    value /= tl.where(total == 0.0, 1.0, total)[:, None]
    value = tl.minimum(tl.maximum(tl.floor(value + 0.5), 0.0), 255.0)
    place = ((part * 3 + channel).to(tl.int64) * lines + line) * wanted
    inside = (line < lines)[:, None] & (column < wanted)[None, :]
    tl.store(made + place[:, None] + column[None, :], value.to(tl.uint8), inside)


def cut(
    torch: Any,
    frames: Sequence[Tensor],
    sides: Sequence[Sequence[float]],
    size: tuple[int, int],
    cubic: bool,
) -> Tensor:
    """Bytes [count, 3, *size]: a part of each of these frames [3, h, w], of any sizes. `sides`:
    begin, scale, low, high and filled pixels, across and then down."""
    held = [frame.contiguous() for frame in frames]
    height_max = max(frame.shape[1] for frame in held)
    # Addresses are whole numbers that these floats hold exactly.
    rows = np.array(
        [
            (frame.data_ptr(), frame.shape[1], frame.shape[2], *both)
            for frame, both in zip(held, sides, strict=True)
        ],
        np.float64,
    )
    told, like, count = torch.from_numpy(rows), held[0], len(held)
    # So little is copied before the call returns, from memory that is not pinned too.
    told = told.to(like.device, non_blocking=True)
    lines, wanted = size
    between = like.new_empty((count, 3, height_max, wanted))
    made = like.new_empty((count, 3, lines, wanted))
    columns = triton.next_power_of_2(wanted)
    parts = count, triton.cdiv(3 * height_max, ROWS)
    across[parts](told, between, height_max, wanted, columns, ROWS, cubic)
    blocks = count, 3, triton.cdiv(lines, ROWS)
    down[blocks](told, between, made, height_max, wanted, lines, columns, ROWS, cubic)
    return made
