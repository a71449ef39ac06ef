"""The exceptions: their tree, text and attributes, and pickling."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from meshkit.core import errors
from meshkit.core.call import Call
from meshkit.core.errors import (
    CALL,
    BatchError,
    CollectiveError,
    CoordinateError,
    DisagreementError,
    LaunchError,
    MeshkitError,
    NonfiniteError,
    RankTimeoutError,
    SpawnError,
    SpecError,
    UnknownAxisError,
)

BUILTIN = {
    SpecError: ValueError,
    UnknownAxisError: KeyError,
    CoordinateError: IndexError,
    BatchError: ValueError,
    LaunchError: RuntimeError,
    DisagreementError: RuntimeError,
    RankTimeoutError: TimeoutError,
    CollectiveError: RuntimeError,
    SpawnError: RuntimeError,
    NonfiniteError: RuntimeError,
}

FILLED = [
    SpecError("text", sizes={"dp": 4}, world_size=6),
    UnknownAxisError("text", axis="tq", axes=("dp", "tp"), suggestion="tp"),
    SpecError("text", axis="r", axes=("dp",), suggestion=None, sizes={"r": 2}),
    CoordinateError("text", axis="dp", index=9, size=4),
    BatchError("text", global_batch=10, below=8, above=12, micro_batches=(1, 2)),
    LaunchError("text", variables={"RANK": "0", "WORLD_SIZE": None}),
    DisagreementError("text", requests={0: "dp=4", 1: "dp=2"}),
    RankTimeoutError("text", missing_ranks=(6, 7)),
    CollectiveError("text", missing_ranks=(6,), behind=(2, 3)),
    SpawnError("text", errors={1: ValueError("x")}, tracebacks={1: "Traceback"}),
    NonfiniteError("text"),
    MeshkitError("text"),
]


@pytest.mark.parametrize(("kind", "builtin"), BUILTIN.items())
def test_each_error_is_also_an_error_of_python(
    kind: type[MeshkitError], builtin: type[Exception]
) -> None:
    assert issubclass(kind, MeshkitError)
    assert issubclass(kind, builtin)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = set(
        re.findall(r"\b[A-Z]\w+Error\b", (errors.__doc__ or "").split("An error is raised")[0])
    )
    kinds = [v for v in vars(errors).values() if isinstance(v, type)]
    public = {kind.__name__ for kind in kinds if issubclass(kind, MeshkitError)}
    builtin = {kind.__name__ for kind in BUILTIN.values()}
    assert drawn - builtin == public
    for name, parent in re.findall(r"^      (\w+)\((\w+)\)", errors.__doc__ or "", re.MULTILINE):
        assert BUILTIN[getattr(errors, name)].__name__ == parent


@pytest.mark.parametrize("error", FILLED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_each_error_pickles_with_its_attributes(error: MeshkitError, protocol: int) -> None:
    restored = pickle.loads(pickle.dumps(error, protocol))
    assert type(restored) is type(error)
    assert str(restored) == "text"
    assert restored.args == error.args
    assert vars(restored).keys() == vars(error).keys()
    assert repr(vars(restored)) == repr(vars(error))  # repr: two equal exceptions are not ==


@pytest.mark.parametrize("error", FILLED, ids=lambda error: type(error).__name__)
def test_each_error_copies_with_its_attributes(error: MeshkitError) -> None:
    assert repr(vars(copy.copy(error))) == repr(vars(error))
    assert repr(vars(copy.deepcopy(error))) == repr(vars(error))


def test_the_facts_of_an_error_are_its_own() -> None:
    assert SpecError("a", sizes={"dp": 1}).sizes == {"dp": 1}
    assert SpecError("b").sizes is None


def unquoted() -> SpecError:
    return SpecError(f"{CALL} needs 8 ranks.", "dp 4 x sp 2 = 8.", fix=f"start 8, with {CALL}.")


def test_an_error_renders_with_and_without_its_call() -> None:
    assert str(unquoted()) == (
        "this call needs 8 ranks.\n  dp 4 x sp 2 = 8.\n  Fix: start 8, with this call."
    )
    assert str(unquoted().quote(Call("f", kwargs={"dp": 4, "sp": 2}))) == (
        "f(dp=4, sp=2) needs 8 ranks.\n  dp 4 x sp 2 = 8.\n  Fix: start 8, with f(dp=4, sp=2)."
    )
    assert str(SpecError("python is missing.", fix="install python.")).endswith("install python.")


def test_a_quoted_error_keeps_its_text_through_pickle() -> None:
    error = unquoted().quote(Call("f", kwargs={"dp": 4, "sp": object()}))
    restored = pickle.loads(pickle.dumps(error))
    assert str(restored) == str(error)
    assert (restored.summary, restored.evidence) == (error.summary, error.evidence)
    assert restored.fix_text == error.fix_text
    assert str(pickle.loads(pickle.dumps(restored))) == str(error)
