"""The drawings of the marks in docs/images, made from plans: who holds what, before and after.

Each drawing shows the forward and the backward of one pattern on four ranks. A rank is the outline
of the global tensor, where the elements that it holds are filled. The color is the row of the
element, and a part of a sum is pale. The steps of the plan move the elements.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from meshkit import plan_redistribution
from meshkit.redistribute.move import Move, make_move
from meshkit.redistribute.pattern import parse_pattern
from meshkit.redistribute.plan import Plan
from meshkit.synonyms import AXES
from tests.pages import ROOT
from tests.redistribute.interpreter import Array, deal, run_plan

IMAGES = ROOT / "docs" / "images"
PATTERNS = {
    "cut": "s/tp h -> s h/tp",
    "sum": "s h +tp -> s/tp h",
    "own-work": "s/tp h -> s h *tp",
    "same-work": "s/tp h -> s h =tp",
    "holder": "s h @tp:0 -> s/tp h",
}
RANKS, SIZES = 4, {"s": 4, "h": 4}
COLORS = [AXES[axis].color for axis in ("dp", "tp", "sp", "ep")]  # of the rows
CELL, BOX, PANEL, HEIGHT = 13, 66, 290, 196


def held(move: Move, side: str) -> list[Array]:
    """Return the numbers, from 1, of the elements that each rank holds on the left of a move."""
    numbers = np.arange(1, 17).reshape(4, 4)
    whole = "=".join(side.split("+"))  # each rank has a number for its part of a sum, too
    mark, _, holder = whole.partition("@tp:")
    copies = make_move(
        parse_pattern(f"{mark}{'=tp' if holder else ''} -> s h =tp"), {"tp": 4}, SIZES
    )
    parts = deal(copies, numbers)
    return [part * (not holder or rank == int(holder)) for rank, part in enumerate(parts)]


def moved(plan: Plan, parts: list[Array]) -> list[set[int]]:
    """Return the elements that each rank holds after a plan, which runs once for each origin."""
    results: list[set[int]] = [set() for _ in parts]
    for origin in range(RANKS):
        alone = [part * (rank == origin) for rank, part in enumerate(parts)]
        for rank, result in enumerate(run_plan(plan, alone)):
            results[rank] |= {*result.ravel().tolist()} - {0}
    return results


def draw_rank(elements: set[int], x: int, y: int, *, pale: bool) -> str:
    """Return the outline of the tensor with the elements of a rank."""
    cells = "".join(
        f'<rect x="{x + (n - 1) % 4 * CELL}" y="{y + (n - 1) // 4 * CELL}" width="{CELL}" '
        f'height="{CELL}" fill="{COLORS[(n - 1) // 4]}" fill-opacity="{0.35 if pale else 1}" '
        'stroke="#fff"/>'
        for n in sorted(elements)
    )
    size = 4 * CELL
    return (
        f'{cells}<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="none" stroke="#888"/>'
    )


def draw_direction(title: str, pattern: str, plan: Plan, x: int) -> str:
    """Return the two rows of a direction, with its steps between them."""
    left, _, right = pattern.partition(" -> ")
    parts = held(plan.move, left)
    before = [{*part.ravel().tolist()} - {0} for part in parts]
    steps = ", ".join(step.name for step in plan.named_steps) or "no step"
    lines = [f'<text x="{x}" y="18" font-weight="bold">{title}</text>']
    lines.append(f'<text x="{x + 84}" y="18" font-family="monospace">{pattern}</text>')
    for rank, (first, last) in enumerate(zip(before, moved(plan, parts), strict=True)):
        at = x + rank * BOX
        lines.append(f'<text x="{at}" y="38" fill="#555">rank {rank}</text>')
        lines.append(draw_rank(first, at, 44, pale="+" in left))
        lines.append(draw_rank(last, at, 136, pale="+" in right))
    lines.append(f'<text x="{x}" y="121">&#8595; {steps}</text>')
    return "\n".join(lines)


def draw(pattern: str) -> str:
    """Return the drawing of a pattern as SVG."""
    plan = plan_redistribution({"tp": RANKS}, pattern, sizes=SIZES)
    assert plan.backward is not None
    width, mirror = 2 * PANEL + 20, str(plan.pattern.mirror)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" '
        'font-family="sans-serif" font-size="13" role="img">\n'
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>\n'
        f"{draw_direction('forward', pattern, plan.forward, 12)}\n"
        f"{draw_direction('backward', mirror, plan.backward, PANEL + 22)}\n</svg>\n"
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_the_drawing_of_a_mark_is_that_of_its_plan(name: str, updates_docs: bool) -> None:
    path: Path = IMAGES / f"mark-{name}.svg"
    if updates_docs:
        path.write_text(draw(PATTERNS[name]))
    assert path.read_text() == draw(PATTERNS[name])


@pytest.mark.parametrize("pattern", PATTERNS.values())
def test_a_plan_leaves_each_rank_what_its_pattern_says(pattern: str) -> None:
    """The drawing shows below what the right side says, by the definitions of the marks."""
    plan = plan_redistribution({"tp": RANKS}, pattern, sizes=SIZES)
    left, _, right = pattern.partition(" -> ")
    expected = [{*part.ravel().tolist()} - {0} for part in held(plan.forward.move, right)]
    assert moved(plan.forward, held(plan.forward.move, left)) == expected
