"""Gates with one condition silenced, compiled from their own source in memory: what a session must not stay green with.

Every comparison, every `if` and every filter of a comprehension that a gate's `judge` can reach is replaced by its
negation, by False and by True, one at a time. Nothing on disk changes.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Silenced:
    """One mutant: a condition as it stands in the source of a function, what became of it, and the compiled module's names."""

    function: str
    condition: str
    became: str
    names: dict[str, Any]

    @property
    def key(self) -> str:
        return f"{self.function}: {self.condition} -> {self.became}"


def silenced(module: ModuleType, roots: tuple[str, ...] = ("judge",)) -> Iterator[Silenced]:
    """Every mutant of the functions and methods that `roots` reach within the module."""
    tree = ast.parse(inspect.getsource(module))
    for index, (function, condition) in enumerate(_conditions(tree, roots)):
        text = ast.unparse(condition)
        binds = any(isinstance(node, ast.NamedExpr) for node in ast.walk(condition))
        for became in ("negated", "False") if binds else ("negated", "False", "True"):
            yield Silenced(function, text, became, _compiled(module, tree, roots, index, became))


def _conditions(tree: ast.Module, roots: tuple[str, ...]) -> list[tuple[str, ast.expr]]:
    """Each once, with the function it is in, in a fixed order."""
    found: dict[int, tuple[str, ast.expr]] = {}
    for function in _reachable(tree, roots):
        for node in ast.walk(function):
            chosen: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                chosen = [node]
            elif isinstance(node, ast.If | ast.IfExp):
                chosen = [node.test]
            elif isinstance(node, ast.comprehension):
                chosen = node.ifs
            found |= {id(condition): (function.name, condition) for condition in chosen}
    return list(found.values())


def _reachable(tree: ast.Module, roots: tuple[str, ...]) -> list[ast.FunctionDef]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    seen: list[str] = []
    waiting = [name for name in roots if name in functions]
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.append(name)
        for node in ast.walk(functions[name]):
            used = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
            if used in functions:
                waiting.append(used)
    return [functions[name] for name in seen]


def _compiled(module: ModuleType, tree: ast.Module, roots: tuple[str, ...], index: int, became: str) -> dict[str, Any]:
    mutant = copy.deepcopy(tree)
    _, target = _conditions(mutant, roots)[index]
    new: ast.expr
    if became != "negated" and isinstance(target, ast.Compare):  # of every element where it compares arrays
        new = ast.BinOp(target, ast.BitOr() if became == "True" else ast.BitAnd(), ast.Constant(became == "True"))
    elif became != "negated":
        new = ast.Constant(became == "True")
    elif isinstance(target, ast.Compare) and len(target.ops) == 1:
        new = ast.Compare(target.left, [_NEGATED[type(target.ops[0])]()], target.comparators)
    else:
        new = ast.UnaryOp(ast.Not(), target)
    changed = ast.fix_missing_locations(_Replace(target, new).visit(mutant))
    names: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__}
    exec(compile(changed, f"<silenced {module.__name__}>", "exec"), names)
    return names


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(self._new, node) if node is self._old else self.generic_visit(node)
