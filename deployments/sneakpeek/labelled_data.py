"""Labelled samples in arrays, archives, tables of texts and folders of pictures, read in parts."""

import csv
import os
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fermata.clients.wire.errors import BadRequestError
from fermata.foundation.errors import ConfigError
from fermata.foundation.refusals import refuse

Array = NDArray[Any]
Labels = NDArray[np.int64]
Part = tuple[Labels, Array]
"""Numbers of some samples, ascending, and the samples themselves."""

PART_BYTES = 16 << 20
PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
PIXELS_MAX = 64_000_000
TEXT_COLUMN, LABEL_COLUMN = "text", "label"


class LabelledData(Protocol):
    """Samples with their classes. The samples themselves may not fit in memory."""

    labels: Labels
    """Class of each sample, from 0 up."""
    names: tuple[str, ...]
    """Names of classes; empty where they have none."""
    input_shape: tuple[int, ...]
    dtype: str

    def parts(self, numbers: Labels) -> Iterator[Part]:
        """The samples of these ascending numbers; what cannot be read may be left out."""
        ...

    def checksum(self) -> str:
        """Names the data: one changed pixel gives another."""
        ...


class ArrayData:
    """Samples in memory."""

    names: tuple[str, ...] = ()

    def __init__(self, samples: Array, labels: Labels) -> None:
        self.samples, self.labels = samples, labels.astype(np.int64)
        self.input_shape, self.dtype = samples.shape[1:], samples.dtype.name

    def parts(self, numbers: Labels) -> Iterator[Part]:
        size = _rows_at_a_time(self.samples.dtype, self.input_shape)
        for start in range(0, len(numbers), size):
            mine = numbers[start : start + size]
            yield mine, self.samples[mine]

    def checksum(self) -> str:
        digest = _begin(self.samples.shape)
        for _, rows in self.parts(np.arange(len(self.samples))):
            digest.update(_floats(rows))
        return _ended(digest, self.labels)


class ArchiveData:
    """An .npz with `samples` [n, ...] and `labels` [n] from 0 up; samples are never all in
    memory."""

    names: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with np.load(path, allow_pickle=False) as held:
                labels = held["labels"]
            with self._open() as file:
                self.shape, self.kind = _read_header(file)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"data={str(path)!r}: cannot be read ({reason}); give an .npz with samples and "
                "labels"
            ) from None
        check_labels(path, self.shape[0] if self.shape else 0, labels)
        self.labels = labels.astype(np.int64)
        self.input_shape, self.dtype = self.shape[1:], self.kind.name

    def _open(self) -> IO[bytes]:
        archive = zipfile.ZipFile(self.path)
        with archive:
            # The member stays readable until it is closed itself.
            return archive.open("samples.npy")

    def parts(self, numbers: Labels) -> Iterator[Part]:
        size = _rows_at_a_time(self.kind, self.input_shape)
        each = self.kind.itemsize * int(np.prod(self.input_shape))
        with self._open() as file:
            _read_header(file)
            for start in range(0, len(self.labels), size):
                count = min(size, len(self.labels) - start)
                held = file.read(count * each)
                mine = numbers[np.searchsorted(numbers, start) :]
                mine = mine[: np.searchsorted(mine, start + count)]
                if len(mine):
                    rows = np.frombuffer(held, self.kind).reshape(count, *self.input_shape)
                    yield mine, rows[mine - start]

    def checksum(self) -> str:
        digest = _begin(self.shape)
        for _, rows in self.parts(np.arange(len(self.labels))):
            digest.update(_floats(rows))
        return _ended(digest, self.labels)


class TextData:
    """A CSV with the columns `text` and `label`; samples are token ids."""

    dtype = "int64"

    def __init__(self, path: Path, length: int, names: Sequence[str] = ()) -> None:
        self.path = path
        self.input_shape: tuple[int, ...] = (length,)
        given = [label for _, label in self._rows()]
        if not given:
            refuse("data", str(path), "holds no texts; give lines with a text and its label")
        self.names, self.labels = number_classes(path, given, names)

    def _rows(self) -> Iterator[tuple[str, str]]:
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file)
                missing = {TEXT_COLUMN, LABEL_COLUMN} - set(reader.fieldnames or ())
                if missing:
                    rule = f"has no column {' nor '.join(sorted(missing))}; its first line names"
                    refuse("data", str(self.path), f"{rule} columns, `text` and `label` among them")
                for row in reader:
                    text, label = row[TEXT_COLUMN], row[LABEL_COLUMN]
                    if text is None or label is None or not label.strip():
                        rule = "has no text or no label; give both"
                        refuse("data", f"{self.path}:{reader.line_num}", rule)
                    yield text, label.strip()
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            refuse("data", str(self.path), f"cannot be read ({error}); give a CSV in UTF-8")

    def parts(self, numbers: Labels) -> Iterator[Part]:
        from fermata.deployments.models.minilm import Tokens

        tokens = Tokens(self.input_shape[0])
        wanted = set(numbers.tolist())
        held: list[int] = []
        texts: list[str] = []
        for number, (text, _) in enumerate(self._rows()):
            if number in wanted:
                held.append(number)
                texts.append(text)
            if len(texts) == 1024:
                yield np.array(held), tokens(texts)
                held, texts = [], []
        if texts:
            yield np.array(held), tokens(texts)

    def checksum(self) -> str:
        return digest_files([self.path])


class FolderData:
    """A folder with a folder of pictures for each class."""

    dtype = "uint8"

    def __init__(
        self, path: Path, side: int, fit: str, names: Sequence[str] = (), skip: bool = False
    ) -> None:
        """`skip` leaves unreadable pictures out, and counts them."""
        self.path, self.side, self.fit, self.skip = path, side, fit, skip
        self.input_shape: tuple[int, ...] = (3, side, side)
        self.unreadable: set[Path] = set()
        folders = sorted(each for each in path.iterdir() if each.is_dir())
        self.files = [
            file
            for folder in folders
            for file in sorted(folder.rglob("*"))
            if file.suffix.lower() in PICTURES
        ]
        if not self.files:
            rule = f"holds no pictures ({', '.join(PICTURES)}); give a folder for each class"
            refuse("data", str(path), rule)
        given = [file.relative_to(path).parts[0] for file in self.files]
        empty = sorted({each.name for each in folders} - set(given))
        if empty:
            refuse("class", empty[0], f"holds no pictures in {path}; add some or remove the folder")
        self.names, self.labels = number_classes(path, given, names)

    def parts(self, numbers: Labels) -> Iterator[Part]:
        size = _rows_at_a_time(np.dtype(np.uint8), self.input_shape)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for start in range(0, len(numbers), size):
                mine = numbers[start : start + size]
                found = list(pool.map(self._picture, (self.files[each] for each in mine)))
                kept = [each for each in found if each is not None]
                if kept:
                    read = [each is not None for each in found]
                    yield mine[read], np.stack(kept)

    def _picture(self, file: Path) -> Array | None:
        """The picture as a frontend would make it."""
        from fermata.deployments.models.pictures.decoding import decode_square

        try:
            return decode_square(file.read_bytes(), PIXELS_MAX, self.side, self.fit)
        except (OSError, BadRequestError) as error:
            if self.skip:
                self.unreadable.add(file)
                return None
            raise ConfigError(
                f"picture {file} cannot be read ({error}); mend or remove it, or leave such out "
                "with --skip-unreadable"
            ) from None

    def checksum(self) -> str:
        return digest_files(self.files, self.path)


def number_classes(
    path: Path, given: Sequence[str], names: Sequence[str]
) -> tuple[tuple[str, ...], Labels]:
    """Names of classes in order, and the class of each sample: by number where all names are
    numbers, by `names` where some are given, else by name."""
    found = set(given)
    ordered = sorted(found, key=int) if all(map(str.isdecimal, found)) else sorted(found)
    if names:
        unknown, absent = sorted(found - set(names)), sorted(set(names) - found)
        if unknown or absent:
            rule = f"has no samples of {absent[0]!r}" if absent else f"holds {unknown[0]!r} too"
            refuse("data", str(path), f"{rule}; --labels must name all of its classes")
        ordered = list(names)
    if len(ordered) < 2:
        refuse("data", str(path), f"has one class, {ordered[0]!r}; a look needs two to tell apart")
    number = {name: place for place, name in enumerate(ordered)}
    return tuple(ordered), np.array([number[each] for each in given], np.int64)


def check_labels(path: Path, count: int, labels: Array) -> None:
    """Refuse labels that are none."""
    if count != len(labels) or labels.ndim != 1 or not len(labels):
        refuse("data", str(path), f"has {count} samples and {len(labels)} labels")
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        refuse("data", str(path), "labels must be whole numbers from 0 up")


def digest_files(files: Sequence[Path], below: Path | None = None) -> str:
    """Names files by what they hold and, below a folder, by where they lie."""
    digest = blake2b(digest_size=16)
    for file in files:
        if below is not None:
            digest.update(repr(file.relative_to(below).parts).encode())
        with file.open("rb") as opened:
            while part := opened.read(PART_BYTES):
                digest.update(part)
    return digest.hexdigest()


def _rows_at_a_time(kind: "np.dtype[Any]", shape: tuple[int, ...]) -> int:
    # Samples become floats of 4 bytes.
    return max(1, PART_BYTES // (max(4, kind.itemsize) * max(1, int(np.prod(shape)))))


def _read_header(file: Any) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """Shape and type of the array in an opened .npy; the file is at its contents then."""
    version = np.lib.format.read_magic(file)
    read: Any = np.lib.format.read_array_header_2_0
    if version == (1, 0):
        read = np.lib.format.read_array_header_1_0
    shape, by_column, kind = read(file)
    if kind.hasobject or kind.kind not in "fiub":
        raise ValueError(f"samples are {kind.name}, not numbers")
    if by_column and len(shape) > 1:
        raise ValueError("samples are stored column by column; save np.ascontiguousarray of them")
    return shape, kind


def _begin(shape: tuple[int, ...]) -> Any:
    digest = blake2b(digest_size=16)
    digest.update(repr(shape).encode())
    return digest


def _floats(rows: Array) -> bytes:
    return np.ascontiguousarray(rows, np.float32).tobytes()


def _ended(digest: Any, labels: Labels) -> str:
    digest.update(repr(labels.shape).encode())
    digest.update(np.ascontiguousarray(labels, np.int64).tobytes())
    name: str = digest.hexdigest()
    return name
