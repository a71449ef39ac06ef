"""How long files and functions are, and what every function has."""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshkit

ROOT = Path(meshkit.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

MAX_FILE = 300  # lines
MEDIAN = 8  # code lines of a function
NINETIETH = 25

Function = ast.FunctionDef | ast.AsyncFunctionDef
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def code_lines(source: str) -> set[int]:
    """Lines that hold more than a comment, a blank or a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstring_lines(source)


def docstring_lines(source: str) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def lengths(source: str) -> list[int]:
    """Code lines of each function, from its ``def`` to its end."""
    code = code_lines(source)
    spans = [(node.lineno, node.end_lineno or node.lineno) for node in functions(ast.parse(source))]
    return [sum(line in code for line in range(first, last + 1)) for first, last in spans]


def asserts(source: str) -> list[int]:
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]


def unannotated(source: str) -> list[str]:
    """Functions with an argument or a result that has no annotation."""
    tree = ast.parse(source)
    methods = {
        id(node): not any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
        for parent in ast.walk(tree)
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, Function)
    }
    found = []
    for node in functions(tree):
        spec = node.args
        named = [*spec.posonlyargs, *spec.args][1 if methods.get(id(node)) else 0 :]
        rest = [arg for arg in (spec.vararg, spec.kwarg) if arg]
        if node.returns is None or any(
            a.annotation is None for a in (*named, *spec.kwonlyargs, *rest)
        ):
            found.append(f"{node.name}, line {node.lineno}")
    return found


def undocumented(source: str) -> list[str]:
    """The module, and public classes and functions, methods included, without a docstring."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) else ["the module"]
    waiting: list[ast.Module | ast.ClassDef] = [tree]
    while waiting:
        for node in waiting.pop().body:
            if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
                continue
            if not (ast.get_docstring(node) or "").strip():
                found.append(f"{node.name}, line {node.lineno}")
            if isinstance(node, ast.ClassDef):
                waiting.append(node)
    return found


def percentile(values: list[int], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


# ---------------------------------------------------------------- the budgets


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE


def test_functions_are_short() -> None:
    found = [length for path in FILES for length in lengths(path.read_text())]
    assert len(found) > 100
    assert statistics.median(found) <= MEDIAN
    assert percentile(found, 90) <= NINETIETH


@pytest.mark.parametrize("check", [asserts, unannotated, undocumented])
def test_no_file_has_any(check: object) -> None:
    found = {}
    for path in FILES:
        faults = check(path.read_text())  # type: ignore[operator]
        if faults:
            found[path.relative_to(ROOT).as_posix()] = faults
    assert found == {}


# ---------------------------------------------------------------- and that they can be broken

SAMPLE = '''"""Module."""


def outer(a: int, b, *rest, **more) -> int:
    """Docstring

    of three lines."""
    # a comment

    text = """two
    lines"""

    def inner(x: int) -> int:
        return x  # counts

    assert a
    return inner(len(text))


class Public:
    def method(self, a: int) -> None:
        """ """

    def _hidden(self):
        pass

    @staticmethod
    def alone(a) -> None:
        """Documented."""

    def __len__(self) -> int:
        return 1
'''


def test_the_lengths_are_counted_right() -> None:
    by_name = dict(
        zip([node.name for node in functions(ast.parse(SAMPLE))], lengths(SAMPLE), strict=True)
    )
    assert by_name["outer"] == 7
    assert by_name["inner"] == 2
    assert by_name["_hidden"] == 2
    assert by_name["alone"] == 1


def test_the_checks_find_what_is_planted() -> None:
    assert asserts(SAMPLE) == [16]
    assert unannotated(SAMPLE) == ["outer, line 4", "_hidden, line 24", "alone, line 28"]
    assert undocumented(SAMPLE) == ["Public, line 20", "method, line 21"]
    assert undocumented("x = 1") == ["the module"]
    assert undocumented('"""M."""\ndef f() -> None: ...') == ["f, line 2"]
    assert undocumented('"""M."""\ndef _f() -> None: ...') == []


def test_the_percentile_is_the_one_meant() -> None:
    assert percentile([*range(1, 102)], 90) == 91
    assert percentile([5] * 95 + [100] * 5, 90) == 5
