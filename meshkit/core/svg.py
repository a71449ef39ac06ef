"""The grid as a picture in SVG: axes are colours, nodes are boxes, a rank is a cell.

A cell holds a band for each axis that is longer than 1: the hue says which axis, the shade which
index on it. Ranks of one group over an axis differ in the bands of that axis only::

    +- node 0 ------+  +- node 1 ------+
    | +---+   +---+ |  | +---+   +---+ |     number of the rank
    | | 0 |   | 1 | |  | | 2 |   | 3 | |
    | |dp0|   |dp0| |  | |dp1|   |dp1| |     light blue here, dark blue there
    | |tp0|   |tp1| |  | |tp0|   |tp1| |     light orange, dark orange
    | +---+   +---+ |  | +---+   +---+ |
    +---------------+  +---------------+

A pointer over a cell shows its rank, coordinate and node. There is no script and no reference to
anything outside; the colours of the page follow the reader's light or dark theme.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from .call import Call, Word
from .draw.colors import shade, text_color, to_hex
from .draw.svg_layout import CHARACTER_WIDTH, Arrangement, CellStyle, arrange, cell_style
from .errors import SpecError, told
from .indices import check_integers
from .seats import Ints
from .words import count_noun, format_sizes

if TYPE_CHECKING:
    from .layout import Layout

MOST = 16_384  # ranks of a picture: 2.5 MB of text
NOTEBOOK = 1024  # ranks that a notebook draws unasked
MARGIN, LINE, SWATCH = 16, 20, 14  # pixels: around all, of a line of the legend, of a colour
LEGEND = 480  # the least width, so that the legend has room
MIDDLE = 'text-anchor="middle"'

ENDS = 8  # shades in a line of the legend
CAPTION = "a cell is a rank, a shade an index; point at a cell for more"

STYLE = """\
.meshkit{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}
.meshkit .page{fill:#fff}.meshkit .ink{fill:#1f2328}.meshkit .faint{fill:#59636e}
.meshkit .box{fill:#f3f5f7;stroke:#818b98}
.meshkit .rank{fill:#fff;stroke:#d1d9e0}.meshkit .rank path:hover{stroke:#1f2328;stroke-width:3}
@media(prefers-color-scheme:dark){
.meshkit .page{fill:#0d1117}.meshkit .ink{fill:#f0f6fc}.meshkit .faint{fill:#9198a1}
.meshkit .box{fill:#161b22;stroke:#656c76}
.meshkit .rank{fill:#0d1117;stroke:#3d444d}.meshkit .rank path:hover{stroke:#f0f6fc}}
"""


def svg(layout: Layout, nodes: Ints | None = None) -> str:
    """The grid as a picture. Pure; O(num_ranks): 16,384 ranks take 0.2 s and 2.5 MB.

    Args:
        layout: the grid, of 16,384 ranks at most.
        nodes: int64 (num_ranks,), the node of the rank at each position, as of ``Topology``'s
            ``node_of(layout.grid.ravel())``; None draws the whole grid in one box.

    Returns:
        One ``<svg>`` element, well-formed XML in ASCII. Up to 128 ranks each cell names the rank
        and its coordinate, up to 2048 the rank; the hover text of a cell always has all of it.

    Raises:
        SpecError: for more ranks, with a part that can be drawn; for ``nodes`` of another length.
        CoordinateError: for ``nodes`` that are no integers.

    Example:
        >>> from meshkit import Layout
        >>> picture = svg(Layout(dp=2, tp=2), np.array([0, 0, 1, 1]))
        >>> picture[picture.index("<title>rank 2"):].partition("</title>")[0].splitlines()
        ['<title>rank 2', 'dp=1 tp=0', 'node 1']
    """
    call = Call("svg", (Word(repr(layout)), *(() if nodes is None else (nodes,))))
    if layout.num_ranks > MOST:
        raise _too_many(call, layout)
    ranks = layout.grid.ravel()
    known = np.zeros_like(ranks) if nodes is None else check_integers(call, "nodes", nodes)
    if known.shape != ranks.shape:
        line = (
            f"{call}: nodes has shape {known.shape}, the layout {count_noun(len(ranks), 'rank')}."
        )
        raise SpecError(told(line, fix="a node for the rank at each position, in one row."))
    axes = [(axis, size) for axis, size in layout.sizes.items() if size > 1]
    cells = cell_style(axes, len(ranks), int(ranks.max()))
    where = arrange(known, cells.room(named=nodes is not None), axes[-1][1] if axes else 1)
    indices = layout.coordinates(ranks)
    drawn = [
        *_boxes(where, cells, named=nodes is not None),
        *_ranks(layout, ranks, indices, where, cells, None if nodes is None else known),
        *_bands(axes, indices[:, [size > 1 for size in layout.shape]], where, cells),
        *_numbers(ranks, where, cells),
    ]
    on = "" if nodes is None else f" on {count_noun(len(where.nodes), 'node')}"
    title = f"{format_sizes(layout.sizes)}: {count_noun(len(ranks), 'rank')}{on}"
    return _page(title, axes, where, drawn)


def shown(layout: Layout) -> str:
    """What a notebook shows of a layout: its picture; by its edges, where that would be large.

    Example:
        >>> from meshkit import Layout
        >>> shown(Layout(dp=4))[:36], shown(Layout(dp=100_000))[:9]
        ('<div style="overflow-x:auto"><svg xm', '<pre>dp=1')
    """
    if layout.num_ranks > NOTEBOOK:
        return f"<pre>{escaped(str(layout))}</pre>"
    return f'<div style="overflow-x:auto">{svg(layout)}</div>'


def escaped(text: str) -> str:
    """Text as XML and HTML have it between two tags, or in quotes.

    Example:
        >>> escaped('a < "b" & c')
        'a &lt; &quot;b&quot; &amp; c'
    """
    return text.translate({38: "&amp;", 60: "&lt;", 62: "&gt;", 34: "&quot;"})


def _too_many(call: Call, layout: Layout) -> SpecError:
    """The error of a grid that is too large, with its first ranks as a grid that is not."""
    sizes, inner = layout.sizes, layout.num_ranks
    for axis, size in sizes.items():
        inner //= size
        sizes[axis] = max(1, min(size, MOST // inner))  # where cut, all inside it fits
    drawn = math.prod(sizes.values())
    part = type(layout)(ranks=layout.ranks[:drawn], **sizes)
    text = told(
        f"{call}: {layout.num_ranks} ranks are too many for a picture.",
        f"Up to {MOST} are drawn, each as a cell of its own.",
        fix=f"svg({part!r}), the first {drawn}; or print(layout), which shows the edges.",
    )
    return SpecError(text, sizes=layout.sizes)


def _page(title: str, axes: list[tuple[str, int]], where: Arrangement, drawn: list[str]) -> str:
    """All of it: the page, what it is, the legend, and the drawing below."""
    wide = max(LEGEND, where.size[0])
    lines = textwrap.wrap(title, int(wide / (16 * CHARACTER_WIDTH)), break_long_words=True)
    head = [
        f'<text class="ink" x="0" y="{24 * row + 16}" font-size="16" font-weight="bold">'
        f"{escaped(line)}</text>"
        for row, line in enumerate(lines)
    ]
    top = 24 * len(lines) + 8
    beside = SWATCH * max((min(n, ENDS) for _, n in axes), default=0) + 10
    head += [part for row, (a, n) in enumerate(axes) for part in _key(row, a, n, top, beside)]
    top += LINE * (len(axes) + 1)
    head.append(f'<text class="faint" x="0" y="{top - 8}" font-size="12">{CAPTION}</text>')
    top += 4
    width, height = wide + 2 * MARGIN, top + where.size[1] + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="meshkit" width="{width}"'
            f' height="{height}" viewBox="0 0 {width} {height}"'
            f' role="img" aria-label="{escaped(title)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
            f'<g transform="translate({MARGIN} {MARGIN})">',
            *head,
            f'<g transform="translate(0 {top})">',
            *drawn,
            "</g>",
            "</g>",
            "</svg>",
        ]
    )


def _key(row: int, axis: str, size: int, top: int, beside: int) -> Iterator[str]:
    """A line of the legend: the shades of an axis, its name, and what the ends are."""
    shades = min(size, ENDS)
    y = top + row * LINE
    for i in range(shades):
        colour = to_hex(shade(row, i * (size - 1) // (shades - 1), size))
        yield f'<path d="M{i * SWATCH} {y}h{SWATCH}v{SWATCH}h-{SWATCH}z" fill="{colour}"/>'
    words = f"{axis}=0" + (" ... " if size > 2 else ", ") + f"{axis}={size - 1}"
    yield (
        f'<text class="ink" x="{beside}" y="{y + SWATCH - 3}" font-size="13">'
        f"{escaped(words)}</text>"
    )


def _boxes(where: Arrangement, cells: CellStyle, *, named: bool) -> Iterator[str]:
    """A box a node, with its name where that fits."""
    width, height = where.box
    yield '<g class="box">'
    for x, y in where.boxes.tolist():
        yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{cells.round}"/>'
    yield "</g>"
    prefix = cells.prefix(int(where.nodes[-1]), width) if named else None
    if prefix is not None:
        yield f'<g class="ink" font-size="{cells.name}">'
        for (x, y), node in zip(where.boxes.tolist(), where.nodes.tolist(), strict=True):
            yield f'<text x="{x + cells.pad}" y="{y + cells.name + 2}">{prefix}{node}</text>'
        yield "</g>"


def _ranks(
    layout: Layout,
    ranks: Ints,
    indices: Ints,
    where: Arrangement,
    cells: CellStyle,
    nodes: Ints | None,
) -> Iterator[str]:
    """A cell a rank, each once, with what a pointer over it shows."""
    shape = f"h{cells.width}v{cells.height}h-{cells.width}z"
    words = " ".join(f"{axis}=%d" for axis in layout.axes)
    homes = [""] * len(ranks) if nodes is None else [f"\nnode {node}" for node in nodes.tolist()]
    rows = zip(ranks.tolist(), where.cells.tolist(), indices.tolist(), homes, strict=True)
    yield '<g class="rank">'
    for rank, (x, y), index, home in rows:
        hover = f"rank {rank}\n{words % tuple(index)}{home}"
        yield f'<path d="M{x} {y}{shape}"><title>{hover}</title></path>'
    yield "</g>"


def _bands(
    axes: list[tuple[str, int]], indices: Ints, where: Arrangement, cells: CellStyle
) -> Iterator[str]:
    """The bands of all cells, one path a shade; their names where there is room."""
    yield f'<g pointer-events="none" {MIDDLE}>'
    for band, (axis, size) in enumerate(axes):
        left = where.cells + np.array((cells.inset, cells.top + band * cells.band))
        for first, last in _shared(size):
            of = (indices[:, band] >= first) & (indices[:, band] < last)
            colour = shade(band, first, size)
            yield f'<path fill="{to_hex(colour)}" d="{_bars(left[of], cells)}"/>'
            if cells.label and of.any():
                yield f'<g fill="{text_color(colour)}" font-size="{cells.label}">'
                middle = left[of] + np.array((cells.width // 2 - cells.inset, cells.band - 5))
                names = [cells.cut(f"{axis}={i}") for i in indices[of, band].tolist()]
                yield from _texts(middle, names)
                yield "</g>"
    yield "</g>"


def _shared(size: int) -> Iterator[tuple[int, int]]:
    """The runs of indices that have one shade: each its first, and the first beyond it."""
    colours = [shade(0, index, size) for index in range(size)]
    starts = [i for i in range(size) if i == 0 or colours[i] != colours[i - 1]]
    return zip(starts, [*starts[1:], size], strict=True)


def _texts(places: Ints, words: Iterable[object]) -> Iterator[str]:
    for (x, y), word in zip(places.tolist(), words, strict=True):
        yield f'<text x="{x}" y="{y}">{word}</text>'


def _bars(corners: Ints, cells: CellStyle) -> str:
    wide, tall = cells.width - 2 * cells.inset, cells.band
    return "".join(f"M{x} {y}h{wide}v{tall}h-{wide}z" for x, y in corners.tolist())


def _numbers(ranks: Ints, where: Arrangement, cells: CellStyle) -> Iterator[str]:
    """The number of each rank, where there is room for it."""
    if cells.number:
        yield f'<g class="ink" pointer-events="none" {MIDDLE} font-size="{cells.number}">'
        middle = where.cells + np.array((cells.width // 2, cells.top - cells.number // 3))
        yield from _texts(middle, ranks.tolist())
        yield "</g>"
