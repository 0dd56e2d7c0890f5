"""Measurements of Python sources: classes, functions, loose types, string keys and constants."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

Function = ast.FunctionDef | ast.AsyncFunctionDef
INSTALLED = "fermata"
"""Package that holds the top-level folders once installed."""
MAPPINGS = {"dict", "Dict", "defaultdict", "OrderedDict", "Mapping", "MutableMapping"}
ANYTHING = {"Any", "object"}
GENERICS = {"dict", "frozenset", "list", "set", "tuple", "type"}


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """One finding, printed the way compilers print theirs."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Source:
    """One Python file; `path` is relative to the repository, with slashes."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """Every node of the tree: walking it anew for each measurement takes seconds."""
        return tuple(ast.walk(self.tree))

    @property
    def module(self) -> str:
        """Dotted name below the installed package: `router.core.engine`."""
        parts = PurePosixPath(self.path).with_suffix("").parts
        return below_installed(".".join(parts[:-1] if parts[-1] == "__init__" else parts))

    def place(self, node: ast.stmt | ast.expr, text: str) -> Place:
        return Place(self.path, node.lineno, text)

    def excerpt(self, node: ast.expr, shown: str = "") -> Place:
        """Where `node` stands, with its source line."""
        line = self.text.splitlines()[node.lineno - 1].strip()
        return self.place(node, f"{shown}: {line}" if shown else line)


def below_installed(module: str) -> str:
    """A module's name without the installed package's, `fermata.router` and `router` alike."""
    return "" if module == INSTALLED else module.removeprefix(f"{INSTALLED}.")


def folder_sizes(sources: Iterable[Source]) -> Counter[str]:
    """Modules in each folder, `__init__.py` aside."""
    paths = (PurePosixPath(source.path) for source in sources)
    return Counter(str(path.parent) for path in paths if path.name != "__init__.py")


def shared_classes(sources: Iterable[Source]) -> dict[str, list[Place]]:
    """Class names that more than one module defines at its top level, and where."""
    found: defaultdict[str, dict[str, Place]] = defaultdict(dict)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name][source.path] = source.place(node, f"class {node.name}")
    return {name: list(places.values()) for name, places in found.items() if len(places) > 1}


def declared(node: ast.ClassDef) -> set[str]:
    """Fields that a class declares by itself, without their units."""
    named = (
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    )
    return {name.removesuffix("_ns").removesuffix("_ms") for name in named}


def declarations_of(name: str, sources: Sequence[Source], least: int) -> list[Place]:
    """Classes that declare at least so many of the fields of the class of this name, itself too."""
    classes = [
        (source.place(node, f"class {node.name}"), node.name, declared(node))
        for source in sources
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
    ]
    wanted = {field for _, own, fields in classes if own == name for field in fields}
    return [place for place, _, fields in classes if len(fields & wanted) >= least]


@dataclass(frozen=True, order=True, slots=True)
class Measured:
    """One function and its lines, decorators aside."""

    place: Place
    lines: int


def functions(sources: Iterable[Source]) -> list[Measured]:
    """Every function and method, nested ones too; the place's text is the name."""
    return sorted(
        Measured(source.place(node, node.name), (node.end_lineno or node.lineno) - node.lineno + 1)
        for source in sources
        for node in source.nodes
        if isinstance(node, Function)
    )


def asserts(sources: Iterable[Source]) -> int:
    return sum(isinstance(node, ast.Assert) for source in sources for node in source.nodes)


def last_name(node: ast.expr) -> str:
    """`Mapping` of both `Mapping` and `abc.Mapping`; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def annotations(source: Source) -> Iterator[ast.expr]:
    for node in source.nodes:
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation:
            yield node.annotation
        elif isinstance(node, Function) and node.returns:
            yield node.returns


def unquoted(annotation: ast.expr) -> Iterator[ast.expr]:
    """Types that an annotation names in quotes, at the lines of the quotes."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                parsed = ast.parse(node.value.strip(), mode="eval").body
            except SyntaxError:  # Literal["x-y"] holds a value, not a type.
                continue
            for inner in ast.walk(parsed):
                if isinstance(inner, ast.expr):
                    yield ast.copy_location(inner, node)


def is_loose(node: ast.AST) -> bool:
    """`dict[str, Any]` and its kin, with `object` as well."""
    return (
        isinstance(node, ast.Subscript)
        and last_name(node.value) in MAPPINGS
        and isinstance(node.slice, ast.Tuple)
        and len(node.slice.elts) == 2
        and last_name(node.slice.elts[0]) == "str"
        and last_name(node.slice.elts[1]) in ANYTHING
    )


def assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names bound at module level, each with its value; `A, B = 1, 2` binds two."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value:
            targets: Sequence[ast.expr] = (node.target,)
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        for target in targets:
            yield from bound(target, node.value)


def bound(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name) and value:
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, its in zip(target.elts, value.elts, strict=False):
            yield from bound(each, its)


def loose_aliases(sources: Sequence[Source]) -> dict[str, set[str]]:
    """Names of each module that stand for a loose type, or one or the other; imported ones too."""
    known: dict[str, set[str]] = {source.module: set() for source in sources}

    def is_alias(value: ast.expr, names: set[str]) -> bool:
        if isinstance(value, ast.BinOp):
            return is_alias(value.left, names) or is_alias(value.right, names)
        return is_loose(value) or (isinstance(value, ast.Name) and value.id in names)

    def spread(source: Source) -> bool:
        names = known[source.module]
        before = len(names)
        names |= {name for name, value in assigned(source.tree) if is_alias(value, names)}
        for node in source.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                origin = known.get(below_installed(node.module), ())
                names |= {each.asname or each.name for each in node.names if each.name in origin}
        return len(names) > before

    while sum(spread(source) for source in sources):
        pass
    return known


def loose_types(sources: Sequence[Source]) -> list[Place]:
    """Each `dict[str, Any]` or the like, and each use of an alias of one."""
    aliases = loose_aliases(sources)
    found = []
    for source in sources:
        names = aliases[source.module]
        quoted = [node for each in annotations(source) for node in unquoted(each)]
        for node in (*source.nodes, *quoted):
            match node:
                case ast.Subscript() if is_loose(node):
                    found.append(source.excerpt(node, ast.unparse(node)))
                case ast.Name(id=name, ctx=ast.Load()) if name in names:
                    found.append(source.excerpt(node, name))
    return sorted(found)


def is_type(node: ast.expr) -> bool:
    """Whether a name reads as a class (`Literal`, `list`), whose subscripts are types."""
    name = last_name(node)
    return name in GENERICS or (name[:1].isupper() and not name.isupper())


def string_keys(sources: Iterable[Source]) -> list[Place]:
    """Each `x["key"]`, types and `os.environ` aside."""
    found = []
    for source in sources:
        typed = {id(node) for each in annotations(source) for node in ast.walk(each)}
        for node in source.nodes:
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.slice, ast.Constant)
                and isinstance(node.slice.value, str)
                and id(node) not in typed
                and not is_type(node.value)
                and last_name(node.value) != "environ"
            ):
                found.append(source.excerpt(node))
    return sorted(found)


def numbers(value: ast.expr) -> int | None:
    """Literals that a numeric expression is made of; None if anything else is in it.

    Other constants in capitals and calls of functions, such as `ms(20)`, may be part of one.
    """
    parts: Sequence[ast.expr]
    match value:
        case ast.Constant():
            return 1 if type(value.value) in (int, float) else None
        case ast.Name() | ast.Attribute():
            return 0 if last_name(value).isupper() else None
        case ast.UnaryOp():
            parts = (value.operand,)
        case ast.BinOp():
            parts = value.left, value.right
        case ast.Tuple():
            parts = value.elts
        case ast.Call() if last_name(value.func).islower() and not value.keywords:
            parts = value.args
        case _:
            return None
    counts = [numbers(part) for part in parts]
    return None if None in counts else sum(count or 0 for count in counts)


def numeric_constants(sources: Iterable[Source]) -> list[Place]:
    """Names in capitals, bound to numbers or tuples of numbers at module level."""
    return [
        source.place(value, f"{name} = {ast.unparse(value)}")
        for source in sources
        for name, value in assigned(source.tree)
        if name.isupper() and numbers(value)
    ]
