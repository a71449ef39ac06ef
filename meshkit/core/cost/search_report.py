"""The result of a search as text: the best layouts, their largest terms, and the excluded ones."""

from __future__ import annotations

from collections.abc import Sequence

from ..call import Call
from ..text import count_noun, format_sizes
from .search import RankedLayout, SearchResult
from .step_time import TrainingJob

HEADER = "     step s     GB  layout; sharding, micro batches x samples; axes across nodes"
DISCLAIMER = "This ranks layouts by a model of compute and links; it promises no seconds."
MAX_TERMS, MIN_SHARE = 6, 0.005  # terms of a layout that are shown


def format_search(
    result: SearchResult,
    job: TrainingJob,
    title: str,
    width: int = 80,
    unmeasured: Sequence[str] = (),
) -> str:
    """Return the result of a search as text."""
    lines = [*_job_lines(job, title), *(f"  {line}" for line in unmeasured)]
    if result.best:
        rows = [_row(number, layout, width) for number, layout in enumerate(result.best, 1)]
        lines += ["", HEADER, *rows]
    total = result.fits + sum(reason.count for reason in result.excluded)
    lines += ["", f"{result.fits} of {count_noun(total, 'layout')} fit."]
    lines += [f"{e.count:7} out: {e.reason}: {format_sizes(e.example)}" for e in result.excluded]
    if result.best:
        lines += ["", *format_commands(result.best[0], job), DISCLAIMER]
    return "\n".join(lines)


def _job_lines(job: TrainingJob, title: str) -> list[str]:
    machine = job.machine
    intra_node, inter_node = machine.bandwidth_intra_node, machine.bandwidth_inter_node
    return [
        f"{title}; {count_noun(job.world, 'rank')} on {count_noun(job.nodes, 'node')}.",
        f"A step: {job.global_batch} samples of {job.seq} tokens.",
        f"A rank: {machine.memory:g} GB, {machine.flops / 1e12:.0f} TFLOP/s attained, "
        f"{intra_node:g} GB/s in a node, {inter_node:g} GB/s out of it.",
    ]


def _row(number: int, layout: RankedLayout, width: int) -> str:
    """Return a layout with its step time, memory, configuration and largest terms."""
    virtual = f" virtual={layout.virtual}" if layout.virtual > 1 else ""
    recompute = " recompute" if layout.recompute else ""
    micros = f"{layout.accumulation_steps} x {layout.micro_batch}"
    crossing = " ".join(layout.crossing) or "none"
    head = f"{number:3} {layout.step:7.4g} {layout.memory_gb:6.1f}  {format_sizes(layout.sizes)}; "
    head += f"{layout.shard}{virtual}{recompute}, {micros}; {crossing}"
    shares = sorted(((value / layout.step, name) for name, value in layout.terms.items()))[::-1]
    terms = ", ".join(f"{n} {share:.0%}" for share, n in shares[:MAX_TERMS] if share >= MIN_SHARE)
    fits = len(head) + 2 + len(terms) <= width
    return f"{head}; {terms}" if fits else f"{head}\n{'':20}{terms}"


def format_commands(layout: RankedLayout, job: TrainingJob) -> list[str]:
    """Return the calls that build a layout in a trainer, and the command that shows it."""
    data = {"data": ("dp", "ep")} if "ep" in layout.sizes else {}
    batch = {"global_batch": job.global_batch, "micro_batch": layout.micro_batch, **data}
    return [
        f"mesh = {Call('meshkit.build_mesh', kwargs=layout.sizes)}",
        f"plan = {Call('mesh.batch', kwargs=batch)}",
        f"meshkit plan {format_sizes(layout.sizes)} --nodes {job.nodes}",
    ]
