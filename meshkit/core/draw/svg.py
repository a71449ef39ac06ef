"""The grid as an SVG picture: axes are colors, nodes are boxes, ranks are cells.

A cell holds a band for each axis longer than 1. The hue is the axis, the shade the index on it.
Ranks of one group over an axis differ in that axis' bands only::

    +- node 0 ------+  +- node 1 ------+
    | +---+   +---+ |  | +---+   +---+ |
    | | 0 |   | 1 | |  | | 2 |   | 3 | |     the rank
    | |dp0|   |dp0| |  | |dp1|   |dp1| |     light blue, dark blue
    | |tp0|   |tp1| |  | |tp0|   |tp1| |     light orange, dark orange
    | +---+   +---+ |  | +---+   +---+ |
    +---------------+  +---------------+

A cell's hover text shows its rank, coordinate and node. The picture has no script and no external
reference. Its colors follow the reader's light or dark theme.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ..arrays import Ints
from ..call import Call, Verbatim, quotes_call
from ..errors import SpecError
from ..text import count_noun, format_sizes
from ..validate import check_integers
from .colors import hue_numbers, shade, text_color, to_hex
from .svg_layout import CHARACTER_WIDTH, Arrangement, CellStyle, arrange, cell_style

MAX_RANKS = 16_384  # ranks of a picture: 2.5 MB of text
MAX_NOTEBOOK_RANKS = 1024  # ranks of a picture that a notebook draws automatically
MARGIN, LINE, SWATCH = 16, 20, 14  # pixels: around the page, of a legend line, of a legend color
MIN_PAGE = 480  # pixels: the legend needs this width
MAX_SWATCHES = 8  # shades in a line of the legend
CENTERED = 'text-anchor="middle"'
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


@quotes_call("draw_svg")
def draw_svg(axes: tuple[str, ...], grid: Ints, nodes: Ints | None = None) -> str:
    """Return the grid as an SVG picture.

    Args:
        axes: the axis names, the outermost first.
        grid: the ranks, with one array dim for each axis, 16,384 ranks at most.
        nodes: int64 (num_ranks,), the node of the rank at each position in row-major order, for
            example ``topology.node_of(grid.ravel())``; None draws the whole grid in one box.

    Returns:
        One ``<svg>`` element, well-formed XML in ASCII. Cells show rank and coordinate up to 128
        ranks, the rank up to 2048 ranks. The hover text of a cell always has all of it.

    Raises:
        SpecError: if the grid has more ranks; the fix is a part that can be drawn. Or if ``nodes``
            has another length.
        CoordinateError: if ``nodes`` are not integers.

    Cost: O(num_ranks); 16,384 ranks take 0.2 s and 2.5 MB.

    Example:
        >>> picture = draw_svg(("dp", "tp"), np.arange(4).reshape(2, 2), np.array([0, 0, 1, 1]))
        >>> picture[picture.index("<title>rank 2"):].partition("</title>")[0].splitlines()
        ['<title>rank 2', 'dp=1 tp=0', 'node 1']
    """
    if grid.size > MAX_RANKS:
        raise _too_many_ranks(axes, grid.shape)
    ranks = grid.ravel()
    node_of = np.zeros_like(ranks) if nodes is None else check_integers("nodes", nodes)
    if node_of.shape != ranks.shape:
        line = f"nodes has shape {node_of.shape}, the grid {count_noun(len(ranks), 'rank')}."
        raise SpecError(line, fix="one node for the rank at each position, as a flat array.")
    coordinates = np.indices(grid.shape).reshape(grid.ndim, -1).T  # (num_ranks, num_axes)
    long_axes = [(axis, size) for axis, size in zip(axes, grid.shape, strict=True) if size > 1]
    style = cell_style(long_axes, len(ranks), int(ranks.max()))
    inner_size = long_axes[-1][1] if long_axes else 1
    arrangement = arrange(node_of, style, inner_size, titled=nodes is not None)
    picture = _Picture(ranks, arrangement, style)
    elements = [
        *picture.boxes(titled=nodes is not None),
        *picture.cells(axes, coordinates, None if nodes is None else node_of),
        *picture.bands(long_axes, coordinates[:, [size > 1 for size in grid.shape]]),
        *picture.numbers(),
    ]
    sizes = format_sizes(dict(zip(axes, grid.shape, strict=True)))
    on = "" if nodes is None else f" on {count_noun(len(arrangement.nodes), 'node')}"
    title = f"{sizes}: {count_noun(len(ranks), 'rank')}{on}"
    return _page(title, long_axes, arrangement.size, elements)


def notebook_html(axes: tuple[str, ...], grid: Ints) -> str:
    """Return the picture for a notebook, which scrolls if it is wider than the page."""
    return f'<div style="overflow-x:auto">{draw_svg(axes, grid)}</div>'


def _too_many_ranks(axes: tuple[str, ...], shape: tuple[int, ...]) -> SpecError:
    """Return the error of a grid that is too large, with a slice of it that can be drawn."""
    inner, slices, num_drawn = math.prod(shape), [], 1
    for size in shape:
        inner //= size
        drawn = max(1, min(size, MAX_RANKS // inner))  # if cut, all axes inside it fit
        num_drawn *= drawn
        slices.append(f":{drawn}")
    part = Call("draw_svg", (axes, Verbatim(f"grid[{', '.join(slices)}]")))
    return SpecError(
        f"{math.prod(shape)} ranks are too many for a picture.",
        f"At most {MAX_RANKS} ranks are drawn, each as a cell.",
        fix=f"{part}, the first {num_drawn}; or print(layout), which shows the edges.",
        sizes=dict(zip(axes, shape, strict=True)),
    )


def _page(
    title: str, axes: list[tuple[str, int]], size: tuple[int, int], elements: list[str]
) -> str:
    """Return the whole picture: title, legend, and the elements below."""
    page_width = max(MIN_PAGE, size[0])
    head, top = _head(title, axes, page_width)
    width, height = page_width + 2 * MARGIN, top + size[1] + 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="meshkit" width="{width}"'
            f' height="{height}" viewBox="0 0 {width} {height}"'
            f' role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
            f'<g transform="translate({MARGIN} {MARGIN})">',
            *head,
            f'<g transform="translate(0 {top})">',
            *elements,
            "</g>",
            "</g>",
            "</svg>",
        ]
    )


def _head(title: str, axes: list[tuple[str, int]], page_width: int) -> tuple[list[str], int]:
    """Return the title and the legend, and the height that they need."""
    lines = textwrap.wrap(title, int(page_width / (16 * CHARACTER_WIDTH)), break_long_words=True)
    head = [
        f'<text class="ink" x="0" y="{24 * row + 16}" font-size="16" font-weight="bold">'
        f"{line}</text>"
        for row, line in enumerate(lines)
    ]
    top = 24 * len(lines) + 8
    hues = hue_numbers([axis for axis, _ in axes])
    left = SWATCH * max((min(n, MAX_SWATCHES) for _, n in axes), default=0) + 10
    head += [
        line
        for row, (axis, n) in enumerate(axes)
        for line in _legend(hues[axis], axis, n, top + row * LINE, left)
    ]
    top += LINE * (len(axes) + 1)
    head.append(f'<text class="faint" x="0" y="{top - 8}" font-size="12">{CAPTION}</text>')
    return head, top + 4


def _legend(hue: int, axis: str, size: int, y: int, left: int) -> Iterator[str]:
    """Yield a line of the legend: the shades of an axis, then its first and last index."""
    shades = min(size, MAX_SWATCHES)
    for i in range(shades):
        color = to_hex(shade(hue, i * (size - 1) // (shades - 1), size))
        yield f'<path d="M{i * SWATCH} {y}h{SWATCH}v{SWATCH}h-{SWATCH}z" fill="{color}"/>'
    ends = f"{axis}=0" + (" ... " if size > 2 else ", ") + f"{axis}={size - 1}"
    yield (f'<text class="ink" x="{left}" y="{y + SWATCH - 3}" font-size="13">{ends}</text>')


@dataclass(frozen=True)
class _Picture:
    """The ranks of a picture and their positions in it."""

    ranks: Ints
    arrangement: Arrangement
    style: CellStyle

    def boxes(self, *, titled: bool) -> Iterator[str]:
        """Yield a box for each node, with its title if that fits."""
        boxes, nodes = self.arrangement.boxes.tolist(), self.arrangement.nodes.tolist()
        width, height = self.arrangement.box
        style = self.style
        yield '<g class="box">'
        for x, y in boxes:
            yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{style.radius}"/>'
        yield "</g>"
        prefix = style.title_prefix(nodes[-1], width) if titled else None
        if prefix is not None:
            yield f'<g class="ink" font-size="{style.title}">'
            for (x, y), node in zip(boxes, nodes, strict=True):
                yield f'<text x="{x + style.pad}" y="{y + style.title + 2}">{prefix}{node}</text>'
            yield "</g>"

    def cells(
        self, axes: tuple[str, ...], coordinates: Ints, node_of: Ints | None
    ) -> Iterator[str]:
        """Yield a cell for each rank, with its hover text."""
        outline = f"h{self.style.width}v{self.style.height}h-{self.style.width}z"
        words = " ".join(f"{axis}=%d" for axis in axes)
        nodes = [""] * len(self.ranks)
        if node_of is not None:
            nodes = [f"\nnode {node}" for node in node_of.tolist()]
        corners = self.arrangement.cells.tolist()
        rows = zip(self.ranks.tolist(), corners, coordinates.tolist(), nodes, strict=True)
        yield '<g class="rank">'
        for rank, (x, y), coordinate, node in rows:
            hover = f"rank {rank}\n{words % tuple(coordinate)}{node}"
            yield f'<path d="M{x} {y}{outline}"><title>{hover}</title></path>'
        yield "</g>"

    def bands(self, axes: list[tuple[str, int]], coordinates: Ints) -> Iterator[str]:
        """Yield the bands of all cells, one path for each shade, and their labels if they fit."""
        style, hues = self.style, hue_numbers([axis for axis, _ in axes])
        yield f'<g pointer-events="none" {CENTERED}>'
        for band, (axis, size) in enumerate(axes):
            corners = self.arrangement.cells + np.array(
                (style.inset, style.top + band * style.band)
            )
            indices = coordinates[:, band]
            for first, end in _equal_shades(size):
                members = (indices >= first) & (indices < end)
                color = shade(hues[axis], first, size)
                yield f'<path fill="{to_hex(color)}" d="{self._bars(corners[members])}"/>'
                if style.label and members.any():
                    yield f'<g fill="{text_color(color)}" font-size="{style.label}">'
                    middle = np.array((style.width // 2 - style.inset, style.band - 5))
                    labels = [style.cut(f"{axis}={i}") for i in indices[members].tolist()]
                    yield from _texts(corners[members] + middle, labels)
                    yield "</g>"
        yield "</g>"

    def numbers(self) -> Iterator[str]:
        """Yield the rank of each cell if it fits."""
        style = self.style
        if style.number:
            yield f'<g class="ink" pointer-events="none" {CENTERED} font-size="{style.number}">'
            middle = np.array((style.width // 2, style.top - style.number // 3))
            yield from _texts(self.arrangement.cells + middle, self.ranks.tolist())
            yield "</g>"

    def _bars(self, corners: Ints) -> str:
        width, height = self.style.width - 2 * self.style.inset, self.style.band
        bar = f"h{width}v{height}h-{width}z"
        return "".join(f"M{x} {y}{bar}" for x, y in corners.tolist())


def _equal_shades(size: int) -> Iterator[tuple[int, int]]:
    """Return the ranges of indices that have one shade: the first index, and the end."""
    shades = [shade(0, index, size) for index in range(size)]
    starts = [i for i in range(size) if i == 0 or shades[i] != shades[i - 1]]
    return zip(starts, [*starts[1:], size], strict=True)


def _texts(positions: Ints, texts: Iterable[object]) -> Iterator[str]:
    for (x, y), text in zip(positions.tolist(), texts, strict=True):
        yield f'<text x="{x}" y="{y}">{text}</text>'
