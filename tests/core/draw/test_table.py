"""Tables, character by character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.core.draw.table import format_items, format_table
from meshkit.core.text import summarize

HEADER = ["axis", "size", "first group", "crosses"]
ROWS = [["dp", "4", "0, 2, 4, 6", "yes"], ["sequence", "-", "0, 1", "no"]]


def text(*lines: str) -> str:
    return "\n".join(lines)


def test_a_table_and_its_twin() -> None:
    expected = text(
        "axis      size  first group  crosses",
        "────────  ────  ───────────  ───────",
        "dp           4  0, 2, 4, 6   yes",
        "sequence     -  0, 1         no",
    )
    assert format_table(HEADER, ROWS) == expected
    assert format_table(HEADER, ROWS, ascii=True) == expected.replace("─", "-")


def test_no_rows() -> None:
    assert format_table(["axis", "size"], [], ascii=True) == "axis  size\n----  ----"


def test_the_widest_column_of_words_is_broken() -> None:
    rows = [["dp", "16", ", ".join(map(str, range(12))), "yes"], ["tp", "1", "0", "no"]]
    assert format_table(HEADER, rows, width=40) == text(
        "axis  size  first group          crosses",
        "────  ────  ───────────────────  ───────",
        "dp      16  0, 1, 2, 3, 4, 5,    yes",
        "              6, 7, 8, 9, 10,",
        "              11",
        "tp       1  0                    no",
    )
    assert format_table(HEADER, rows, width=1) == format_table(HEADER, rows, width=40)
    assert format_table(HEADER, rows, width=200).count("\n") == 3


def test_numbers_stand_at_the_right_and_words_at_the_left() -> None:
    assert format_table(["n", "what"], [["10", "ten"], ["", "nothing"]]).splitlines()[2:] == [
        "10  ten",
        "    nothing",
    ]
    assert format_table(["what", "n"], [["a", "1"], ["b", "x"]]).splitlines()[2] == "a     1"


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6).map(str), st.text("ab ,", max_size=90)),
        min_size=1,
        max_size=5,
    ),
    st.integers(40, 90),
)
def test_a_table_fits_and_loses_no_word(rows: list[tuple[str, str]], width: int) -> None:
    clean = [(number, " ".join(part[:9] for part in words.split())) for number, words in rows]
    drawn = format_table(["n", "words"], clean, width=width)
    assert max(map(len, drawn.splitlines())) <= width
    assert drawn.split()[4:] == " ".join(" ".join(row) for row in clean).split()


def test_items_go_on_below_themselves() -> None:
    pairs = [("node", "1"), ("warning", "tp crosses.\n  Fix: " + "dp " * 14)]
    assert format_items(pairs, width=40) == text(
        "node     1",
        "warning  tp crosses.",
        "           Fix: dp dp dp dp dp dp dp dp",
        "             dp dp dp dp dp dp",
    )
    assert format_items([]) == ""


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, ""),
        (1, "0"),
        (6, "0, 1, 2, 3, 4, 5"),
        (7, "0, 1, 2, ..., 6 (7)"),
        (100_000, "0, 1, 2, ..., 99999 (100000)"),
    ],
)
def test_a_list_is_shortened(number: int, said: str) -> None:
    assert summarize(range(number)) == said


def test_a_table_that_is_a_few_columns_too_wide_is_reduced() -> None:
    rows = [["1", "some words that can be wrapped into lines, as there are so many"]]
    full = max(map(len, format_table(["n", "words"], rows, width=200).splitlines()))
    for width in (full - 1, full - 2, full - 3):
        assert max(map(len, format_table(["n", "words"], rows, width=width).splitlines())) <= width
