"""Facts of one tensor."""

from __future__ import annotations

import torch
from torch import nn

import meshkit
from meshkit.launch.tensors import is_dtensor


class Looks(torch.Tensor):
    """A tensor of a library that only looks like a DTensor."""

    placements = device_mesh = None

    def to_local(self) -> torch.Tensor:
        return self

    full_tensor = to_local


def find_dtensors() -> list[bool]:
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh = meshkit.build_mesh(dp=1)
    spread = distribute_tensor(torch.ones(2), mesh.device_mesh("dp"), [Replicate()])
    values = spread, nn.Parameter(spread), spread.to_local(), nn.Parameter(torch.ones(2)), None
    return [is_dtensor(value) for value in (*values, torch.ones(2).as_subclass(Looks))]


def test_a_dtensor_is_told_from_tensors_that_look_like_it() -> None:
    assert meshkit.spawn(find_dtensors, 1) == [[True, True, False, False, False, False]]
