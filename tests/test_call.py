"""A quoted call, the decorator that quotes it in errors, and integers as callers pass them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError
from meshkit.call import (
    Call,
    check_index,
    check_integer,
    check_ranks,
    divisors,
    parse_integer,
    quotes_call,
)
from meshkit.errors import CALL, BatchError, MeshkitError, SpecError


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("f"), "f()"),
        (Call("f", (8,), {"dp": 4, "order": "dp"}), "f(8, dp=4, order='dp')"),
        (Call("f", ({"dp": 4},), {"sp": 2}), "f({'dp': 4}, sp=2)"),
        (Call("f", kwargs={"ranks": [*range(8)]}), "f(ranks=[0, 1, 2, 3, 4, 5, 6, 7])"),
        (Call("f", kwargs={"ranks": [*range(9)]}), "f(ranks=[0, 1, ..., 8])"),
        (Call("f", kwargs={"ranks": np.arange(100)}), "f(ranks=[0, 1, ..., 99])"),
        (Call("f", kwargs={"pattern": "dp sp -> (dp sp)"}), "f(pattern='dp sp -> (dp sp)')"),
    ],
)
def test_the_text_of_a_call(call: Call, text: str) -> None:
    assert str(call) == text


@quotes_call("inner")
def inner(dp: int) -> int:
    raise SpecError(f"{CALL} needs 8 ranks.", fix="dp=8.")


@quotes_call("outer")
def outer(dp: int, *, order: str | None = None) -> int:
    return inner(dp)


class Grid:
    @quotes_call("grid.size")
    def size(self, axis: str) -> int:
        raise SpecError(f"there is no axis {axis}.")

    @classmethod
    @quotes_call("Grid.of")
    def of(cls, ranks: int) -> int:
        raise SpecError("no ranks.")

    @property
    @quotes_call("grid.shape")
    def shape(self) -> int:
        raise SpecError("no shape.")


@contextmanager
@quotes_call("guard")
def guard(name: str) -> Iterator[str]:
    yield name


@quotes_call("plan")
def plan(ranks: int, *, order: str | None = None) -> None:
    if order is None:
        raise TypeError("of the user")


class Asked:
    """An argument of which nothing may be asked."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


def test_a_type_error_of_the_user_is_not_replaced() -> None:
    @quotes_call("mesh.sampler")
    def sampler(*args: object) -> None:
        raise TypeError("of the user")

    for call in (lambda: sampler(None, Asked()), lambda: plan(4)):
        with pytest.raises(TypeError, match=r"^of the user$"):
            call()


def test_a_surplus_value_may_be_an_array() -> None:
    with pytest.raises(SpecError) as caught:
        plan(4, np.arange(3))  # type: ignore[misc]
    assert "for example" in caught.value.fix_text


def raise_in_guard(error: Exception | None) -> None:
    with guard("step"):
        if error is not None:
            raise error
        inner(4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: inner(4), "inner(4) needs 8 ranks.\n  Fix: dp=8."),
        (lambda: outer(4, order="dp"), "outer(4, order='dp') needs 8 ranks.\n  Fix: dp=8."),
        (lambda: Grid().size("dp"), "grid.size('dp'): there is no axis dp."),
        (lambda: Grid.of(4), "Grid.of(4): no ranks."),
        (lambda: Grid().shape, "grid.shape(): no shape."),
        # a context manager keeps the call of an error in its body
        (lambda: raise_in_guard(None), "inner(4) needs 8 ranks.\n  Fix: dp=8."),
        (lambda: raise_in_guard(MeshkitError("no step.")), "guard('step'): no step."),
    ],
)
def test_the_outermost_public_function_is_quoted(call: Callable[[], object], text: str) -> None:
    with pytest.raises(MeshkitError) as caught:
        call()
    assert str(caught.value) == text


def test_arguments_of_another_library_are_explained_and_others_are_a_type_error() -> None:
    @quotes_call("mesh.batch")
    def batch(global_batch: int) -> int:
        """Return the batch."""
        if global_batch < 0:
            raise TypeError("negative") from KeyError("global_batch")
        return global_batch

    with pytest.raises(BatchError) as caught:
        batch(global_batch_size=2)  # type: ignore[call-arg]
    assert caught.value.call == "mesh.batch(global_batch_size=2)"
    assert caught.value.fix == "mesh.batch(global_batch=2, accumulation_steps=1)."
    assert caught.value.__suppress_context__
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        batch(4, other=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="negative") as deep:
        batch(-1)
    assert isinstance(deep.value.__cause__, KeyError)
    assert (batch(4), batch.__doc__) == (4, "Return the batch.")


def test_a_value_by_position_is_told_the_names_that_the_call_takes() -> None:
    @quotes_call("mesh.guard")
    def guard(self: object, group: str = "", *, timeout: float, stragglers: bool = False) -> None:
        """Take two arguments by name."""

    with pytest.raises(SpecError) as caught:
        guard(None, "dp", 5)  # type: ignore[misc]
    assert caught.value.text.splitlines() == [
        "mesh.guard('dp', 5): mesh.guard takes these arguments by name: timeout, stragglers.",
        "  Fix: write the name before the value, for example mesh.guard('dp', timeout=5).",
    ]
    with pytest.raises(SpecError) as caught:
        guard(None, "dp", "60s")  # type: ignore[misc]
    assert caught.value.fix.endswith("for example mesh.guard('dp', timeout=60).")
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument"):
        guard(None)  # type: ignore[call-arg]


class Unprintable(list[int]):
    """A list whose repr fails, as that of a CUDA tensor after an error of its device."""

    def __repr__(self) -> str:
        raise RuntimeError("the device failed")


@quotes_call("weigh")
def weigh(counts: object) -> None:
    raise SpecError("no counts.")


def quoted_by(counts: object) -> SpecError:
    try:
        weigh(counts)
    except SpecError as error:
        return error.with_traceback(None)  # the frames hold the arguments
    raise AssertionError


@pytest.mark.parametrize(
    "counts", [Unprintable([1]), {"a": Unprintable([1])}, [Unprintable([1])], np.array([object()])]
)
def test_an_argument_whose_repr_fails_is_quoted_by_its_name(counts: object) -> None:
    error = quoted_by(Unprintable([1]))
    assert str(error) == "weigh(counts): no counts."
    assert quoted_by(counts).call is not None


def test_the_quoted_call_is_that_of_the_raise() -> None:
    counts = [1, 2]
    error = quoted_by(counts)
    counts[0] = 9
    assert str(error) == "weigh([1, 2]): no counts."


def test_an_error_keeps_no_argument_alive() -> None:
    counts = np.zeros(100)
    alive = weakref.ref(counts)
    error = quoted_by(counts)
    del counts
    assert alive() is None
    assert error.call == "weigh([0.0, 0.0, ..., 0.0])"


def test_everything_with_an_index_method_is_an_integer() -> None:
    numbers = [parse_integer(value) for value in (4, np.int64(4), np.uint8(4), np.array(4))]
    assert numbers == [4] * 4
    assert {*map(type, numbers), type(check_integer("rank", np.array(3)))} == {int}
    others = (True, False, np.True_, 4.0, np.float64(4), "4", None, [4], b"4")
    assert not any(parse_integer(value) is not None for value in others)


@settings(deadline=None, max_examples=60, database=None)
@given(st.integers(1, 3000))
def test_divisors_equal_those_of_trial_division(number: int) -> None:
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)


def test_divisors_of_a_large_number_are_limited() -> None:
    few = [2**n for n in range(20)]  # those below a million
    assert divisors(2**62) == (*few, *(2**62 // n for n in reversed(few)))


@pytest.mark.parametrize(("index", "nearest"), [(-1, 0), (4, 3), (2**70, 3)])
def test_an_index_outside_raises_an_error_with_the_nearest_one(index: int, nearest: int) -> None:
    with pytest.raises(CoordinateError) as caught:
        check_index("dp", index, 4)
    assert (caught.value.axis, caught.value.index, caught.value.size) == ("dp", index, 4)
    assert caught.value.fix == f"dp={nearest}."


def test_check_ranks_keeps_the_shape() -> None:
    array = check_ranks(np.array([[1, 2]], dtype=np.uint8))
    assert array.dtype == np.int64
    assert array.tolist() == [[1, 2]]
    assert check_ranks([]).tolist() == []
    with pytest.raises(CoordinateError, match="ranks are float64, not integers"):
        check_ranks([1.0])
