"""The header of a JPEG: whether every decoder reads the file alike, and the picture's size."""

MAGIC = b"\xff\xd8"
END = b"\xff\xd9"
SCAN = b"\xff\xda"
BASELINE = 0xC0
OTHER_FRAMES = frozenset(range(0xC1, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Frames of other processes, such as progressive ones; the three left out are tables."""
ADOBE = 0xEE
SCAN_MARKER = 0xDA
RGB_IDS = (0x52, 0x47, 0x42)
"""Components named R, G and B are not converted."""


def baseline_size(data: bytes) -> tuple[int, int] | None:
    """(height, width) of a whole baseline JPEG in one scan, grey or YCbCr; None of others.

    Others are progressive, lossless or cut off, or hold CMYK or RGB.
    """
    if not data.startswith(MAGIC) or not data.endswith(END) or data.count(SCAN) != 1:
        return None
    size: tuple[int, int] | None = None
    at = len(MAGIC)
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            # Any number of these may come before a marker.
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at + 4 : at + 2 + length]
        if marker == SCAN_MARKER:
            return size
        if marker == BASELINE:
            size = _frame_size(segment)
        if marker in OTHER_FRAMES or (marker == BASELINE and size is None):
            return None
        if marker == ADOBE and segment.startswith(b"Adobe") and segment[11:12] != b"\x01":
            return None
        at += 2 + length
    return None


def _frame_size(segment: bytes) -> tuple[int, int] | None:
    """Of eight bits a sample and one or three components; None of other frames."""
    if len(segment) < 6 or segment[0] != 8:
        return None
    height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
    ids = tuple(segment[6::3])
    if not height or not width or len(ids) not in (1, 3) or ids == RGB_IDS:
        return None
    return height, width
