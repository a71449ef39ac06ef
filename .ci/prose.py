"""Check the English of docstrings: no sentence begins with What, Who, Of, Where or That.

Usage: python .ci/prose.py FOLDER [FOLDER ...]. Prints each such sentence with its file and line.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN = re.compile(r"(?:What|Who|Whose|Of|Where|That)\b", re.IGNORECASE)
START = re.compile(r"(?:^|[.!?;]\s+|:\s+(?=[A-Z]))(\w[^.!?]{0,60})")
ENTRY = re.compile(r"^\*{0,2}\w+(?:, \*{0,2}\w+)*(?: ?\([^)]*\))?: +")  # "name: " of Args or Raises
NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def paragraphs(docstring: str) -> Iterator[str]:
    """Yield the paragraphs and the Args entries of a docstring, without examples and diagrams."""
    for block in re.split(r"\n\s*\n", docstring):
        lines = block.splitlines()
        if ">>>" in block or re.match(r"\s{4,}", lines[0] if lines else ""):
            entries = [line for line in lines if ENTRY.match(line.strip())]
            yield from (ENTRY.sub("", line.strip()) for line in entries if ">>>" not in block)
            continue
        text = ""
        for line in map(str.strip, lines):
            if ENTRY.match(line) and text:
                yield text
                text = ""
            text = f"{text} {ENTRY.sub('', line)}".strip()
        yield text


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the beginning of each sentence of the docstrings of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        docstring = ast.get_docstring(node) if isinstance(node, NODES) else None
        for paragraph in paragraphs(docstring or ""):
            for match in START.finditer(paragraph):
                yield getattr(node, "lineno", 1), match[1]


def main(folders: list[str]) -> int:
    """Print the forbidden sentences of the folders, and return their number, at most 1."""
    found = 0
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*.py")):
        for line, sentence in sentences(path):
            if FORBIDDEN.match(sentence):
                found += 1
                print(f"{path}:{line}: {sentence}")
    print(f"{found} sentences begin with What, Who, Of, Where or That.")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
