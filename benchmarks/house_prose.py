"""Measurements of prose: comments, docstrings and Markdown pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from benchmarks.house_code import Function, Place, Source

OPENINGS = re.compile(r"\W*(who|whose|whoever|what|whatever|of)\b", re.IGNORECASE)
QUESTIONS = re.compile(
    rf"{OPENINGS.pattern}|\W*(how|when|where|whether|which|why)\b", re.IGNORECASE
)
TELLING = re.compile(r"(say|says|said|saying|tell|tells|told|telling|word|words)", re.IGNORECASE)
DIRECTIVE = re.compile(r"!|-\*-|(noqa|type:|pragma|mypy:|ruff:|fmt:|isort:)")
"""Comments for tools, which nobody reads as prose."""
WORD = re.compile(r"[^\W\d_](?:[\w'-]*\w)?")

FENCE = re.compile(r"\s*(```|~~~)")
ITEM = re.compile(r"\s*([-*+]|\d+[.)])\s+")
CODE = re.compile(r"(`+).+?\1")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
SHORT = re.compile(r"\b(e\.g|i\.e|vs|cf|al|Figs?|Sec|No)\.")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z0-9`])")


def docstrings(source: Source) -> Iterator[Place]:
    """Docstrings of modules, classes and functions, and those that follow an assignment."""
    for node in source.nodes:
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        documented = isinstance(node, ast.Module | ast.ClassDef | Function)
        starts = body[:1] if documented else []
        after = [it for was, it in pairwise(body) if isinstance(was, ast.Assign | ast.AnnAssign)]
        for each in (*starts, *after):
            match each:
                case ast.Expr(ast.Constant(str(text))):
                    yield source.place(each, " ".join(text.split()))


def comments(source: Source) -> list[Place]:
    """Comments; lines that have nothing else and follow each other make one."""
    found: list[Place] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        text, line = token.string[1:].strip(), token.start[0]
        if DIRECTIVE.match(text):
            continue
        alone = token.line.lstrip().startswith("#")
        if alone and last == line - 1:
            found[-1] = Place(source.path, found[-1].line, f"{found[-1].text} {text}")
        else:
            found.append(Place(source.path, line, text))
        last = line if alone else 0
    return found


def remarks(sources: Iterable[Source]) -> list[Place]:
    """Every docstring and comment."""
    return sorted(place for source in sources for place in (*docstrings(source), *comments(source)))


def opening_with(pattern: re.Pattern[str], found: Iterable[Place]) -> list[Place]:
    return [place for place in found if pattern.match(place.text)]


def telling(found: Iterable[Place]) -> list[Place]:
    """One place for each say, tell or word, with the remark that it is in."""
    return [
        place for place in found for word in WORD.findall(place.text) if TELLING.fullmatch(word)
    ]


def word_count(found: Iterable[Place]) -> int:
    return sum(len(WORD.findall(place.text)) for place in found)


def outside_code(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not in fenced code."""
    fenced = False
    for number, line in enumerate(lines, 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def is_table(line: str) -> bool:
    return line.lstrip().startswith("|")


def words(line: str) -> int:
    """Runs of characters with a letter or a digit among them."""
    return sum(any(map(str.isalnum, part)) for part in line.split())


def table_share(page: str) -> float:
    """Share of a page's words, code included, that stand in tables."""
    lines = page.splitlines()
    inside = sum(words(line.replace("|", " ")) for _, line in outside_code(lines) if is_table(line))
    total = sum(words(line.replace("|", " ")) for line in lines)
    return inside / total if total else 0.0


def paragraphs(path: str, page: str) -> list[Place]:
    """Prose of a page: no headings, tables, code or HTML; an item of a list is one of its own."""
    found: list[Place] = []
    begun = False
    for number, line in outside_code(page.splitlines()):
        text = line.strip().lstrip("> ")
        if not text or is_table(text) or text.startswith(("#", "<")):
            begun = False
        elif begun and not ITEM.match(line):
            found[-1] = Place(path, found[-1].line, f"{found[-1].text} {text}")
        else:
            found.append(Place(path, number, ITEM.sub("", text, count=1)))
            begun = True
    return found


def sentences(path: str, page: str) -> list[Place]:
    """Sentences of a page's prose, at the lines where their paragraphs begin."""
    return [
        Place(path, place.line, sentence)
        for place in paragraphs(path, page)
        for sentence in SENTENCE_END.split(plain(place.text))
        if words(sentence)
    ]


def plain(text: str) -> str:
    """A paragraph in which code is one word and a link its text."""
    joined = CODE.sub(lambda code: "_".join(code[0].split()), text)
    return SHORT.sub(r"\1", LINK.sub(r"\1", joined))


def mean_length(found: Sequence[Place]) -> float:
    return sum(words(each.text) for each in found) / len(found) if found else 0.0
