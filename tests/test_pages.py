"""Every block of code in the README and in docs/ runs and prints what the page shows.

A block whose title is a file of examples/ has the text of that file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.newer_torch import needs_slices
from tests.pages import ROOT, read_programs, rewrite, run_page

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SLOW = ("$ python ", "$ torchrun ", "torch.compile(")  # whole programs


def case(page: Path) -> object:
    """Return the page as a case of the test; slow if it holds whole programs."""
    is_slow = page.parent != ROOT and any(mark in page.read_text() for mark in SLOW)
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@needs_slices  # the pages show torch 2.13
@pytest.mark.parametrize("page", [case(page) for page in PAGES])
def test_the_blocks_of_a_page_print_what_it_shows(page: Path, updates_docs: bool) -> None:
    outputs = run_page(page)
    if updates_docs:
        rewrite(page, outputs)
        return
    assert [(out.shown, out.printed) for out in outputs if not out.agrees] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_programs_of_a_page_are_those_of_the_examples(page: Path, updates_docs: bool) -> None:
    programs = read_programs(page)
    if updates_docs:
        rewrite(page, programs)
        return
    assert [program.shown for program in programs if program.shown != program.printed] == []
