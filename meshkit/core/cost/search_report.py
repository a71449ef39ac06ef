"""The layouts that a search found, as text: the best, the terms that decide, what was excluded."""

from __future__ import annotations

from collections.abc import Sequence

from ..call import Call
from ..text import count_noun, format_sizes
from .search import RankedLayout, SearchResult
from .step_time import TrainingJob

HEADER = "     step s     GB  layout; sharding, micro batches x samples; axes across nodes"
PROMISE = "This ranks layouts by a model of compute and links; it promises no seconds."


def ranking(
    found: SearchResult, job: TrainingJob, title: str, width: int = 80, assumed: Sequence[str] = ()
) -> str:
    """The ranking as a person reads it.

    Args:
        found: what was found.
        job: for what.
        title: the model, in words.
        width: columns; what is wider than it goes on in the next line.
        assumed: figures of the links that were not measured, in words, where others were.
    """
    links, total = job.links, found.fits + sum(one.count for one in found.excluded)
    ranks, nodes = count_noun(job.world, "rank"), count_noun(job.nodes, "node")
    rows = [_row(place, one, width) for place, one in enumerate(found.best, 1)]
    lines = [
        f"{title}; {ranks} on {nodes}.",
        f"A step: {job.global_batch} samples of {job.seq} tokens.",
        f"A rank: {links.memory:g} GB, {links.flops / 1e12:.0f} TFLOP/s attained, "
        f"{links.inside:g} GB/s in a node, {links.across:g} GB/s out of it.",
        *(f"  {one}" for one in assumed),
        *(["", HEADER, *rows] if rows else []),
        "",
        f"{found.fits} of {count_noun(total, 'layout')} fit.",
        *(
            f"{one.count:7} out: {one.reason}: {format_sizes(one.example)}"
            for one in found.excluded
        ),
    ]
    return "\n".join([*lines, "", *typed(found.best[0], job), PROMISE] if rows else lines)


def _row(place: int, one: RankedLayout, width: int) -> str:
    """A layout: what it takes and holds, how it is run, and the terms that decide."""
    parts = f" virtual={one.virtual}" if one.virtual > 1 else ""
    again = " recompute" if one.recompute else ""
    run = f"{one.shard}{parts}{again}, {one.accumulation_steps} x {one.micro_batch}"
    crossing = " ".join(one.crossing) or "none"
    head = (
        f"{place:3} {one.step:7.4g} {one.held:6.1f}  {format_sizes(one.sizes)}; {run}; {crossing}"
    )
    shares = sorted(((value / one.step, name) for name, value in one.terms.items()), reverse=True)
    terms = ", ".join(f"{name} {share:.0%}" for share, name in shares[:6] if share >= 0.005)
    fits = len(head) + 2 + len(terms) <= width
    return f"{head}; {terms}" if fits else f"{head}\n{'':20}{terms}"


def typed(one: RankedLayout, job: TrainingJob) -> list[str]:
    r"""What to type for a layout: in a trainer, and to see it first.

    Example:
        >>> from meshkit.core.cost.machines import LINKS
        >>> one = RankedLayout({"dp": 8, "tp": 8}, ("dp",), 2, 64, 1, "fsdp", False, 1.0, {}, 9.0)
        >>> print(*typed(one, TrainingJob(64, 8, 1024, 8192, LINKS["h100"])), sep="\n")
        mesh = meshkit.build_mesh(dp=8, tp=8)
        plan = mesh.batch(global_batch=1024, micro_batch=2)
        meshkit plan dp=8 tp=8 --nodes 8
    """
    data = {"data": ("dp", "ep")} if "ep" in one.sizes else {}
    batch = {"global_batch": job.global_batch, "micro_batch": one.micro_batch, **data}
    return [
        f"mesh = {Call('meshkit.build_mesh', kwargs=one.sizes)}",
        f"plan = {Call('mesh.batch', kwargs=batch)}",
        f"meshkit plan {format_sizes(one.sizes)} --nodes {job.nodes}",
    ]
