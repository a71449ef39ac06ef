"""The result of a search as text: the best layouts, their largest terms, and the excluded ones."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..call import Call
from ..draw.table import format_table, wrap_lines
from ..text import count_noun, format_sizes
from .search import RankedLayout, SearchResult
from .step_time import TrainingJob

HEADER = ("", "step s", "GB", "layout", "sharding", "micro batches", "across nodes")
DDP = [
    "model = DistributedDataParallel(",
    "    model, process_group=mesh.gradient_group()",
    ")",
]
IMPORTS = {  # sharding to the imports that its lines need
    "ddp": ["from torch.nn.parallel import DistributedDataParallel"],
    "zero1": [
        "import torch",
        "from torch.distributed.optim import ZeroRedundancyOptimizer",
        "from torch.nn.parallel import DistributedDataParallel",
    ],
    "fsdp": ["from torch.distributed.fsdp import fully_shard"],
}
SPLIT_TOKENS = ("dp", "ep", "cp", "sp")  # axes along which gradients are averaged
DISCLAIMER = "This ranks layouts by a model of compute and links; it promises no seconds."
MAX_TERMS, MIN_SHARE = 6, 0.005  # terms of a layout that are shown


def format_search(
    result: SearchResult,
    job: TrainingJob,
    title: str,
    width: int = 80,
    unmeasured: Sequence[str] = (),
    *,
    ascii: bool = False,
) -> str:
    """Return the result of a search as text."""
    wrapped = [*_job_lines(job, title), *(f"  {line}" for line in unmeasured)]
    lines = [line for text in wrapped for line in wrap_lines(text, width)]
    if result.best:
        lines += ["", *_tables(result.best, width, ascii=ascii)]
    total = result.fits + sum(reason.count for reason in result.excluded)
    lines += ["", f"{result.fits} of {count_noun(total, 'layout')} fit."]
    excluded = (f"{e.count:7} out: {e.reason}: {format_sizes(e.example)}" for e in result.excluded)
    lines += [line for text in excluded for line in _wrap_excluded(text, width)]
    if result.best:
        lines += ["", *format_snippet(result.best[0], job), "", *wrap_lines(DISCLAIMER, width)]
    return "\n".join(lines)


def _wrap_excluded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * 13, break_on_hyphens=False)


def _tables(best: Sequence[RankedLayout], width: int, *, ascii: bool) -> list[str]:
    """Return the layouts, and then the shares of their step time, as the lines of two tables."""
    rows = [_cells(number, layout) for number, layout in enumerate(best, 1)]
    lines = format_table(HEADER, rows, width=width, ascii=ascii).split("\n")
    shares = [{n: v / layout.step for n, v in layout.terms.items()} for layout in best]
    largest = {name: max(share[name] for share in shares) for name in shares[0]}
    names = sorted((n for n in largest if largest[n] >= MIN_SHARE), key=largest.__getitem__)
    names = names[::-1][:MAX_TERMS]
    cells = [
        [str(i), *(f"{100 * share[n]:.0f}" for n in names)] for i, share in enumerate(shares, 1)
    ]
    terms = format_table(["", *names], cells, width=width, ascii=ascii).split("\n")
    return [*lines, "", "percent of the step", *terms]


def _job_lines(job: TrainingJob, title: str) -> list[str]:
    machine = job.machine
    intra_node, inter_node = machine.bandwidth_intra_node, machine.bandwidth_inter_node
    return [
        f"{title}; {count_noun(job.world_size, 'rank')} on {count_noun(job.nodes, 'node')}.",
        f"A step: {job.global_batch} samples of {job.seq} tokens.",
        f"A rank: {machine.memory:g} GB, {machine.flops / 1e12:.0f} TFLOP/s attained, "
        f"{intra_node:g} GB/s in a node, {inter_node:g} GB/s out of it.",
    ]


def _cells(number: int, layout: RankedLayout) -> list[str]:
    """Return the cells of a layout in the order of ``HEADER``."""
    virtual = f" virtual={layout.virtual}" if layout.virtual > 1 else ""
    recompute = " recompute" if layout.recompute else ""
    return [
        str(number),
        f"{layout.step:.4g}",
        f"{layout.memory_gb:.1f}",
        format_sizes(layout.sizes),
        f"{layout.shard}{virtual}{recompute}",
        f"{layout.accumulation_steps} x {layout.micro_batch}",
        " ".join(layout.crossing) or "none",
    ]


def format_snippet(layout: RankedLayout, job: TrainingJob) -> list[str]:
    """Return a layout as Python that can be pasted whole: the mesh, the batch and the sharding.

    The first line is a comment with the command that shows the layout.
    """
    batch = {"global_batch": job.global_batch, "micro_batch": layout.micro_batch}
    return [
        f"# meshkit plan {format_sizes(layout.sizes)} --nodes {job.nodes}",
        *IMPORTS[layout.shard],
        "import meshkit",
        "",
        f"mesh = {Call('meshkit.build_mesh', kwargs=layout.sizes)}",
        f"plan = {Call('mesh.batch', kwargs=batch)}",
        *_sharding_lines(layout),
    ]


def _sharding_lines(layout: RankedLayout) -> list[str]:
    """Return the lines that shard ``model``, the module of this rank."""
    axes = [axis for axis in SPLIT_TOKENS if layout.sizes.get(axis, 1) > 1] or ["dp"]
    pattern = axes[0] if len(axes) == 1 else f"({' '.join(axes)})"
    if layout.shard == "fsdp":
        return [f'fully_shard(model, mesh=mesh.device_mesh("{pattern}"))']
    if layout.shard == "ddp":
        return DDP
    return [
        *DDP,
        "optimizer = ZeroRedundancyOptimizer(",
        "    model.parameters(),",
        "    torch.optim.AdamW,",
        "    process_group=mesh.gradient_group(),",
        ")",
    ]
