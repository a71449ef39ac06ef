"""The exceptions: their tree, text and attributes, and pickling."""

from __future__ import annotations

import builtins
import copy
import pickle
import re

import pytest

from meshkit import errors
from meshkit.call import Call
from meshkit.errors import (
    CALL,
    BatchError,
    CollectiveError,
    CoordinateError,
    DeviceMeshError,
    DisagreementError,
    LaunchError,
    MeshkitError,
    NonfiniteError,
    RankTimeoutError,
    SpawnError,
    SpecError,
    UnknownAxisError,
)

FILLED = [
    SpecError("text", sizes={"dp": 4}, world_size=6),
    DeviceMeshError("text", sizes={"dp": 4}, num_ranks=8),
    UnknownAxisError("text", axis="tq", axes=("dp", "tp"), suggestion="tp"),
    SpecError("text", axis="r", axes=("dp",), suggestion=None, sizes={"r": 2}),
    CoordinateError("text", axis="dp", index=9, size=4),
    BatchError("text", global_batch=10, below=8, above=12, micro_batches=(1, 2)),
    LaunchError("text", variables={"RANK": "0", "WORLD_SIZE": None}),
    DisagreementError("text", requests={0: "dp=4", 1: "dp=2"}),
    RankTimeoutError("text", missing_ranks=(6, 7)),
    CollectiveError("text", missing_ranks=(6,), behind=(2, 3), kind="dead", root=(6,)),
    SpawnError("text", errors={1: ValueError("x")}, tracebacks={1: "Traceback"}),
    NonfiniteError("text"),
    MeshkitError("text"),
]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    tree = re.findall(r"^ +(\w+Error)(?:\((\w+)\))? ?", errors.__doc__ or "", re.MULTILINE)
    kinds = [v for v in vars(errors).values() if isinstance(v, type)]
    public = [kind.__name__ for kind in kinds if issubclass(kind, MeshkitError)]
    assert [name for name, _ in tree] == public
    for name, parent in tree[1:]:
        assert issubclass(getattr(errors, name), getattr(builtins, parent))


@pytest.mark.parametrize("error", FILLED, ids=lambda error: type(error).__name__)
def test_each_error_copies_with_its_attributes(error: MeshkitError) -> None:
    pickles = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for restored in (copy.copy(error), copy.deepcopy(error), *map(pickle.loads, pickles)):
        assert type(restored) is type(error)
        assert str(restored) == "text"
        assert repr(vars(restored)) == repr(vars(error))  # repr: two equal exceptions are not ==
    assert type(error)("other").__dict__.keys() <= vars(MeshkitError()).keys()  # its own facts


def test_an_error_renders_with_and_without_its_call() -> None:
    error = SpecError(f"{CALL} needs 8 ranks.", "dp 4 x sp 2 = 8.", fix=f"start 8, with {CALL}.")
    text = "{0} needs 8 ranks.\n  dp 4 x sp 2 = 8.\n  Fix: start 8, with {0}."
    assert str(error) == text.format("this call")
    error.quote(Call("f", kwargs={"dp": 4, "sp": object()}))
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == text.format("f(dp=4, sp=sp)")


def raise_with_cause(error: MeshkitError) -> None:
    raise error from KeyError("dp")


@pytest.mark.parametrize("error", FILLED, ids=lambda error: type(error).__name__)
def test_an_error_with_other_parts_is_another_error_with_the_same_data(error: MeshkitError) -> None:
    with pytest.raises(type(error)) as raised:
        raise_with_cause(error.quote("f()"))
    before = pickle.dumps(error)
    changed = error.but(summary="dp is 0.", evidence=["read from a file."], fix="dp=1.")
    assert changed.evidence == ("read from a file.",)
    assert (changed.summary, changed.fix) == ("dp is 0.", "dp=1.")
    assert repr(changed) == f"{type(error).__name__}('dp is 0.')"
    assert changed.__cause__ is error.__cause__ is not None
    assert changed.__traceback__ is raised.value.__traceback__
    parts = {"summary", "evidence", "fix"}
    facts = [repr({n: v for n, v in vars(e).items() if n not in parts}) for e in (error, changed)]
    assert facts[0] == facts[1]
    assert str(error.but()) == str(error)
    assert pickle.dumps(error) == before
