"""Imports between the rooms of a package: its direct children, modules and sub-packages alike."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from benchmarks.house_code import Place, Source, below_installed, last_name

Arrow = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Crossing:
    """One import of a room by another."""

    arrow: Arrow
    """From the room that imports to the one imported."""
    at_run_time: bool
    place: Place


def crossings(package: str, sources: Sequence[Source]) -> list[Crossing]:
    """Imports that lead from one room of `package` into another."""
    modules = {source.module for source in sources}
    return [
        Crossing((room, other), at_run_time, source.place(node, f"{package}: {room} -> {other}"))
        for source in sources
        if (room := room_of(source.module, package))
        for node, at_run_time in imports(source.tree)
        for other in sorted({room_of(name, package) for name in imported(node, source, modules)})
        if other not in ("", room)
    ]


def room_of(module: str, package: str) -> str:
    """Direct child of `package` that holds a module; empty for modules elsewhere."""
    parts = module.split(".")
    return parts[1] if parts[0] == package and len(parts) > 1 else ""


def imports(tree: ast.AST, at_run_time: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Each import statement, and whether it is carried out when the program runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, at_run_time
        elif isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
            yield from imports(ast.Module(node.body, []), False)
            yield from imports(ast.Module(node.orelse, []), at_run_time)
        else:
            yield from imports(node, at_run_time)


def imported(node: ast.stmt, source: Source, modules: Set[str]) -> Iterator[str]:
    """Modules that a statement imports; `from a import b` gives `a.b` where that is a module."""
    if isinstance(node, ast.Import):
        yield from (below_installed(each.name) for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = below_installed(origin(node, source))
        for each in node.names:
            full = f"{base}.{each.name}" if base else each.name
            yield full if full in modules else base


def origin(node: ast.ImportFrom, source: Source) -> str:
    """Module that names are imported from, with the dots of a relative import resolved."""
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    is_package = source.path.endswith("__init__.py")
    base = parts[: len(parts) - node.level + is_package]
    return ".".join([*base, node.module] if node.module else base)


def knotted(arrows: Set[Arrow]) -> set[Arrow]:
    """Arrows that are part of a cycle: both ends are in one strongly connected component."""
    following: defaultdict[str, list[str]] = defaultdict(list)
    for start, end in arrows:
        following[start].append(end)

    def reached(room: str) -> set[str]:
        seen, waiting = {room}, [room]
        while waiting:
            more = set(following.get(waiting.pop(), ())) - seen
            seen |= more
            waiting += more
        return seen

    beyond = {end: reached(end) for _, end in arrows}
    return {(start, end) for start, end in arrows if start in beyond[end]}


def upward(arrows: Iterable[Arrow]) -> set[Arrow]:
    """A small set of arrows without which the rooms can be ordered in floors.

    Takes the arrow first whose removal leaves the fewest others in cycles. The smallest set is
    hard to find in general; of a few small cycles this finds it.
    """
    kept, found = set(arrows), set[Arrow]()
    while knot := knotted(kept):
        one = min(sorted(knot), key=lambda each: len(knotted(knot - {each})))
        kept.discard(one)
        found.add(one)
    for one in sorted(found):
        if one not in knotted(kept | {one}):
            kept.add(one)
    return found - kept


def upward_at_run_time(found: Iterable[Crossing]) -> set[Arrow]:
    return upward(each.arrow for each in found if each.at_run_time)
