"""Pictures in SVG: well-formed, each rank once, and drawn where its node and its axes say."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError
from meshkit.core.draw import svg as module
from meshkit.core.draw.colors import hue_numbers, shade, to_hex
from meshkit.core.draw.svg import MAX_NOTEBOOK_RANKS, MAX_RANKS, draw_svg, notebook_html
from meshkit.testing import layouts

quick = settings(deadline=None, max_examples=60, database=None)
NS = "{http://www.w3.org/2000/svg}"
BAR = re.compile(r"M(-?\d+) (-?\d+)h(\d+)v(\d+)h-(\d+)z")


def svg(layout: Layout, nodes: np.ndarray | None = None) -> str:
    return draw_svg(layout.axes, layout.grid, nodes)


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def titles(picture: ElementTree.Element) -> list[str]:
    return [str(one.text) for one in picture.iter(f"{NS}title")]


def cells(picture: ElementTree.Element) -> dict[int, tuple[int, ...]]:
    """Rank to the left, upper, right and lower edge of its cell."""
    found = {}
    for path in picture.iter(f"{NS}path"):
        title = path.find(f"{NS}title")
        if title is not None:
            x, y, w, h, back = map(int, BAR.fullmatch(path.get("d", "")).groups())  # type: ignore[union-attr]
            assert w == back
            found[int(str(title.text).split()[1])] = (x, y, x + w, y + h)
    return found


def bands(picture: ElementTree.Element) -> list[tuple[str, tuple[int, ...]]]:
    """The colour and the edges of each band."""
    group = next(g for g in picture.iter(f"{NS}g") if g.get("pointer-events") == "none")
    return [
        (path.get("fill", ""), (int(x), int(y), int(x) + int(w), int(y) + int(h)))
        for path in group.findall(f"{NS}path")
        for x, y, w, h, _ in BAR.findall(path.get("d", ""))
    ]


def boxes(picture: ElementTree.Element) -> list[tuple[int, ...]]:
    group = next(g for g in picture.iter(f"{NS}g") if g.get("class") == "box")
    rects = [[int(r.get(k, "")) for k in ("x", "y", "width", "height")] for r in group]
    return [(x, y, x + w, y + h) for x, y, w, h in rects]


def inside(inner: tuple[int, ...], outer: tuple[int, ...]) -> bool:
    low = inner[0] >= outer[0] and inner[1] >= outer[1]
    return low and inner[2] <= outer[2] and inner[3] <= outer[3]


def apart(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    beside = one[2] <= other[0] or other[2] <= one[0]
    return beside or one[3] <= other[1] or other[3] <= one[1]


# ---------------------------------------------------------------- laws


@quick
@given(layouts(with_ranks=True), st.data())
def test_each_rank_once_with_its_coordinate_and_node(layout: Layout, data: st.DataObject) -> None:
    many = st.lists(st.integers(0, 9), min_size=layout.num_ranks, max_size=layout.num_ranks)
    nodes = data.draw(st.none() | many)
    known = None if nodes is None else np.array(nodes)
    wanted = []
    for position, rank in enumerate(layout.grid.ravel().tolist()):
        at = " ".join(f"{axis}={index}" for axis, index in layout.coordinate(rank).items())
        home = "" if nodes is None else f"\nnode {nodes[position]}"
        wanted.append(f"rank {rank}\n{at}{home}")
    assert titles(parsed(svg(layout, known))) == wanted


@quick
@given(layouts(max_ranks=40), st.data())
def test_cells_stand_apart_in_the_box_of_their_node(layout: Layout, data: st.DataObject) -> None:
    many = st.lists(st.integers(0, 5), min_size=layout.num_ranks, max_size=layout.num_ranks)
    nodes = np.array(data.draw(many))
    picture = parsed(svg(layout, nodes))
    placed, drawn = cells(picture), boxes(picture)
    home = dict(zip(sorted(set(nodes.tolist())), drawn, strict=True))
    for position, rank in enumerate(layout.grid.ravel().tolist()):
        assert inside(placed[rank], home[int(nodes[position])])
    for few in (list(placed.values()), drawn):
        assert all(apart(a, b) for i, a in enumerate(few) for b in few[:i])
    page = (0, 0, int(picture.get("width", "")), int(picture.get("height", "")))
    assert all(inside(box, page) for box in drawn)


@quick
@given(layouts(max_ranks=40))
def test_a_cell_has_the_shade_of_each_of_its_indices_from_the_outside_in(layout: Layout) -> None:
    picture = parsed(svg(layout))
    long_axes = [axis for axis, size in layout.sizes.items() if size > 1]
    drawn, hues = bands(picture), hue_numbers(long_axes)
    assert len(drawn) == layout.num_ranks * len(long_axes)
    for rank, cell in cells(picture).items():
        held = sorted((edges[1], colour) for colour, edges in drawn if inside(edges, cell))
        at = layout.coordinate(rank)
        assert [colour for _, colour in held] == [
            to_hex(shade(hues[axis], at[axis], layout.size(axis))) for axis in long_axes
        ]


# ---------------------------------------------------------------- what is written


def words(picture: ElementTree.Element) -> list[str]:
    return [str(one.text) for one in picture.iter(f"{NS}text")]


def test_the_words_of_a_small_picture() -> None:
    picture = parsed(svg(Layout(dp=2, sp=2, tp=1), np.array([0, 0, 1, 1])))
    assert words(picture) == [
        "dp=2 sp=2 tp=1: 4 ranks on 2 nodes",
        "dp=0, dp=1",
        "sp=0, sp=1",
        "a cell is a rank, a shade an index; point at a cell for more",
        *("node 0", "node 1"),
        *("dp=0", "dp=0", "dp=1", "dp=1"),
        *("sp=0", "sp=0", "sp=1", "sp=1"),
        *("0", "1", "2", "3"),
    ]
    assert picture.get("aria-label") == "dp=2 sp=2 tp=1: 4 ranks on 2 nodes"


def test_a_picture_character_by_character() -> None:
    head, _, rest = svg(Layout(dp=2, ranks=[7, 5]), np.array([3, 3])).partition("<style>")
    assert head == (
        '<svg xmlns="http://www.w3.org/2000/svg" class="meshkit" width="512" height="180"'
        ' viewBox="0 0 512 180" role="img"'
        ' aria-label="dp=2: 2 ranks on 1 node">\n'
    )
    assert rest.partition("</style>\n")[2].splitlines() == [
        '<rect class="page" width="512" height="180" rx="8"/>',
        '<g transform="translate(16 16)">',
        '<text class="ink" x="0" y="16" font-size="16" font-weight="bold">'
        "dp=2: 2 ranks on 1 node</text>",
        '<path d="M0 32h14v14h-14z" fill="#b2d5e8"/>',
        '<path d="M14 32h14v14h-14z" fill="#004267"/>',
        '<text class="ink" x="38" y="43" font-size="13">dp=0, dp=1</text>',
        '<text class="faint" x="0" y="64" font-size="12">'
        "a cell is a rank, a shade an index; point at a cell for more</text>",
        '<g transform="translate(0 76)">',
        '<g class="box">',
        '<rect x="0" y="0" width="118" height="72" rx="6"/>',
        "</g>",
        '<g class="ink" font-size="12">',
        '<text x="8" y="14">node 3</text>',
        "</g>",
        '<g class="rank">',
        '<path d="M8 22h48v42h-48z"><title>rank 7',
        "dp=0",
        "node 3</title></path>",
        '<path d="M62 22h48v42h-48z"><title>rank 5',
        "dp=1",
        "node 3</title></path>",
        "</g>",
        '<g pointer-events="none" text-anchor="middle">',
        '<path fill="#b2d5e8" d="M11 45h42v16h-42z"/>',
        '<g fill="#000" font-size="11">',
        '<text x="32" y="56">dp=0</text>',
        "</g>",
        '<path fill="#004267" d="M65 45h42v16h-42z"/>',
        '<g fill="#fff" font-size="11">',
        '<text x="86" y="56">dp=1</text>',
        "</g>",
        "</g>",
        '<g class="ink" pointer-events="none" text-anchor="middle" font-size="15">',
        '<text x="32" y="40">7</text>',
        '<text x="86" y="40">5</text>',
        "</g>",
        "</g>",
        "</g>",
        "</svg>",
    ]


@pytest.mark.parametrize(
    ("size", "numbers", "labels"), [(128, 128, 128), (129, 129, 0), (2048, 2048, 0), (2049, 0, 0)]
)
def test_the_more_ranks_the_less_is_written(size: int, numbers: int, labels: int) -> None:
    found = words(parsed(svg(Layout(dp=size))))
    assert sum(word.isdigit() for word in found) == numbers
    assert sum(re.fullmatch(r"dp=\d+", word) is not None for word in found) == labels


def test_the_name_of_a_node_is_written_as_far_as_it_fits() -> None:
    layout = Layout(dp=4096)
    by_eight = words(parsed(svg(layout, np.arange(4096) // 8)))
    assert "node 511" in by_eight
    by_two = words(parsed(svg(layout, np.arange(4096) // 2 % 100)))
    assert "node 99" in by_two
    alone = words(parsed(svg(layout, np.arange(4096))))
    assert not any(word == "4095" or word.startswith("node") for word in alone)


def test_the_ends_of_an_axis_are_in_the_legend() -> None:
    picture = parsed(svg(Layout(pp=2, dp=100, tp=1)))
    assert words(picture)[1:3] == ["pp=0, pp=1", "dp=0 ... dp=99"]
    fills = [path.get("fill") for path in picture.iter(f"{NS}path") if path.get("fill")]
    assert fills[:2] == [to_hex(shade(3, i, 2)) for i in (0, 1)]
    assert fills[2] == to_hex(shade(0, 0, 100))
    assert fills[9] == to_hex(shade(0, 99, 100))


def test_a_long_name_is_cut_at_its_beginning_and_the_title_wrapped() -> None:
    sizes = {f"a_rather_long_name{i}": 2 for i in range(5)}
    found = words(parsed(svg(Layout(**sizes))))
    assert len([word for word in found if re.fullmatch(r"~\w+=[01]", word)]) == 5 * 32
    assert " ".join(found[: found.index("a_rather_long_name0=0, a_rather_long_name0=1")]) == (
        f"{' '.join(f'{axis}=2' for axis in sizes)}: 32 ranks"
    )


def test_the_longest_number_widens_all_cells() -> None:
    edges = cells(parsed(svg(Layout(dp=2, ranks=[3, 10**12]))))
    widths = {right - left for left, _, right, _ in edges.values()}
    assert len(widths) == 1
    assert widths.pop() > 13 * 15 * 0.6


def test_rows_of_one_box_hold_the_innermost_axis_whole() -> None:
    layout = Layout(dp=8, tp=9)  # as near a square, rows of 12 would cut it
    edges = cells(parsed(svg(layout)))
    left = min(edge[0] for edge in edges.values())
    starts = [rank for rank, edge in edges.items() if edge[0] == left]
    assert len(starts) > 1
    assert {layout.coordinate(rank)["tp"] for rank in starts} == {0}


# ---------------------------------------------------------------- what it is


def test_no_script_no_reference_and_plain_ascii() -> None:
    text = svg(Layout(dp=4, tp=2), np.arange(8) // 4)
    assert text.isascii()
    tags = {one.tag.removeprefix(NS) for one in parsed(text).iter()}
    assert tags == {"svg", "style", "rect", "g", "text", "path", "title"}
    assert not re.search(r"href|url\(|@import|<script|\son\w+=", text)


def test_the_style_speaks_of_its_own_picture_only() -> None:
    """In a page of a notebook a rule without the class would reach all that is there."""
    rules = re.findall(r"([^{}]+)\{", module.STYLE.replace("\n", ""))
    for rule in rules:
        assert rule.lstrip("}").startswith((".meshkit", "@media(prefers-color-scheme:dark)"))
    assert len(rules) > 10


def test_light_and_dark_colour_the_same_things() -> None:
    light, dark = module.STYLE.split("@media")
    colours = [dict(re.findall(r"\.(\w+)\{fill:(#\w+)", one)) for one in (light, dark)]
    assert colours[0].keys() == colours[1].keys() == {"page", "ink", "faint", "box", "rank"}
    assert all(colours[0][name] != colours[1][name] for name in colours[0])


def test_equal_layouts_are_drawn_alike_and_others_are_not() -> None:
    drawn = [svg(one) for one in (Layout(dp=4), Layout(dp=4, ranks=range(4)), Layout(sp=4))]
    assert drawn[0] == drawn[1] != drawn[2]


# ---------------------------------------------------------------- how much


def test_16384_ranks_are_a_second_and_5_megabytes_at_most() -> None:
    layout = Layout(pp=8, dp=32, cp=2, ep=2, sp=2, tp=8)
    assert layout.num_ranks == MAX_RANKS
    times = []
    for _ in range(3):
        began = time.process_time()
        text = svg(layout, np.arange(MAX_RANKS) // 8)
        times.append(time.process_time() - began)
    assert min(times) < 1
    assert len(text) < 5e6
    ranks = re.findall(r"<title>rank (\d+)$", text, re.MULTILINE)
    assert Counter(map(int, ranks)) == Counter(range(MAX_RANKS))


def test_a_notebook_shows_the_picture_and_of_a_large_grid_its_edges() -> None:
    layout = Layout(dp=MAX_NOTEBOOK_RANKS)
    assert layout._repr_html_() == notebook_html(layout.axes, layout.grid)
    assert parsed(notebook_html(layout.axes, layout.grid)).get("style") == "overflow-x:auto"
    assert svg(layout) in notebook_html(layout.axes, layout.grid)
    large = Layout(dp=MAX_NOTEBOOK_RANKS + 1)
    assert large._repr_html_() == f"<pre>{large}</pre>"
    assert len(Layout(dp=2**28, tp=8)._repr_html_()) < 10_000


def test_a_file_that_tools_can_read(tmp_path: Path) -> None:
    path = tmp_path / "grid.svg"
    path.write_text(svg(Layout(dp=4)), encoding="ascii")
    assert ElementTree.parse(path).getroot().tag == f"{NS}svg"


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        ({"dp": 16_385}, (16_384,)),
        ({"pp": 4, "dp": 12_500, "tp": 8}, (1, 2048, 8)),
        ({"dp": 3, "tp": 10_000}, (1, 10_000)),
        ({"dp": 2, "tp": 10**9}, (1, 16_384)),
        ({"pp": 3, "dp": 1, "tp": 16_384}, (1, 1, 16_384)),
    ],
)
def test_the_part_that_the_error_proposes_can_be_drawn(
    sizes: dict[str, int], part: tuple[int, ...]
) -> None:
    grid = np.broadcast_to(np.int64(0), tuple(sizes.values()))  # takes no memory
    with pytest.raises(SpecError) as error:
        draw_svg(tuple(sizes), grid)
    assert error.value.sizes == sizes
    fix = str(error.value).partition("Fix: ")[2].partition(", the first")[0]
    slices = ", ".join(f":{size}" for size in part)
    assert fix == f"draw_svg({tuple(sizes)!r}, grid[{slices}])"
    drawn = eval(fix, {"draw_svg": draw_svg, "grid": grid})
    assert len(titles(parsed(drawn))) == int(np.prod(part))


def test_nodes_that_are_no_integers() -> None:
    with pytest.raises(CoordinateError) as error:
        svg(Layout(dp=2), np.array([0.5, 1]))  # type: ignore[arg-type]
    assert str(error.value) == (
        "draw_svg(('dp',), [0, 1], [0.5, 1.0]): nodes are float64, not integers."
        "\n  Fix: nodes.astype(int)."
    )
