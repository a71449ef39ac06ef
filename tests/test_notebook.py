"""The notebook of the docs: its cells run in a session without a file, and print its outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.pages import ROOT

NOTEBOOK = ROOT / "docs" / "start" / "notebook.ipynb"
# As in a notebook, functions of a cell belong to a __main__ without a file, so ranks are forked.
SESSION = """
import contextlib, io, json, sys
printed = []
for cell in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(cell, "cell", "exec"))
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


def run_cells(cells: list[str]) -> list[str]:
    """Run cells in one session; return what each prints."""
    command = [sys.executable, "-c", SESSION, json.dumps(cells)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    printed: list[str] = json.loads(done.stdout)
    return printed


def outputs_of(text: str) -> list[dict[str, Any]]:
    """Return a printed text as the outputs of a cell."""
    return [{"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}] * bool(text)


@pytest.mark.slow
def test_the_cells_print_the_outputs_of_the_notebook(updates_docs: bool) -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    printed = run_cells(["".join(cell["source"]) for cell in cells])
    if updates_docs:
        for cell, text in zip(cells, printed, strict=True):
            cell["outputs"] = outputs_of(text)
        NOTEBOOK.write_text(json.dumps(notebook, indent=1) + "\n")
    assert [cell["outputs"] for cell in cells] == [outputs_of(text) for text in printed]
    assert sum(map(bool, printed)) == 4
