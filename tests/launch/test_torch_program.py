"""The compiler in torch's private API."""

from __future__ import annotations

from typing import Any

import torch

from meshkit.launch.torch_program import keep_uncompiled


def test_the_graph_of_a_compiled_caller_ends_at_a_function_that_is_kept() -> None:
    """Torch compiles neither the function nor what it calls, with one size or with another."""
    compiled: list[str] = []

    def compile_nothing(graph: torch.fx.GraphModule, _: object) -> Any:
        compiled.append(graph.code)
        return graph.forward

    def add_one(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 1

    @keep_uncompiled
    def kept(tensor: torch.Tensor) -> torch.Tensor:
        return add_one(tensor)

    @torch.compile(backend=compile_nothing)
    def call(tensor: torch.Tensor) -> torch.Tensor:
        return kept(tensor * 2) * 3

    for size in 2, 5, 9:
        assert call(torch.ones(size)).tolist() == [9.0] * size
    assert all("* 2" in code or "* 3" in code for code in compiled)
    assert not any("+ 1" in code for code in compiled)
