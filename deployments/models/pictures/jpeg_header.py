"""The header of a JPEG: whether every decoder reads the file alike, and the picture's size."""

import re

MAGIC = b"\xff\xd8"
BASELINE, SCAN, END = 0xC0, 0xDA, 0xD9
ADOBE = 0xEE
TABLES = frozenset({0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)})
"""Segments that may come before the scan, beside the frame: Huffman codes, quantisation, restart
interval, comment and those of applications. Frames of other processes, such as progressive ones,
are left out, and so are markers without a length, which decoders do not read alike."""
RGB_IDS = (0x52, 0x47, 0x42)
"""Components named R, G and B are not converted."""
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7]")
"""In the data of a scan, 0xFF is followed by 0, or is a restart marker; others end the scan."""


def baseline_size(data: bytes) -> tuple[int, int] | None:
    """(height, width) of a whole baseline JPEG in one scan, grey or YCbCr; None of others.

    Others are progressive, lossless or cut off, or hold CMYK or RGB. A thumbnail before the scan
    and whatever is behind the end, such as padding or a second picture, make no difference.
    """
    if not data.startswith(MAGIC):
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
        if marker == SCAN:
            return size if _ends(data, at + 2 + length) else None
        if marker == BASELINE and size is None:
            size = _frame_size(segment)
            if size is None:
                return None
        elif marker not in TABLES or length < 2:
            return None
        if marker == ADOBE and segment.startswith(b"Adobe") and segment[11:12] != b"\x01":
            return None
        at += 2 + length
    return None


def _ends(data: bytes, at: int) -> bool:
    """Whether the scan whose data begin there is whole, and the picture ends with it."""
    found = MARKER.search(data, at)
    if found is None:
        return False
    place = found.end() - 1
    # Any number of these may come before a marker.
    while place < len(data) and data[place] == 0xFF:
        place += 1
    return place < len(data) and data[place] == END


def _frame_size(segment: bytes) -> tuple[int, int] | None:
    """Of eight bits a sample and one or three components; None of other frames."""
    if len(segment) < 6 or segment[0] != 8:
        return None
    height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
    ids = tuple(segment[6::3])
    if not height or not width or len(ids) not in (1, 3) or ids == RGB_IDS:
        return None
    return height, width
