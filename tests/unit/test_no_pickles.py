"""Nothing that a client or a peer on a link has sent is ever unpickled."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICKLERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
PACKAGES = ("clients", "deployments", "router", "profiles", "partitioner", "autoscaler")
OWN_CHILDREN = {
    # Talks to a child of its own over a pipe that nobody else holds.
    "router/live/subprocess_worker.py"
}
LOADERS = {
    # What tells each of these loaders to take numbers alone.
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
}


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_no_pickler_is_imported() -> None:
    found = {str(path.relative_to(ROOT)): imported(parsed(path)) & PICKLERS for path in modules()}
    assert {path for path, picklers in found.items() if picklers} == OWN_CHILDREN


def test_loaders_take_numbers_alone() -> None:
    calls = 0
    for path in modules():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LOADERS:
                name, value = LOADERS[ast.unparse(node.func)]
                given = {each.arg: ast.unparse(each.value) for each in node.keywords}
                assert given.get(name) == str(value), f"{path}: {ast.unparse(node)}"
                calls += 1
    assert calls
