"""One rank passes something wrong to a collective: each other one raises at once, with the reason.

Ranks compare their calls inside a guard with a timeout, and outside it the first one over each
group. ``exchange`` and the calls that meet in the store let all ranks know in every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import meshkit
from tests.newer_torch import needs_order
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 4  # of the pool
WAIT = 3.0  # seconds in which all ranks have raised; collectives and arrivals may take minutes
Call = Callable[[meshkit.Mesh, meshkit.Mesh, Any], Any]
GOOD = torch.ones(4, 6)
BAD: dict[str, Any] = {
    "a text": "x",
    "None": None,
    "a list": [GOOD],
    "sizes": torch.ones(3, 5),
    "dims": torch.ones(8),
    "sparse": GOOD.to_sparse(),
}
ANY_SHAPE = {"sizes", "dims"}  # which these calls take, and compare between the ranks
TAKES_ANY = {"shift", "exchange", "sum", "any dims", "whole_state", "transfer"}
MOVE = "a/dp/tp b -> a b/dp/tp"
TENSORS: dict[str, Call] = {
    "redistribute": lambda m, _, x: m.redistribute(x, MOVE, a=16, b=6),
    "sum": lambda m, _, x: m.redistribute(x, "a b +dp -> a/dp b"),
    "any dims": lambda m, _, x: m.redistribute(x, "... a/tp -> ... a"),
    "begin": lambda m, _, x: m.begin(x, "a/dp b -> a b/dp").wait(),
    "redistribution": lambda m, _, x: m.redistribution("a/dp b -> a b")(x),
    "shift": lambda m, _, x: m.shift(x, "dp", 1),
    "exchange": lambda m, _, x: m.exchange(x, "dp", [2, 2]),
    "whole_state": lambda m, _, x: m.whole_state({"x": x}, {"x": "a/dp b"}),
    "transfer": lambda m, o, x: m.transfer({"x": "a/dp b -> a/p b"}, to=o, like={"x": x})({"x": x}),
    "to a mesh": lambda m, o, x: m.redistribute(x, "a/dp b -> a/p b", to=o, a=8, b=6),
    "begin to a mesh": lambda m, o, x: m.begin(x, "a/dp b -> a b/p", to=o, a=8, b=6).wait(),
}
ALWAYS = {"exchange", "whole_state", "transfer"}  # all ranks know in every call


ALONG_DP, ALONG_TP = {0, 2}, {0, 1}  # what the numbers of the ranks of a group differ by, as bits
OVER = dict.fromkeys(["sum", "begin", "redistribution", "shift", "exchange"], ALONG_DP)
OVER["any dims"] = ALONG_TP


def attempt(work: Callable[[Any], Any], x: Any) -> str:
    """Return the error of a call, which comes in time."""
    began = time.monotonic()
    try:
        work(x)
        text = "no error"
    except meshkit.MeshkitError as error:
        text = f"{type(error).__name__}: {error}"
    assert time.monotonic() - began < WAIT + BUSY, text
    return text


def refuse(call: str, odd: int, guarded: bool) -> dict[str, str]:
    """Return the errors of this rank, in first calls, or in a guard in later ones too."""
    errors = {}
    for kind, bad in BAD.items():
        if kind in ANY_SHAPE and call in TAKES_ANY:
            continue
        if call == "redistribution" and kind == "sizes":
            continue  # the ranks disagree, and none refuses
        if call == "whole_state" and kind in ("None", "a text", "a list"):
            continue  # of a state they are no tensors
        mesh, other = (
            meshkit.build_mesh(dp=2, tp=2, groups=["dp tp"]),
            meshkit.build_mesh({"p": 4}, ranks=[1, 0, 3, 2]),
        )
        with mesh, other:
            make = partial(TENSORS[call], mesh, other)
            if guarded or call in ALWAYS:
                make(GOOD)
            with mesh.guard(timeout=60 if guarded else None):
                errors[kind] = attempt(make, bad if mesh.rank == odd else GOOD)
            make(GOOD)  # no message of the refused call is left
    return errors


@needs_order
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("call", TENSORS)
def test_the_other_ranks_know_why_a_rank_refuses_its_tensor(
    pool: Pool, call: str, guarded: bool
) -> None:
    odd = 1 + guarded
    by_rank = pool.run(refuse, call, odd, guarded)
    over = OVER.get(call, {*range(RANKS)})
    peers = {rank for rank in range(RANKS) if rank ^ odd in over} - {odd}
    for kind, own in by_rank[odd].items():
        assert own.startswith("SpecError"), (kind, own)
        for rank in {*range(RANKS)} - {odd}:
            text = by_rank[rank][kind]
            assert ("SpecError: " in text) == (rank in peers), (kind, rank, text)
            assert text.startswith("DisagreementError" if rank in peers else "no error")


# ------------------------------------------------------------------ the options of a call

LENGTH = {order: meshkit.SequencePlan(8, 2, order=order) for order in ("zigzag", "contiguous")}
GOOD_OPTIONS: dict[str, Any] = {"pattern": "a/dp b *tp -> a b/p", "a": 8, "b": 8}
BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "a pattern without a right side": {"pattern": "a/dp b *tp"},
    "an axis that the mesh lacks": {"pattern": "a/dq b *tp -> a b/p"},
    "an unknown reduction": {"op": "median"},
    "a size that is a text": {"a": "8"},
    "a size that has no hash": {"a": [8]},
    "a dim that the pattern lacks": {"c": 3},
    "a dtype that is a text": {"grad_dtype": "float32"},
    "another pattern": {"pattern": "a/dp b *tp -> a/p b"},
    "another dtype of gradients": {"grad_dtype": torch.float64},
    "another order": {"a": LENGTH["contiguous"]},
    "a mean of whole numbers": {"op": "avg"},
}


def move_with_options(
    mesh: meshkit.Mesh, other: meshkit.Mesh, x: torch.Tensor, options: dict[str, Any]
) -> torch.Tensor:
    rest = {name: value for name, value in options.items() if name != "pattern"}
    return mesh.redistribute(x, options["pattern"], to=other, **rest)


def call_with_other_options(odd: int) -> dict[str, list[str]]:
    """Return the errors of this rank if one rank calls with bad options, and a later result."""
    texts = {}
    for name, bad in BAD_OPTIONS.items():
        good = {**GOOD_OPTIONS, "a": LENGTH["zigzag"]} if name == "another order" else GOOD_OPTIONS
        x = torch.ones(4, 8, dtype=torch.int64 if name.endswith("numbers") else torch.float32)
        with (
            meshkit.build_mesh(dp=2, tp=2) as mesh,
            meshkit.build_mesh({"p": 4}, ranks=[1, 0, 3, 2]) as other,
        ):
            move = partial(move_with_options, mesh, other, x)
            texts[name] = [attempt(move, {**good, **bad} if mesh.rank == odd else good)]
            texts[name].append(str([*move(GOOD_OPTIONS).shape]))
    return texts


@needs_order
@pytest.mark.parametrize("odd", [0, 3])
def test_all_ranks_of_two_meshes_know_that_a_rank_calls_with_other_options(
    pool: Pool, odd: int
) -> None:
    by_rank = pool.run(call_with_other_options, odd)
    for name in BAD_OPTIONS:
        for rank, texts in enumerate(by_rank):
            text, later = texts[name]
            assert text != "no error", (name, rank)
            is_told = rank != odd or name.startswith("another ")
            assert text.startswith("DisagreementError") == is_told, (name, rank, text)
            assert later == "[8, 2]", (name, rank)


# ------------------------------------------------------------------ a gradient on some ranks only

FLOWS: dict[str, Call] = {
    "sum": lambda m, _, x: m.redistribute(x, "a b +dp -> a b *dp"),
    "gather": lambda m, _, x: m.redistribute(x, "a/dp b -> a b *dp"),
    "mean": lambda m, _, x: m.redistribute(x, "a b +dp -> a/dp b", op="avg"),
    "shift": lambda m, _, x: m.shift(x, "dp", 1),
    "exchange": lambda m, _, x: m.exchange(x, "dp", [2, 2])[0],
}
GRADIENTS = {  # of the odd rank: requires_grad and grad mode; all others have the opposite of one
    "only on it": (True, True),
    "missing on it": (False, True),
    "no_grad on it": (True, False),
}


def flow(call: str, odd: int, guarded: bool) -> dict[str, str]:
    """Return the errors of this rank where a gradient flows on some ranks only."""
    errors = {}
    for kind, (requires, enabled) in GRADIENTS.items():
        with meshkit.build_mesh(dp=2, tp=2) as mesh:
            is_odd, make = mesh.rank == odd, partial(FLOWS[call], mesh, None)
            x = GOOD.clone().requires_grad_(requires == is_odd or not enabled)
            if guarded:
                make(x.detach())
            with mesh.guard(timeout=60 if guarded else None):
                with torch.set_grad_enabled(enabled or not is_odd):
                    errors[kind] = attempt(make, x)
                errors[f"{kind}, no_grad on all"] = attempt(torch.no_grad()(make), x)
    return errors


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("call", FLOWS)
def test_ranks_know_before_the_backward_that_one_of_them_has_another_gradient(
    pool: Pool, call: str, guarded: bool
) -> None:
    odd = 1 + guarded
    for rank, errors in enumerate(pool.run(flow, call, odd, guarded)):
        for kind, text in errors.items():
            is_refused = kind in GRADIENTS and (rank ^ odd) in ALONG_DP
            assert text.startswith("DisagreementError" if is_refused else "no error"), (kind, text)
            assert ("grad=yes" in text and "grad=no" in text) == is_refused, (kind, text)


def move_with_a_local_backward(odd: int) -> list[str]:
    """Return the errors of this rank if one rank has a gradient that needs no other rank."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh, mesh.guard(timeout=60):
        x = GOOD.clone().requires_grad_(mesh.rank == odd)
        patterns = ["a/dp b -> a b =dp", "a b +dp -> a b =dp", "a b @dp:0 -> a b =dp"]
        texts = [attempt(lambda x, p=p: mesh.redistribute(x, p), x) for p in patterns]
        with torch.no_grad():
            texts.append(attempt(lambda x: mesh.begin(x, "a b +dp -> a b *dp").wait(), x))
        return texts


def test_a_gradient_that_stays_on_its_rank_may_differ(pool: Pool) -> None:
    assert pool.run(move_with_a_local_backward, 1) == [["no error"] * 4] * RANKS
