"""Figures of the code base's structure, on small made-up sources."""

from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks import house_code as code
from benchmarks import house_prose as prose
from benchmarks import house_rooms as rooms
from benchmarks.house import installed_names, shipped
from benchmarks.house_code import Place, Source


def source(text: str, path: str = "router/live.py") -> Source:
    return Source(path, dedent(text))


def lines(found: list[Place]) -> list[int]:
    return [place.line for place in found]


def test_a_place_reads_as_compilers_write_theirs() -> None:
    assert str(Place("router/live.py", 12, "x = 1")) == "router/live.py:12: x = 1"


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("router/core/engine.py", "router.core.engine"),
        ("router/core/__init__.py", "router.core"),
        ("fermata/router/live.py", "router.live"),
        ("fermata/__init__.py", ""),
    ],
)
def test_modules_are_named_below_the_installed_package(path: str, module: str) -> None:
    assert Source(path, "").module == module


def test_tests_benchmarks_generated_files_and_links_are_not_shipped(tmp_path: Path) -> None:
    paths = [
        "benchmarks/__init__.py",
        "docs/conf.py",
        "fermata/__init__.py",
        "router/__init__.py",
        "router/core/rank.py",
        "router/link.py",
        "router/wire_pb2.py",
        "setup.py",
        "tests/__init__.py",
    ]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "router/link.py").unlink()
    (tmp_path / "router/link.py").symlink_to("core/rank.py")
    found = [each.path for each in shipped(tmp_path, [*paths, "router/removed.py"])]
    assert found == ["fermata/__init__.py", "router/__init__.py", "router/core/rank.py"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ('packages = ["fermata", "fermata.router"]', ["fermata"]),
        ('packages.find.include = ["router*", "tools*"]', ["router", "tools"]),
        ('packages.find.include = ["fermata*"]', ["fermata"]),
        ('packages = []\npy-modules = ["alone"]', ["alone"]),
    ],
)
def test_installed_names_are_those_of_the_settings(
    tmp_path: Path, settings: str, names: list[str]
) -> None:
    for folder in ("router/core", "tools", "fermata"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "fermata/router").symlink_to("../router")
    project = '[project]\nname = "fermata"\nversion = "1"\n[tool.setuptools]\n'
    (tmp_path / "pyproject.toml").write_text(project + settings)
    assert installed_names(tmp_path) == names


def test_modules_of_a_folder_leave_out_its_init_and_its_folders() -> None:
    paths = ("router/__init__.py", "router/live.py", "router/word.py", "router/core/rank.py")
    sizes = code.folder_sizes(Source(path, "") for path in paths)
    assert sizes == {"router": 2, "router/core": 1}


def test_class_names_of_two_modules_are_shared() -> None:
    first = source("class Desk: ...\nclass Slot: ...\nclass Slot: ...", "router/a.py")
    second = source("class Outer:\n    class Slot: ...\nclass Desk: ...", "router/b.py")
    shared = code.shared_classes([first, second])
    assert shared == {
        "Desk": [Place("router/a.py", 1, "class Desk"), Place("router/b.py", 3, "class Desk")]
    }


def test_a_class_with_the_fields_of_another_declares_it_again() -> None:
    spec = source(
        "class Spec:\n    name: str\n    slo_ns: int\n    share: float = 1\n", "router/a.py"
    )
    text = "class Config:\n    name: str\n    slo_ms: float\nclass Other(Spec):\n    name: str"
    copy = source(text, "router/b.py")
    assert code.declarations_of("Spec", [spec, copy], 2) == [
        Place("router/a.py", 1, "class Spec"),
        Place("router/b.py", 1, "class Config"),
    ]


def test_functions_are_measured_from_def_to_end() -> None:
    found = code.functions(
        [
            source("""\
            @decorated
            def outer():
                async def inner():
                    pass

                assert inner
            class Some:
                def method(self): assert 1
            """)
        ]
    )
    assert [(each.place.text, each.place.line, each.lines) for each in found] == [
        ("outer", 2, 5),
        ("inner", 3, 2),
        ("method", 8, 1),
    ]


def test_asserts_are_counted_wherever_they_stand() -> None:
    assert code.asserts([source("assert 1\ndef run():\n    assert 2\n    assertion = 3")]) == 2


def test_loose_types_are_counted_in_annotations_calls_and_aliases() -> None:
    found = code.loose_types(
        [
            source("""\
            Json = dict[str, Any]
            Maybe = Json | None
            Pair = tuple[Json, int]
            def read(given: abc.Mapping[str, object], kept: "dict[str, Any] | None") -> Maybe:
                return cast(Json, given)
            sound: dict[str, int] = {}
            keyed: dict[int, Any] = {}
            nested: dict[str, dict[str, Any]] = {}
            """)
        ]
    )
    # Line 4 has one in full, one in quotes and one by alias.
    assert lines(found) == [1, 2, 3, 4, 4, 4, 5, 8]


def test_an_alias_counts_in_modules_that_import_it_and_nowhere_else() -> None:
    sources = [
        source("from fermata.router.types import Json as J\nx: J", "fermata/router/a.py"),
        source("from router.a import J\ny: J", "router/b.py"),
        source("class Json: ...\nz: Json", "router/c.py"),
        source("Json = Mapping[str, Any]", "router/types.py"),
    ]
    assert [(place.path, place.line) for place in code.loose_types(sources)] == [
        ("fermata/router/a.py", 2),
        ("router/b.py", 2),
        ("router/types.py", 1),
    ]


def test_string_keys_leave_out_types_and_the_environment() -> None:
    found = code.string_keys(
        [
            source("""\
            x = row["a"]["b"]
            row["c"] = 1
            TABLE["d"]
            def of(given: Literal["e"], other: list["Row"]) -> "Row": ...
            Kind = Literal["f"]
            os.environ["HOME"]
            row[key], row[0], row[f"{key}"], row["g":]
            del read()["h"]
            """)
        ]
    )
    assert lines(found) == [1, 1, 2, 3, 8]


def test_constants_are_numbers_in_capitals_at_module_level() -> None:
    found = code.numeric_constants(
        [
            source("""\
            ONE = 1
            PAUSE_NS: int = ms(20)
            TWICE = -2 * PAUSE_NS
            LOW, HIGH = 0.1, (1, 2)
            ROOT = Path(__file__).parents[1]
            NAME = "x"
            FLAG = True
            SAME = ONE
            lower = 3
            PANEL = Panel(4)
            class Some:
                INNER = 5
            """)
        ]
    )
    assert [place.text.split(" = ")[0] for place in found] == [
        "ONE",
        "PAUSE_NS",
        "TWICE",
        "LOW",
        "HIGH",
    ]


def test_rooms_are_joined_by_imports_of_every_form() -> None:
    sources = [
        source("", "router/__init__.py"),
        source("from router.core.rank import Rank\nfrom router.core import rank", "router/live.py"),
        source("from router import live, VERSION\nimport router.core.rank", "router/word.py"),
        source("from ..live import x\nfrom . import queue\nimport os", "router/core/rank.py"),
        source("from fermata.router import word\nimport deployments.app", "router/core/queue.py"),
        source("from router.core import rank", "simulator/run.py"),
    ]
    found = rooms.crossings("router", sources)
    assert {each.arrow for each in found} == {
        ("live", "core"),
        ("word", "live"),
        ("word", "core"),
        ("core", "live"),
        ("core", "word"),
    }
    assert found[0].place == Place("router/live.py", 1, "router: live -> core")


def test_imports_for_types_alone_do_not_run() -> None:
    sources = [
        source(
            """\
            if TYPE_CHECKING:
                from router import a
            else:
                from router import b
            def late():
                from router import c
            """,
            "router/live.py",
        ),
        *(Source(f"router/{name}.py", "") for name in "abc"),
    ]
    found = rooms.crossings("router", sources)
    assert [(each.arrow[1], each.at_run_time) for each in found] == [
        ("a", False),
        ("b", True),
        ("c", True),
    ]


@pytest.mark.parametrize(
    ("arrows", "count"),
    [
        ("", 0),
        ("ab bc ac", 0),
        ("ab ba", 1),
        ("ab bc ca", 1),
        ("ab ba cd dc bc", 2),
        # Three cycles through `ab`: taking that one away ends them all.
        ("ab bc ca bd da be ea", 1),
        # A hub with three others around it, each joined both ways.
        ("ha ah hb bh hc ch", 3),
    ],
)
def test_upward_arrows_are_the_fewest_that_close_cycles(arrows: str, count: int) -> None:
    assert len(rooms.upward((each[0], each[1]) for each in arrows.split())) == count


def test_remarks_are_docstrings_attributes_and_blocks_of_comments() -> None:
    found = prose.remarks(
        [
            source('''\
            """Of a module."""
            # What follows
            # is one block.
            LIMIT = 3  # whose limit
            """What it limits."""
            # Often enough.

            # Whoever reads this.
            def run():
                """Run
                it."""
                x = 1  # type: ignore
                "".join("Who")
                "Who is not documented"
            ''')
        ]
    )
    assert [(place.line, place.text) for place in found] == [
        (1, "Of a module."),
        (2, "What follows is one block."),
        (4, "whose limit"),
        (5, "What it limits."),
        (6, "Often enough."),
        (8, "Whoever reads this."),
        (10, "Run it."),
    ]
    assert lines(prose.opening_with(prose.OPENINGS, found)) == [1, 2, 4, 5, 8]


def test_question_words_include_the_openings() -> None:
    places = [Place("a.py", 1, text) for text in ("How it runs.", "`Of` these.", "However.")]
    assert len(prose.opening_with(prose.QUESTIONS, places)) == 2


def test_telling_words_are_whole_words() -> None:
    places = [Place("a.py", 1, "It says: a word, told in words; an essay on swords at 10 o'clock.")]
    assert len(prose.telling(places)) == 4
    assert prose.word_count(places) == 13


PAGE = """\
# A heading is not read

Two words. `fermata load --ledger x.y` has four [words here](https://a.b/c d).
It goes on, e.g. Here, and at 1.5 ms
still.

- An item without an end
- Another. With two!

| a | table |
| --- | --- |
| of four | words |

```
code is
not read
```
"""


def test_sentences_are_those_of_prose() -> None:
    found = prose.sentences("docs/a.md", PAGE)
    assert [(each.line, prose.words(each.text)) for each in found] == [
        (3, 2),
        (3, 5),
        (3, 10),
        (7, 5),
        (8, 1),
        (8, 2),
    ]
    assert prose.mean_length(found) == 25 / 6


def test_tables_share_their_words_with_the_rest_of_the_page() -> None:
    # 2 + 3 of the table (its rule has none); 5 heading, 2 + 9 + 9 + 1, 5 + 3 items, 4 code.
    assert prose.table_share(PAGE) == pytest.approx(5 / (5 + 5 + 2 + 9 + 9 + 1 + 5 + 3 + 4))


def test_nothing_has_no_share_and_no_length() -> None:
    assert prose.table_share("") == 0.0
    assert prose.mean_length([]) == 0.0
