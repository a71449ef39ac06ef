"""One rank refuses the arguments of a comparison: the others raise at once, with the reason."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import meshkit
from tests.pool import Pool
from tests.promises import BUSY

RANKS = 4  # of the pool
WAIT = 3.0  # seconds in which all ranks have raised; collectives and arrivals may take minutes
Call = Callable[[meshkit.Mesh], Any]
ONES = torch.ones(4)
CALLS: dict[str, tuple[Call, Call]] = {  # good, and refused
    "data of check_batch": (
        lambda m: m.check_batch(ONES, data=()),
        lambda m: m.check_batch(ONES, data="dq"),
    ),
    "batch of check_batch": (
        lambda m: m.check_batch(ONES, data=()),
        lambda m: m.check_batch(object(), data=()),
    ),
    "axes of check_parameters": (
        lambda m: m.check_parameters({"w": ONES}, axes="dp"),
        lambda m: m.check_parameters({"w": ONES}, axes="dq"),
    ),
    "model of check_parameters": (
        lambda m: m.check_parameters({"w": ONES}),
        lambda m: m.check_parameters(nn.Linear),  # type: ignore[arg-type]
    ),
    "name of agree": (
        lambda m: m.agree("step", 1),
        lambda m: m.agree(3, 1),  # type: ignore[arg-type]
    ),
    "value of agree": (lambda m: m.agree("step", 1), lambda m: m.agree("step", object())),
}


def refuse(odd: int) -> dict[str, str]:
    """Return the errors of this rank, where one rank makes the refused call."""
    texts = {}
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        for name, (good, refused) in CALLS.items():
            began = time.monotonic()
            with pytest.raises(meshkit.MeshkitError) as caught:
                (refused if mesh.rank == odd else good)(mesh)
            texts[name] = f"{type(caught.value).__name__}: {caught.value}"
            assert time.monotonic() - began < WAIT + BUSY, texts[name]
            good(mesh)  # nothing of the refused call is left
    return texts


@pytest.mark.parametrize("odd", [0, 3])
def test_the_other_ranks_know_why_a_rank_refuses_its_arguments(pool: Pool, odd: int) -> None:
    by_rank = pool.run(refuse, odd)
    for name in CALLS:
        texts = [texts[name] for texts in by_rank]
        for rank, text in enumerate(texts):
            assert rank == odd or f"ank {odd}" in text, (name, rank, text)
    for name in "data of check_batch", "axes of check_parameters":
        assert "there is no axis 'dq'" in by_rank[1][name]
