"""The code base's structure and prose in figures; `--list WHAT` prints every single place."""

import argparse
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration

from benchmarks import house_code as code
from benchmarks import house_prose as prose
from benchmarks import house_rooms as rooms
from benchmarks.figures import Figure, run
from benchmarks.house_code import Place, Source

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = ("benchmarks", "tests")
CORE = "router.core"
PACKAGES = ("router", "deployments")
"""Packages whose rooms are drawn."""

MODULES_MAX = 15
ARROWS_MAX = 21
FUNCTION_LINES_MAX = 60
APPLICATION = "ApplicationSpec"
OPTIONS_MIN = 5
"""Options of an application that a class must have in common with it to be a declaration of one."""
SENTENCE_WORDS_MAX = 25


@dataclass(frozen=True)
class House:
    """Sources and pages under measurement, each part read once."""

    root: Path

    @cached_property
    def sources(self) -> list[Source]:
        return shipped(self.root, tracked(self.root))

    @cached_property
    def remarks(self) -> list[Place]:
        return prose.remarks(self.sources)

    @cached_property
    def core(self) -> list[Source]:
        return [each for each in self.sources if f"{each.module}.".startswith(f"{CORE}.")]

    @cached_property
    def crossings(self) -> Mapping[str, Sequence[rooms.Crossing]]:
        return {package: rooms.crossings(package, self.sources) for package in PACKAGES}

    @cached_property
    def sentences(self) -> list[Place]:
        """Sentences of the reliability pages."""
        pages = sorted(self.root.glob("docs/reliability*.md"))
        return [
            sentence
            for page in pages
            for sentence in prose.sentences(
                page.relative_to(self.root).as_posix(), page.read_text(encoding="utf-8")
            )
        ]


def tracked(root: Path) -> list[str]:
    """Python files that git tracks, relative to the root."""
    command = ("git", "ls-files", "-z", "*.py")
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return listed.stdout.split("\0")[:-1]


def shipped(root: Path, paths: Sequence[str]) -> list[Source]:
    """Files of the packages among `paths`, without tests, benchmarks, generated code and links."""
    packages = {
        path.removesuffix("/__init__.py")
        for path in paths
        if path.count("/") == 1 and path.endswith("/__init__.py")
    }
    return [
        Source(path, (root / path).read_text(encoding="utf-8"))
        for path in paths
        if path.split("/")[0] in packages.difference(NOT_SHIPPED)
        and not path.endswith("_pb2.py")
        and (root / path).is_file()
        and not (root / path).is_symlink()
    ]


def installed_names(root: Path) -> list[str]:
    """Top-level names that the wheel puts on the user's path, as setuptools reads its settings."""
    distribution = Distribution({"src_root": str(root)})
    apply_configuration(distribution, root / "pyproject.toml")
    distribution.set_defaults()
    found = (*(distribution.packages or ()), *(distribution.py_modules or ()))
    return sorted({name.split(".")[0] for name in found})


def measure(house: House) -> Iterator[Figure]:
    yield Figure("top-level names in the wheel", len(installed_names(house.root)), "names", 1, True)
    yield from code_figures(house)
    yield from room_figures(house)
    yield from prose_figures(house)


def code_figures(house: House) -> Iterator[Figure]:
    sources = house.sources
    folder, size = max(code.folder_sizes(sources).items(), key=lambda each: each[1])
    yield Figure(f"modules in the fullest folder ({folder})", size, "modules", MODULES_MAX, True)
    yield Figure(
        "class names in use twice or more", len(code.shared_classes(sources)), "names", 9, True
    )
    name = "classes that declare the options of an application"
    yield Figure(name, len(application_places(house)), "classes", 1, True)
    loose = len(code.loose_types(sources))
    yield Figure("mappings of str to Any or object, aliases too", loose, "places", 29, True)
    keys = len(code.string_keys(sources))
    yield Figure("subscripts by a string key", keys, "places", 119, True)
    longest = max(code.functions(sources), key=lambda each: each.lines)
    name = f"longest function ({longest.place.text})"
    yield Figure(name, longest.lines, "lines", FUNCTION_LINES_MAX, True)
    name = f"functions above {FUNCTION_LINES_MAX} lines"
    yield Figure(name, len(long_functions(house)), "functions", 0, True)
    share = 100 * code.asserts(house.core) / len(code.functions(house.core))
    yield Figure(f"asserts per 100 functions of {CORE}", share, "asserts", 12)
    count = len(code.numeric_constants(sources))
    yield Figure("numeric constants at module level, for reference", count, "constants", 0)


def room_figures(house: House) -> Iterator[Figure]:
    for package, found in house.crossings.items():
        arrows = {each.arrow for each in found}
        name = f"imports between rooms of {package}"
        yield Figure(name, len(arrows), "pairs", ARROWS_MAX, True)
        yield Figure(f"{name}, upwards", len(rooms.upward_at_run_time(found)), "pairs", 0, True)


def prose_figures(house: House) -> Iterator[Figure]:
    remarks = house.remarks
    opened = 100 * len(prose.opening_with(prose.OPENINGS, remarks)) / len(remarks)
    yield Figure("comments that open with Who, What, Whose or Of", opened, "%", 5, True)
    asking = 100 * len(prose.opening_with(prose.QUESTIONS, remarks)) / len(remarks)
    yield Figure("the same, or any other question word, for reference", asking, "%", 0)
    told = 1000 * len(prose.telling(remarks)) / prose.word_count(remarks)
    yield Figure("say, tell, word in comments, for reference", told, "per 1,000 words", 0)
    readme = (house.root / "README.md").read_text(encoding="utf-8")
    yield Figure("README", len(readme.splitlines()), "lines", 120, True)
    tables = 100 * prose.table_share(readme)
    yield Figure("README words in tables", tables, "%", 25, True)
    mean = prose.mean_length(house.sentences)
    yield Figure("mean sentence of the reliability pages", mean, "words", 20, True)


def long_functions(house: House) -> list[Place]:
    return [
        Place(each.place.path, each.place.line, f"{each.place.text}, {each.lines} lines")
        for each in code.functions(house.sources)
        if each.lines > FUNCTION_LINES_MAX
    ]


def full_folders(house: House) -> list[Place]:
    return [
        Place(f"{folder}/__init__.py", 1, f"{size} modules")
        for folder, size in sorted(code.folder_sizes(house.sources).items())
        if size > MODULES_MAX
    ]


def installed_places(house: House) -> list[Place]:
    return [Place("pyproject.toml", 1, name) for name in installed_names(house.root)]


def class_places(house: House) -> list[Place]:
    shared = code.shared_classes(house.sources)
    return [place for _, places in sorted(shared.items()) for place in places]


def application_places(house: House) -> list[Place]:
    return code.declarations_of(APPLICATION, house.sources, OPTIONS_MIN)


def import_places(house: House) -> list[Place]:
    listed = []
    for found in house.crossings.values():
        up = rooms.upward_at_run_time(found)
        for each in found:
            suffix = "" if each.at_run_time else ", types only"
            suffix = ", upwards" if each.at_run_time and each.arrow in up else suffix
            listed.append(Place(each.place.path, each.place.line, each.place.text + suffix))
    return listed


def long_sentences(house: House) -> list[Place]:
    counted = ((prose.words(each.text), each) for each in house.sentences)
    return [
        Place(each.path, each.line, f"{count} words: {each.text}")
        for count, each in counted
        if count > SENTENCE_WORDS_MAX
    ]


LISTS: Mapping[str, Callable[[House], list[Place]]] = {
    "applications": application_places,
    "classes": class_places,
    "constants": lambda house: code.numeric_constants(house.sources),
    "dicts": lambda house: code.loose_types(house.sources),
    "folders": full_folders,
    "functions": long_functions,
    "imports": import_places,
    "names": installed_places,
    "openings": lambda house: prose.opening_with(prose.OPENINGS, house.remarks),
    "sentences": long_sentences,
    "subscripts": lambda house: code.string_keys(house.sources),
    "words": lambda house: prose.telling(house.remarks),
}


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--list", choices=LISTS, help="print the places behind a figure, and end")
    wanted = parser.parse_known_args()[0].list
    house = House(ROOT)
    if wanted:
        # A list that is piped into `head` ends quietly.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for place in LISTS[wanted](house):
            print(place)
    else:
        run("House", lambda quick: measure(house), parser)


if __name__ == "__main__":
    main()
