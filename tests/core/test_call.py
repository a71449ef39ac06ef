"""A call as its caller wrote it, and the decorator that quotes it in errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from meshkit.core.call import Call, drop_none, public
from meshkit.core.errors import CALL, Change, MeshkitError, SpecError


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("f"), "f()"),
        (Call("f", (8,)), "f(8)"),
        (Call("f", (8,), {"dp": 4, "order": "dp"}), "f(8, dp=4, order='dp')"),
        (Call("f", ({"dp": 4},), {"sp": 2}), "f({'dp': 4}, sp=2)"),
        (Call("f", kwargs={"ranks": range(8, 16)}), "f(ranks=range(8, 16))"),
        (Call("f", kwargs={"ranks": [*range(8)]}), "f(ranks=[0, 1, 2, 3, 4, 5, 6, 7])"),
        (Call("f", kwargs={"ranks": [*range(9)]}), "f(ranks=[0, 1, ..., 8])"),
        (Call("f", kwargs={"ranks": np.arange(2)}), "f(ranks=[0, 1])"),
        (Call("f", kwargs={"ranks": np.arange(100)}), "f(ranks=[0, 1, ..., 99])"),
        (Call("f", kwargs={"pattern": "dp sp -> (dp sp)"}), "f(pattern='dp sp -> (dp sp)')"),
    ],
)
def test_the_text_of_a_call(call: Call, text: str) -> None:
    assert str(call) == text


def test_with_args_changes_adds_and_drops_arguments() -> None:
    call = Call("f", (8,), {"dp": 4, "sp": 2})
    assert str(call.with_args(dp=8)) == "f(8, dp=8, sp=2)"
    assert str(call.with_args(order="sp dp")) == "f(8, dp=4, sp=2, order='sp dp')"
    assert str(call.with_args(dp=None)) == "f(8, sp=2)"
    assert str(call) == "f(8, dp=4, sp=2)"


def test_with_args_changes_sizes_inside_a_mapping() -> None:
    call = Call("f", ({"dp": 4, "sp": 2},), {"tp": 1})
    assert str(call.with_args(dp=8)) == "f({'dp': 8, 'sp': 2}, tp=1)"
    assert str(call.with_args(dp=None)) == "f({'sp': 2}, tp=1)"
    assert str(call.with_args(tp=2, order="x")) == "f({'dp': 4, 'sp': 2}, tp=2, order='x')"
    assert call.args == ({"dp": 4, "sp": 2},)


def test_drop_none() -> None:
    assert drop_none(a=1, b=None, c=0, d=False, e="") == {"a": 1, "c": 0, "d": False, "e": ""}


def test_with_args_changes_a_positional_argument_by_the_name_of_its_parameter() -> None:
    call = Call("f", (8, 2), parameters=("world_size", "nodes"))
    assert str(call.with_args(nodes=4)) == "f(8, 4)"


# ---------------------------------------------------------------- the decorator


@public("inner")
def inner(dp: int) -> int:
    raise SpecError(f"{CALL} needs 8 ranks.", fix=(Change(dp=8), "."))


@public("outer")
def outer(dp: int, *, order: str | None = None) -> int:
    return inner(dp)


class Grid:
    @public("grid.size")
    def size(self, axis: str) -> int:
        raise SpecError(f"there is no axis {axis}.")

    @classmethod
    @public("Grid.of")
    def of(cls, ranks: int) -> int:
        raise SpecError("no ranks.")

    @property
    @public("grid.shape")
    def shape(self) -> int:
        raise SpecError("no shape.")


@contextmanager
@public("guard")
def guard(name: str) -> Iterator[str]:
    yield name


def test_the_outermost_public_function_is_quoted() -> None:
    with pytest.raises(SpecError) as caught:
        inner(4)
    assert str(caught.value) == "inner(4) needs 8 ranks.\n  Fix: inner(8)."
    with pytest.raises(SpecError) as caught:
        outer(4, order="dp")
    text = "outer(4, order='dp') needs 8 ranks.\n  Fix: outer(8, order='dp')."
    assert str(caught.value) == text


def test_self_and_cls_are_not_quoted() -> None:
    with pytest.raises(SpecError) as caught:
        Grid().size("dp")
    assert str(caught.value) == "grid.size('dp'): there is no axis dp."
    with pytest.raises(SpecError) as caught:
        Grid.of(4)
    assert str(caught.value) == "Grid.of(4): no ranks."
    with pytest.raises(SpecError) as caught:
        _ = Grid().shape
    assert str(caught.value) == "grid.shape(): no shape."


def test_a_context_manager_keeps_the_call_of_an_error_in_its_body() -> None:
    with pytest.raises(SpecError) as caught, guard("step"):
        inner(4)
    assert str(caught.value).startswith("inner(4) needs")
    with pytest.raises(MeshkitError) as plain, guard("step"):
        raise MeshkitError("the step failed.")
    assert str(plain.value) == "guard('step'): the step failed."


def test_other_errors_and_results_pass_unchanged() -> None:
    @public("half")
    def half(number: int) -> float:
        """Return half of a number."""
        return 4 / number

    assert half(2) == 2
    assert half.__doc__ == "Return half of a number."
    with pytest.raises(ZeroDivisionError):
        half(0)


def in_words_of_others(args: Sequence[Any], kwargs: Mapping[str, Any]) -> MeshkitError | None:
    """Return the error of a call with ``size`` instead of ``dp``."""
    return MeshkitError("size is called dp here.", fix="dp.") if "size" in kwargs else None


@public("explained", explain=in_words_of_others)
def explained(dp: int) -> int:
    if dp < 0:
        raise TypeError("negative") from KeyError("dp")
    return dp


def test_arguments_that_do_not_fit_are_explained() -> None:
    with pytest.raises(MeshkitError) as caught:
        explained(4, size=2)  # type: ignore[call-arg]
    assert str(caught.value) == "explained(4, size=2): size is called dp here.\n  Fix: dp."
    assert caught.value.__suppress_context__
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        explained(4, other=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="negative") as deep:
        explained(-1)
    assert isinstance(deep.value.__cause__, KeyError)
    assert explained(4) == 4
