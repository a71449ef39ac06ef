"""Seeds from coordinates: distinct along the given axes, equal along others, for any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, stream_seed
from meshkit.data import seeds
from meshkit.data.seeds import compute_seed, select_coordinate
from meshkit.testing import axes_of, layouts

quick = settings(deadline=None, max_examples=60, database=None)
LOW = 2**32 - 1

bases = st.integers() | st.integers(-3, 3)
coordinates = st.dictionaries(
    st.sampled_from(["pp", "dp", "ep", "cp", "sp", "tp"]), st.integers(0, 30), max_size=6
)


def decode(code: str, axes: list[str]) -> dict[str, int]:
    """Return the coordinate of a code: count the zeros, then read one digit more than zeros."""
    result, at = {}, 1
    for axis in sorted(axes):
        zeros = code.index("1", at) - at
        end = at + 2 * zeros + 1
        result[axis] = int(code[at + zeros : end], 2) - 1
        at = end
    assert at == len(code)
    return result


def seeds_of(layout: Layout, vary: tuple[str, ...], base: int = 0) -> dict[int, int]:
    """Return rank to seed, as ``mesh.seed`` does."""
    result = {}
    for rank in map(int, layout.ranks):
        result[rank] = compute_seed(base, "", select_coordinate(layout, rank, vary))
    return result


# ---------------------------------------------------------------- recorded values


def test_recorded_seeds_never_change() -> None:
    assert stream_seed(0) == 2630070831674974442
    assert stream_seed(0, "dropout", dp=2, tp=0) == 2083744102578743801
    assert stream_seed(-7, "layer.weight", block=2**20) == 2237996600135452846
    assert stream_seed(2**64, "ö", dp=9999, sp=99, tp=999) == 652420863890439180


# ---------------------------------------------------------------- the code


@quick
@given(coordinates)
def test_the_code_is_decoded_uniquely(coordinate: dict[str, int]) -> None:
    code = f"{seeds._encode(dict(sorted(coordinate.items()))):b}"
    assert decode(code, list(coordinate)) == coordinate


@pytest.mark.parametrize(("axes", "log2"), [(1, 16), (2, 15), (6, 13)])
def test_world_sizes_whose_codes_fit_32_bits(axes: int, log2: int) -> None:
    """For every factorization, the last coordinate of 2**(log2) - 1 ranks has 32 bits."""
    for indices in splits(log2 - 1, axes):
        assert seeds._encode(last_coordinate(indices)).bit_length() <= 32
    assert max(seeds._encode(last_coordinate(i)).bit_length() for i in splits(log2, axes)) > 32
    assert 2 ** ((31 - axes) // 2 + 1) == 2**log2


def test_the_largest_world_whose_codes_fit() -> None:
    assert stream_seed(0, **last_coordinate((28, 0, 0, 0, 0, 0)))
    with pytest.raises(CoordinateError, match="Its code has 65 bits; the limit is 63"):
        stream_seed(0, **last_coordinate((29, 0, 0, 0, 0, 0)))


def splits(total: int, parts: int) -> list[tuple[int, ...]]:
    """Return ways to write a number as a sum of ``parts`` numbers."""
    if parts == 1:
        return [(total,)]
    heads = {0, min(1, total), total // 2, total}
    return [(head, *tail) for head in heads for tail in splits(total - head, parts - 1)]


def last_coordinate(logs: tuple[int, ...]) -> dict[str, int]:
    """Return the last coordinate whose indices have these binary logarithms."""
    return {f"a{i}": 2 ** (log + 1) - 2 for i, log in enumerate(logs)}


# ---------------------------------------------------------------- the law


@quick
@given(st.data(), layouts(with_ranks=True), bases)
def test_seeds_are_distinct_along_vary_and_equal_along_other_axes(
    data: st.DataObject, layout: Layout, base: int
) -> None:
    vary = data.draw(axes_of(layout))
    result = seeds_of(layout, vary, base)
    coordinates_of = {r: tuple(layout.coordinate(r)[a] for a in vary) for r in result}
    for mask in (2**63 - 1, LOW):
        kinds = {(coordinates_of[rank], seed & mask) for rank, seed in result.items()}
        assert len(kinds) == len({coordinates_of[rank] for rank in result})  # equal elsewhere
        assert len({seed for _, seed in kinds}) == len(kinds)  # distinct along vary
    assert all(0 <= seed < 2**63 for seed in result.values())


@quick
@given(st.data(), layouts(max_ranks=32, max_axes=3), st.integers(2, 3))
def test_no_stream_changes_when_an_axis_grows_or_is_added(
    data: st.DataObject, layout: Layout, factor: int
) -> None:
    vary = data.draw(axes_of(layout))
    before = {rank: layout.coordinate(rank) for rank in map(int, layout.ranks)}
    first = seeds_of(layout, vary)
    grown = data.draw(st.sampled_from(layout.axes))
    wider = Layout(**{**layout.sizes, grown: layout.sizes[grown] * factor})
    richer = Layout(**{"brandnew": factor}, **layout.sizes)
    for other, more in ((wider, {}), (richer, {"brandnew": factor - 1})):
        later = seeds_of(other, vary)
        assert all(later[other.rank(**at, **more)] == first[rank] for rank, at in before.items())


# ---------------------------------------------------------------- chance


def bits_flipped(pairs: list[tuple[int, int]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return how often each of the 63 bits differs."""
    return np.array([[(a ^ b) >> bit & 1 for bit in range(63)] for a, b in pairs]).mean(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda i: (0, "", {"dp": i, "tp": 1}), lambda i: (0, "", {"dp": i ^ 1, "tp": 1})),
        (lambda i: (0, "", {"dp": i, "tp": 1}), lambda i: (0, "", {"dp": i, "tp": 0})),
        (lambda i: (0, "", {"dp": i << 18}), lambda i: (0, "", {"dp": i << 18 ^ 1 << 17})),
        (lambda i: (i, "", {"dp": 1}), lambda i: (i ^ 1, "", {"dp": 1})),
        (lambda i: (0, f"{i}", {"dp": 1}), lambda i: (0, f"{i}.", {"dp": 1})),
    ],
)
def test_a_small_change_flips_each_bit_with_probability_one_half(
    first: object, second: object
) -> None:
    def seed(of: object, i: int) -> int:
        base, name, coordinate = of(i)  # type: ignore[operator]
        return stream_seed(base, name, **coordinate)

    rounds = 2000
    flipped = bits_flipped([(seed(first, i), seed(second, i)) for i in range(rounds)])
    spread = 0.5 / rounds**0.5
    assert np.abs(flipped - 0.5).max() < 5 * spread
    assert abs(flipped.mean() - 0.5) < 5 * spread / 63**0.5


# ---------------------------------------------------------------- the steps of the bijection


@pytest.mark.slow
@quick
@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**31 - 1), st.integers(0, LOW))
def test_for_each_high_half_the_low_half_is_a_bijection(key: bytes, high: int, low: int) -> None:
    """Recover the code from the low half of its seed and its own high half."""
    seed = seeds._scatter(key, high, low)
    again = seed >> 32 ^ seeds._hash(key, 2**32 + (seed & LOW)) >> 33
    assert again == high
    others = [low ^ 1 << bit for bit in range(32)]
    lows = {seeds._scatter(key, high, other) & LOW for other in (low, *others)}
    assert len(lows) == 33


# ---------------------------------------------------------------- the axes to vary


def test_vary_as_a_str_a_tuple_and_a_list() -> None:
    layout = Layout(dp=4, sp=2, tp=1)
    for vary in ("dp tp", ("dp", "tp"), ["tp", "dp"]):
        assert select_coordinate(layout, 5, vary) == {"dp": 2, "tp": 0}
    assert select_coordinate(layout, 99, ()) == select_coordinate(layout, 99, "") == {}
