"""Reads a field once where a flat rule would read it again: ``w.streams`` becomes a local name.

Only while the field cannot have changed: a new value of the name, a store to any field, or a call that is not known to
be pure ends it. What one branch has read is not known after it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

Key = tuple[str, str]  # (name, field)


def read_once(
    body: Sequence[ast.stmt], pure: Callable[[ast.expr], bool], fresh: Callable[[str], str]
) -> list[ast.stmt]:
    """The statements with repeated reads of a field replaced.

    Args:
        body: statements of a function.
        pure: whether an expression makes no call that may change something.
        fresh: makes a name that is not used.
    """
    return _Reader(pure, fresh).block(list(body), {})


class _Reader:
    def __init__(self, pure: Callable[[ast.expr], bool], fresh: Callable[[str], str]) -> None:
        self.pure, self.fresh = pure, fresh

    def block(self, body: Sequence[ast.stmt], known: dict[Key, str]) -> list[ast.stmt]:
        """``known`` says which name holds which field; it is changed to what holds after the block."""
        out: list[ast.stmt] = []
        for i, s in enumerate(body):
            now = _evaluated_at_once(s)
            if now is not None and self.pure(now) and not _stores_field(s):
                for key in dict.fromkeys(_reads(now, certain=True)):
                    if key not in known and _reads_to_come(body[i:], key) > 1:
                        known[key] = self.fresh(f"{key[0]}_{key[1]}")
                        load = ast.Attribute(ast.Name(key[0], ast.Load()), key[1], ast.Load())
                        out.append(ast.Assign([ast.Name(known[key], ast.Store())], load))
                _Replace(known).only(s)
            out.append(self._inside(s, known))
            _forget(known, _assigned([s]))
            if _stores_field(s) or (now is not None and not self.pure(now)):
                known.clear()
        return out

    def _inside(self, s: ast.stmt, known: dict[Key, str]) -> ast.stmt:
        """The statement with its blocks done."""
        if isinstance(s, ast.For | ast.While):
            _forget(known, _assigned([s]))
            if any(_stores_field(n) or _calls(n, self.pure) for n in s.body):
                known.clear()
        if isinstance(s, ast.If | ast.For | ast.While):
            s.body, s.orelse = self.block(s.body, dict(known)), self.block(s.orelse, dict(known))
            if _calls(s, self.pure):
                known.clear()
        return s


class _Replace(ast.NodeTransformer):
    def __init__(self, known: dict[Key, str]) -> None:
        self.known = known

    def only(self, s: ast.stmt) -> None:
        """Replace in what the statement evaluates at once, not in its blocks."""
        if isinstance(s, ast.If):
            s.test = self.visit(s.test)
        elif isinstance(s, ast.For):
            s.iter = self.visit(s.iter)
        elif isinstance(s, ast.Assign | ast.AugAssign | ast.Return | ast.Expr) and s.value is not None:
            s.value = self.visit(s.value)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        name = self.known.get(_key(node) or ("", ""))
        return node if name is None else ast.Name(name, ast.Load())


def _key(node: ast.AST) -> Key | None:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name):
        return node.value.id, node.attr
    return None


def _evaluated_at_once(s: ast.stmt) -> ast.expr | None:
    """The expression that a statement evaluates, once, before anything else."""
    if isinstance(s, ast.If):
        return s.test
    if isinstance(s, ast.For):
        return s.iter
    if isinstance(s, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
        return s.value
    return None


def _reads(e: ast.AST, certain: bool) -> list[Key]:
    """Fields read by an expression; ``certain`` leaves out what Python might skip, and functions of modules."""
    if isinstance(e, ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        return []
    found = [key] if (key := _key(e)) is not None else []
    for field, value in ast.iter_fields(e):
        children = value if isinstance(value, list) else [value]
        if certain and isinstance(e, ast.BoolOp):
            children = children[:1]
        if certain and isinstance(e, ast.IfExp) and field != "test":
            continue
        if certain and isinstance(e, ast.Compare) and field == "comparators":
            children = children[:1]
        for child in children:
            if isinstance(child, ast.AST):
                found += _reads(child, certain)
    return found


def _reads_to_come(body: Sequence[ast.stmt], key: Key) -> int:
    """Reads of a field in a block until its name is assigned anew."""
    count = 0
    for s in body:
        count += sum(1 for n in ast.walk(s) if _key(n) == key)
        if key[0] in _assigned([s]):
            break
    return count


def _assigned(body: Sequence[ast.stmt]) -> set[str]:
    nodes = (n for s in body for n in ast.walk(s))
    return {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def _stores_field(s: ast.stmt) -> bool:
    return any(isinstance(n, ast.Attribute | ast.Subscript) and not isinstance(n.ctx, ast.Load) for n in ast.walk(s))


def _calls(s: ast.stmt, pure: Callable[[ast.expr], bool]) -> bool:
    """Whether a statement makes a call that may change something, anywhere in it."""
    return any(isinstance(n, ast.Call) and not pure(n) for n in ast.walk(s))


def _forget(known: dict[Key, str], names: set[str]) -> None:
    for key in [key for key in known if key[0] in names or known[key] in names]:
        del known[key]
