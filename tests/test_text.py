"""Tables, ranges of ranks, and other parts of messages."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshkit.text import (
    DTYPE_BYTES,
    KB,
    MB,
    article,
    count_noun,
    dtype_name,
    format_bytes,
    format_figure,
    format_ranks,
    format_table,
    name_ranks,
    plural,
    summarize,
)
from tests.laws.derivations import law


@law
@given(st.sets(st.integers(0, 40)))
def test_every_rank_can_be_parsed_from_the_text(ranks: set[int]) -> None:
    for given_as in (sorted(ranks), np.array(sorted(ranks), dtype=int), iter(sorted(ranks))):
        text = format_ranks(given_as)
        parsed: list[int] = []
        for part in re.findall(r"\d+(?:-\d+)?", text):
            first, _, last = part.partition("-")
            parsed += range(int(first), int(last or first) + 1)
        assert parsed == sorted(ranks)
        assert text.count(",") == max(0, len([r for r in ranks if r - 1 not in ranks]) - 1)
    assert format_ranks([]) == "none"
    assert name_ranks([0, 1, 4, 6]) == "ranks 0-1, 4 and 6"


def test_nouns_and_short_forms() -> None:
    assert [article(noun) for noun in ("int", "str", "Axis")] == ["an int", "a str", "an Axis"]
    assert [count_noun(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    nouns = "buses boxes batches meshes nodes"
    assert " ".join(map(plural, ("bus", "box", "batch", "mesh", "node"))) == nouns
    assert summarize(range(6)) == "0, 1, 2, 3, 4, 5"
    assert summarize(range(7)) == "0, 1, 2, ..., 6 (7)"


@given(st.integers(0, 10**15))
def test_bytes_have_three_digits_and_no_exponent(number: int) -> None:
    amount, unit = format_bytes(number).split()
    size = {"B": 1, "kB": KB, "MB": MB, "GB": 10**9}[unit]
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)?", amount)
    assert abs(float(amount) * size - number) <= 0.0051 * number
    assert unit == "B" or number >= size
    assert unit == "GB" or number < 1000 * size


def test_bytes_below_the_next_unit_and_small_figures() -> None:
    texts = [format_bytes(number) for number in (0, 999, 1000, 999_999, 1_500_000, 2 * 10**12)]
    assert texts == ["0 B", "999 B", "1 kB", "1000 kB", "1.5 MB", "2000 GB"]
    figures = 0, 1.234e-6, 9.3e-06, 0.00012345, 1.0, 99.96, 100.4
    shown = ["0", "0.00000123", "0.0000093", "0.000123", "1", "100", "100"]
    assert [format_figure(number) for number in figures] == shown


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", "torch.bfloat16", torch.bfloat16])
def test_a_dtype_has_one_name(dtype: object) -> None:
    assert dtype_name(dtype) == "bfloat16"


@pytest.mark.parametrize("name", [*DTYPE_BYTES])
def test_elements_are_as_large_as_in_torch(name: str) -> None:
    assert getattr(torch, name).itemsize == DTYPE_BYTES[name]


HEADER = ["axis", "size", "first group", "crosses"]


def lines(*lines: str) -> str:
    return "\n".join(lines)


def test_the_widest_column_of_words_is_broken() -> None:
    rows = [["dp", "16", ", ".join(map(str, range(12))), "yes"], ["tp", "1", "0", "no"]]
    assert format_table(rows, HEADER, width=40) == lines(
        "axis  size  first group          crosses",
        "────  ────  ───────────────────  ───────",
        "dp      16  0, 1, 2, 3, 4, 5,    yes",
        "              6, 7, 8, 9, 10,",
        "              11",
        "tp       1  0                    no",
    )
    assert format_table(rows, HEADER, width=1) == format_table(rows, HEADER, width=40)
    assert format_table(rows, HEADER, width=200).count("\n") == 3
    odd = format_table([["10", "ten", "b"], ["", "none", "1"]], ["n", "what", "x"], ascii=True)
    assert odd == "n   what  x\n--  ----  -\n10  ten   b\n    none  1".replace("n   w", " n  w")


def test_headings_of_numbers_are_broken_last() -> None:
    header = ["first ms", "us", "us all", "GB/s", "GB/s all", "slowest group"]
    rows = [["20.4", "8002", "53", "0.7", "0.55", "sp=1 on host1"]]
    assert format_table(rows, header, width=40, ascii=True) == lines(
        "first    us     us  GB/s  GB/s  slowest",
        "   ms          all         all    group",
        "-----  ----  -----  ----  ----  --------",
        " 20.4  8002     53   0.7  0.55  sp=1 on",
        "                                  host1",
    )


def test_numbers_with_an_exponent_are_aligned_as_all_others() -> None:
    rows = [["9.3e-06", "2e5"], ["0.15", "1E+10"], ["", "-"]]
    assert format_table(rows, ["GB/s", "bytes"], ascii=True) == lines(
        "   GB/s  bytes",
        "-------  -----",
        "9.3e-06    2e5",
        "   0.15  1E+10",
        "             -",
    )
    words = format_table([["1e", "e5", "1.2.3"], ["2", "3", "4"]], ["a", "b", "c"], ascii=True)
    assert words.splitlines()[-1] == "2   3   4"


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
    drawn = format_table(clean, ["n", "words"], width=width)
    assert max(map(len, drawn.splitlines())) <= width
    assert drawn.split()[4:] == " ".join(" ".join(row) for row in clean).split()


def test_items_go_on_below_themselves() -> None:
    pairs = [("node", "1"), ("warning", "tp crosses.\n  Fix: " + "dp " * 14)]
    assert format_table(pairs, width=40) == lines(
        "node     1",
        "warning  tp crosses.",
        "           Fix: dp dp dp dp dp dp dp dp",
        "             dp dp dp dp dp dp",
    )
    assert format_table([]) == ""
