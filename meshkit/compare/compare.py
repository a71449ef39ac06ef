"""Compare a training step on several meshes with the same step on one rank, and name the cause.

In a shell each word is a mesh::

    python -m meshkit.compare.compare train.py:step dp=4 "dp=2 tp=2"
"""

from __future__ import annotations

import argparse
import math
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..call import quotes_call
from ..errors import MeshkitError, SpecError
from ..launch.times import Time, parse_timeout
from ..layout.group_plan import factor_world
from ..layout.layout import Layout
from ..layout.sizes import parse_sizes
from ..mesh.mesh import Mesh
from ..text import format_sizes
from .parity import Difference, Held, NumbersError, Report, Rules, find_differences
from .steps import Fault, Ranks, Values

__all__ = ["Difference", "NumbersError", "Report", "compare_meshes"]

Sizes = str | Mapping[str, int]


@quotes_call("compare_meshes")
def compare_meshes(
    step: Callable[[Mesh], Mapping[str, Any]],
    *meshes: Sizes,
    layout: Mapping[str, str] | None = None,
    reduce: Mapping[str, str] | None = None,
    timeout: Time | None = 60,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """Run a step on each mesh and on one rank, and report the tensors that differ, with the cause.

    Local: it starts its own ranks on this machine, on the CPU with gloo, and none is left when it
    returns or raises. A mesh and its one rank have the same axes, those of the one rank of size 1.
    On each rank the default dtype is float64, and Python, NumPy and torch have the same seed.

    Ranks are forked from this process, so ``step`` may be a closure or stand in a notebook, and
    they see its environment, working folder and ``sys.path``. If this process uses an accelerator
    or has joined a job, new processes import ``step``, which must then be at the top level of a
    module. The same ranks run one mesh after the other, so ``step`` makes what it changes: the
    model above all, since gradients of an earlier mesh would be added.

    Args:
        step: the function of a mesh: it builds a model, runs forward and backward, and returns
            names and tensors: DTensors, plain tensors, numbers, or None for zeros. The name of a
            gradient begins with ``grad``.
        *meshes: the sizes, as ``"dp=2 tp=2"`` or ``{"dp": 2, "tp": 2}``.
        layout: the glob of a name -> how ranks hold the tensor, one side of a pattern such as
            ``"o/tp i"`` or ``"b s d +tp"``. An axis that a mesh lacks has size 1. A DTensor needs
            none, and is compared whole. Any other tensor is a copy, equal on every rank; along a
            pipeline each stage may return its own.
        reduce: the glob of a name -> ``"avg"`` or ``"sum"`` over the data axes, before it is
            compared; for a loss of local samples.
        timeout: how long a step may take on one mesh, in seconds or as a timedelta; None waits.
        sizes: the global sizes of dims in brackets, of all but one: ``"(qkv h/tp d) i"`` with
            ``{"qkv": 3, "d": 64}`` joins a fused weight.

    Returns:
        The report; ``str`` shows the first difference with a known cause in full.
        A step that raises or hangs is one of its differences.

    Raises:
        SpecError: if a mesh, a side or a reduction is invalid; if one rank that runs ``step`` a
            second time gets other numbers; if ``step`` cannot be sent to new processes.

    Cost: 0.1 s for each mesh, and one run of ``step`` on it; each rank is a process of one thread.

    Example:
        >>> import torch
        >>> def step(mesh):
        ...     weight = torch.ones(2, requires_grad=True)
        ...     (weight * 3).sum().backward()
        ...     torch.distributed.all_reduce(weight.grad, group=mesh.group("tp"))
        ...     return {"grad weight": weight.grad}
        >>> print(compare_meshes(step, "dp=2", "tp=2"))
        grad weight on tp=2 is not that of one rank.
          It is 2 times that of one rank (up to rounding): the size of tp.
          Fix: leave out a sum over tp, or divide by the size.
    """
    given = [parse_sizes(mesh.split()) if isinstance(mesh, str) else mesh for mesh in meshes]
    layouts = {}
    for each in given:  # axes in the order of factor_world
        known = [size for size in each.values() if isinstance(size, int) and size > 0]
        layouts[format_sizes(each)] = factor_world(math.prod(known), each)
    if not callable(step) or not layouts:
        line = f"step is {step!r}, no function." if layouts else "there is no mesh to compare."
        raise SpecError(line, fix='compare_meshes(step, "dp=2", "dp=2 tp=2").')
    rules = Rules(layout or {}, reduce or {}, sizes)
    limit = parse_timeout("timeout", timeout)
    ranks = Ranks(step, limit.total_seconds() if limit else math.inf)
    try:
        return _compare(ranks, layouts, rules)
    finally:
        ranks.close()


def _compare(ranks: Ranks, layouts: Mapping[str, Layout], rules: Rules) -> Report:
    """Run the step on all meshes, and return the report."""
    ones: dict[tuple[str, ...], Values | Fault] = {}
    runs, faults = list[Held](), list[Difference]()
    for text, layout in layouts.items():
        if layout.axes not in ones:
            ones[layout.axes] = _run_one(ranks, layout.axes, is_first=not ones)
            if isinstance(fault := ones[layout.axes], Fault):
                faults.append(_difference(format_sizes(dict.fromkeys(layout.axes, 1)), fault))
        one = ones[layout.axes]
        if isinstance(one, Fault):
            continue
        held = ranks.run(layout.sizes, layout.num_ranks)
        if isinstance(held, Fault):
            faults.append(_difference(text, held))
            continue
        names = dict.fromkeys(name for values in held.values() for name in values)
        tensors = {n: {r: v[n] for r, v in held.items() if n in v} for n in names}
        runs.append(Held(text, layout, tensors, one))
    report = find_differences(runs, rules)
    order = {text: number for number, text in enumerate(layouts, 1)}
    rows = sorted([*faults, *report.differences], key=lambda row: order.get(row.mesh, 0))
    return replace(report, meshes=tuple(layouts), differences=tuple(rows))


def _run_one(ranks: Ranks, axes: Sequence[str], *, is_first: bool) -> Values | Fault:
    """Return the tensors of one rank, the first time after a check that they come again."""
    layout = Layout.of(dict.fromkeys(axes, 1))
    held = ranks.run(layout.sizes, 1)
    if not is_first or isinstance(held, Fault):
        return held if isinstance(held, Fault) else held[0]
    again = ranks.run(layout.sizes, 1)
    if isinstance(again, Fault):
        return again
    tensors = {name: {0: value} for name, value in again[0].items()}
    report = find_differences([Held("one rank", layout, tensors, held[0])], Rules({}, {}))
    if report.differences:
        name = report.differences[0].name
        raise SpecError(
            f"one rank that runs step a second time gets another {name}.",
            "The same ranks run all meshes, one after the other, with equal seeds.",
            fix="make the model, its gradients and other state inside step.",
        )
    return held[0]


def _difference(mesh: str, fault: Fault) -> Difference:
    first, *rest = fault.lines
    return Difference(mesh, "", (), fault.cause, None, "\n  ".join([f"{mesh}: {first}", *rest]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a tensor differs."""
    parser = argparse.ArgumentParser(
        "python -m meshkit.compare.compare",
        description="Compare a step on several meshes with the same step on one rank.",
    )
    parser.add_argument("step", help="the file and the function, for example train.py:step")
    parser.add_argument("meshes", nargs="+", help='each word is a mesh: dp=4 "dp=2 tp=2"')
    parser.add_argument("--layout", action="append", default=[], metavar="NAME=SIDE",
                        help="how ranks hold a tensor: --layout '*.weight=o/tp i'")  # fmt: skip
    parser.add_argument("--reduce", action="append", default=[], metavar="NAME=avg",
                        help="reduce over the data axes: --reduce loss=avg")  # fmt: skip
    parser.add_argument("--size", action="append", default=[], metavar="DIM=SIZE",
                        help="the size of a dim in brackets: --size qkv=3")  # fmt: skip
    parser.add_argument("--timeout", type=float, default=60, help="seconds of a step on a mesh")
    options = parser.parse_args(argv)
    file, _, name = options.step.rpartition(":")
    if not Path(file).is_file():
        parser.error(f"{options.step!r} is not a file and a function, such as train.py:step")
    sys.path.insert(0, str(Path(file).resolve().parent))  # as Python does for a script
    step = runpy.run_path(file, run_name=Path(file).stem).get(name)
    if not callable(step):
        parser.error(f"{file} has no function {name}")
    layout, reduce, sizes = (
        dict(word.partition("=")[::2] for word in words)
        for words in (options.layout, options.reduce, options.size)
    )
    sizes = {name: int(size) if size.isdecimal() else size for name, size in sizes.items()}
    try:
        report = compare_meshes(
            step,
            *options.meshes,
            layout=layout,
            reduce=reduce,
            timeout=options.timeout,
            sizes=sizes,
        )
    except MeshkitError as error:
        parser.exit(2, f"{error}\n")
    print(report)
    return 1 if report.differences else 0


if __name__ == "__main__":
    sys.exit(main())
