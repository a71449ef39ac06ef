"""Compare the tensors of a state that its layout takes for copies, up to rounding.

A weight that a layout forgets looks like a copy, and a checkpoint would have one part of it. So
ranks first compare one digest of all copies, and, if it differs, a few numbers of each: the norm,
and sums with random signs. If two tensors differ by d, each sum differs by about the norm of d::

    rank 0   norm 2.0   sums  1.3  -0.4   2.9  -1.1
    rank 1   norm 2.0   sums  1.3  -0.4   2.9  -1.1      a copy, by rounding
    rank 2   norm 1.9   sums -2.2   0.7  -0.3   1.6      another part of the weight

Along data axes and a pipeline ranks may hold other tensors under one name, and are not compared.
"""

from __future__ import annotations

import hashlib
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
TOLERANCE = 1e-2  # of the norm; rounding adds up to less, and other parts differ by about 1


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

    def digest_all() -> Facts:
        lines: dict[str, list[str]] = {}
        for name, axes in find().items():
            if not name.endswith(STATISTICS):
                copies[name] = " ".join(axes)
                text = f"{name} {digest_of(local_tensor(name, tensors[name])).hex()}"
                lines.setdefault(copies[name], []).append(text)
        texts = {axes: "\n".join(each).encode() for axes, each in lines.items()}
        return {axes: [axes, hashlib.sha256(t).hexdigest()] for axes, t in texts.items()}

    def sketch_each() -> Facts:
        return {n: [a, *sketch_of(local_tensor(n, tensors[n]))] for n, a in copies.items()}

    if not [*find_unequal(meshes, call, digest_all, ne)]:
        return
    conflicts = find_unequal(meshes, call, sketch_each, sketches_differ)
    for name, held_by in sorted(conflicts, key=itemgetter(0)):
        raise _forgotten_error(grid, name, held_by, name in tensors and not tensors[name].ndim)


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
    """Return the shape, and norm and sums of floating-point numbers, or a digest. Local."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return [[*tensor.shape], digest_of(tensor).hex()]
    x = plain(tensor)
    flat = (torch.view_as_real(x) if x.is_complex() else x).cpu().flatten()
    chance, square, sums = np.random.default_rng(0), 0.0, np.zeros(NUM_SUMS)
    for chunk in torch.split(flat, CHUNK) if len(flat) else ():
        values = chunk.double().numpy()
        square += float(values @ values)
        sums += chance.choice([-1.0, 1.0], (NUM_SUMS, len(values))) @ values
    return [[*tensor.shape], float(np.sqrt(square)), *sums.tolist()]


def sketches_differ(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return whether two sketches are those of different tensors."""
    if repr(first) == repr(second):  # NaNs too
        return False
    if first[0] != second[0] or len(first) != len(second) or isinstance(first[1], str):
        return True
    a, b = np.array([first[1:], second[1:]], dtype=float)
    with np.errstate(invalid="ignore"):
        distance = np.sqrt(np.mean((a[1:] - b[1:]) ** 2))
        return not distance <= TOLERANCE * max(a[0], b[0])


def _forgotten_error(
    grid: Layout, name: str, held_by: Mapping[int, str], is_number: bool
) -> DisagreementError:
    """Return the error of a tensor that the layout takes for a copy, and of which ranks differ."""
    first, second = held_by
    places = grid.coordinate(first), grid.coordinate(second)
    axis = next(a for a in reversed(grid.axes) if places[0][a] != places[1][a])
    cut = f'"{name}": "o/{axis} ..." in the layout, with /{axis} at the dim that is cut; or '
    return DisagreementError(
        f"{name} differs along {axis}, and the layout does not say how it is cut.",
        f"Ranks {first} and {second} hold other numbers, of which a checkpoint would have one.",
        fix=f'{cut * (not is_number)}"{name}": "... ={axis}", if any of them will do.',
        requests=dict(held_by),
    )
