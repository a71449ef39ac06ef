"""Compare the tensors of a state that its layout takes for copies, up to rounding.

A weight that a layout forgets looks like a copy, and a checkpoint would have one part of it. So
ranks first compare a digest of each copy, and of those that differ a few numbers: the norm, and
sums with random signs. If two tensors differ by d, each sum differs by about the norm of d::

    rank 0   norm 2.0   sums  1.3  -0.4   2.9  -1.1
    rank 1   norm 2.0   sums  1.3  -0.4   2.9  -1.1      a copy, by rounding
    rank 2   norm 1.9   sums -2.2   0.7  -0.3   1.6      another part of the weight

Along data axes and a pipeline ranks may hold other tensors under one name, and are not compared.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter, ne
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DisagreementError
from ..launch.job import require_job
from ..launch.tensors import plain
from ..layout.axes import DATA, has_pipeline
from ..layout.layout import Layout
from ..redistribute.checked import digest_of
from ..redistribute.mesh_pair import MeshPair
from .state_tables import agree_on_tables, local_tensor

# name to the axes along which ranks must hold the same, and what this rank holds
Facts = dict[str, list[Any]]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of the batches of a rank
NUM_SUMS = 4
CHUNK = 2**20  # elements that are widened at once
TOLERANCE = 1e-3  # of the norm, or 4 roundings of a coarser dtype; other parts differ by about 1
NOISE = 1e-7  # of each element: smaller differences are no parts


def shared_axes(layout: Layout) -> list[str]:
    """Return the axes along which copies are compared."""
    sizes = layout.sizes.items()
    return [a for a, size in sizes if size > 1 and a not in DATA and not has_pipeline([a])]


def check_copies(
    meshes: MeshPair,
    call: str,
    find: Callable[[], Mapping[str, Sequence[str]]],
    tensors: Mapping[str, Any],
) -> None:
    """Raise if ranks hold different tensors where their layout has copies. Collective.

    ``find`` returns the axes along which each tensor is a copy. If it raises, no rank waits.
    """
    grid = meshes.layouts[0]
    if not shared_axes(grid) or require_job().rehearsed is not None:
        return
    copies: dict[str, str] = {}  # to the axes along which each is one

    def digest_each() -> Facts:
        for name, axes in find().items():
            if not name.endswith(STATISTICS):
                copies[name] = " ".join(axes)
        held = {name: digest_of(local_tensor(name, tensors[name])).hex() for name in copies}
        return {name: [copies[name], digest[:16]] for name, digest in held.items()}

    def sketch_each() -> Facts:
        held = {name: copies[name] for name in unequal if name in copies}
        return {n: [a, *sketch_of(local_tensor(n, tensors[n]))] for n, a in held.items()}

    unequal = sorted({name for name, _ in find_unequal(meshes, call, digest_each, ne)})
    if not unequal:
        return
    conflicts = find_unequal(meshes, call, sketch_each, sketches_differ)
    for name, held_by in sorted(conflicts, key=itemgetter(0)):
        raise _forgotten_error(grid, name, held_by, name in tensors and not tensors[name].ndim)


def is_comparable(tensor: Tensor) -> bool:
    """Return whether a tensor has elements that a digest can read."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_meta)


def find_unequal(
    meshes: MeshPair,
    call: str,
    read: Callable[[], Facts],
    differ: Callable[[list[Any], list[Any]], bool],
) -> Iterator[tuple[str, dict[int, str]]]:
    """Yield each name under which two ranks should hold the same, and do not. Collective.

    With it comes what each of the two holds, as text.
    """
    grid = meshes.layouts[0]
    known: dict[tuple[str, tuple[int, ...]], tuple[list[Any], int]] = {}
    for _, table, ranks in agree_on_tables(meshes, call, {}, lambda: {"source": read()}):
        at = {rank: grid.coordinate(rank) for rank in ranks}
        for name, (axes, *held) in table.items():
            equal = axes.split()
            for rank in ranks:
                place = tuple(i for axis, i in at[rank].items() if axis not in equal)
                other, first = known.setdefault((name, place), (held, rank))
                if differ(held, other):
                    yield name, {first: str(other), rank: str(held)}
                    break


def sketch_of(tensor: Tensor) -> list[Any]:
    """Return the shape, tolerance, norm and sums of floating-point numbers, or a digest. Local."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return [[*tensor.shape], digest_of(tensor).hex()]
    x = plain(tensor)
    flat = (torch.view_as_real(x) if x.is_complex() else x).flatten()
    chance = np.random.default_rng(0)
    signs = chance.choice([-1.0, 1.0], (NUM_SUMS, min(len(flat), CHUNK)))
    of_device = torch.from_numpy(signs).float().to(flat.device)
    square, sums = 0.0, np.zeros(NUM_SUMS)
    for chunk in torch.split(flat, CHUNK) if len(flat) else ():
        values = chunk.float()
        square += float(values.square().sum())
        # a sign of the whole chunk too, so that two chunks are not interchangeable
        sums += chance.choice([-1, 1]) * (of_device[:, : len(values)] @ values).cpu().numpy()
    tolerance = max(TOLERANCE, 4 * torch.finfo(tensor.dtype).eps)
    floor = NOISE * float(np.sqrt(len(flat)))
    return [[*tensor.shape], tolerance, floor, float(np.sqrt(square)), *sums.tolist()]


def sketches_differ(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether two sketches are those of different tensors.

    Sums that are not finite say nothing.
    """
    if first[0] != second[0] or len(first) != len(second) or isinstance(first[1], str):
        return first != second
    _, tolerance, floor, norm, *sums = first
    _, other_tolerance, _, other_norm, *other_sums = second
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.sqrt(np.mean((np.array(sums) - other_sums) ** 2)))
    return bool(distance > max(floor, max(tolerance, other_tolerance) * max(norm, other_norm)))


def _forgotten_error(
    grid: Layout, name: str, held_by: Mapping[int, str], is_number: bool
) -> DisagreementError:
    """Return the error of a tensor that the layout takes for a copy, and of which ranks differ."""
    first, second = held_by
    places = grid.coordinate(first), grid.coordinate(second)
    axis = next(a for a in reversed(grid.axes) if places[0][a] != places[1][a])
    key = glob.escape(name)
    cut = f'"{key}": "o/{axis} ...", with /{axis} at the dim that is cut; or '
    return DisagreementError(
        f"{name} differs along {axis}, and the layout does not say how it is cut.",
        f"Ranks {first} and {second} hold other numbers, of which a checkpoint would have one.",
        fix=f'first in the layout, {cut * (not is_number)}"{key}": "... ={axis}", if any of them '
        "will do.",
        requests=dict(held_by),
    )
