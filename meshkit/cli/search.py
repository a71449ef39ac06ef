"""``meshkit search``: the layouts that fit a model and a world, ranked by predicted step time."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ..core.call import Call
from ..core.cost import Job, check_job
from ..core.errors import SpecError, told
from ..core.links import LINKS, Links
from ..core.model import ModelShape
from ..core.search import Found, Ranked, search
from ..core.words import count, pairs
from . import Answer, Command, terminal
from .file import text_of
from .grid import number
from .typed import typed

HEADER = "     step s     GB  layout; sharding, micro batches x samples; axes across nodes"
USUAL, TOP = "h100", 10  # links and how many layouts, where nothing is said of them
PROMISE = "This ranks layouts by a model of compute and links; it promises no seconds."


def run(asked: Namespace) -> Answer:
    """Rank the layouts that fit. Local, without torch; a second at most for 16,384 ranks.

    Args:
        asked: ``world``, ``nodes``, ``model``, ``global_batch``, ``seq``, ``links``, ``memory`` (or
            None), ``top`` and ``json``.

    Returns:
        The best, the terms that decide and what was excluded; not ok where none fits.

    Raises:
        SpecError: where a file cannot be read, or what was asked for cannot be.
    """
    model = ModelShape.of(_read("model", asked.model))
    links = LINKS.get(asked.links or USUAL) or LINKS[USUAL].but(_read("links", asked.links))
    links = links.but({"memory": asked.memory}) if asked.memory else links
    job = _job(asked, links)
    found = search(model, job, asked.top or TOP)
    if asked.json:
        said = {"model": asdict(model), "parameters": model.parameters, "job": asdict(job)}
        text = json.dumps({"ok": bool(found.best), **said, **asdict(found), "note": PROMISE})
        return Answer(text, bool(found.best))
    title = f"{Path(asked.model).name}: {model.parameters / 1e9:.2f} billion weights"
    text = as_text(found, job, title, terminal.width())
    return Answer(text, bool(found.best))


def as_text(found: Found, job: Job, title: str, width: int = 80) -> str:
    """The ranking as a person reads it.

    Args:
        found: what was found.
        job: for what.
        title: the model, in words.
        width: columns; what is wider than it goes on in the next line.
    """
    links, total = job.links, found.fits + sum(one.count for one in found.excluded)
    ranks, nodes = count(job.world, "rank"), count(job.nodes, "node")
    rows = [_row(place, one, width) for place, one in enumerate(found.best, 1)]
    lines = [
        f"{title}; {ranks} on {nodes}.",
        f"A step: {job.global_batch} samples of {job.seq} tokens.",
        f"A rank: {links.memory:g} GB, {links.flops / 1e12:.0f} TFLOP/s attained, "
        f"{links.inside:g} GB/s in a node, {links.across:g} GB/s out of it.",
        *(["", HEADER, *rows] if rows else []),
        "",
        f"{found.fits} of {count(total, 'layout')} fit.",
        *(f"{one.count:7} out: {one.reason}: {pairs(one.example)}" for one in found.excluded),
    ]
    return "\n".join([*lines, "", *to_type(found.best[0], job), PROMISE] if rows else lines)


def _row(place: int, one: Ranked, width: int) -> str:
    """A layout: what it takes and holds, how it is run, and the terms that decide."""
    parts = f" virtual={one.virtual}" if one.virtual > 1 else ""
    again = " recompute" if one.recompute else ""
    run = f"{one.shard}{parts}{again}, {one.accumulation_steps} x {one.micro_batch}"
    crossing = " ".join(one.crossing) or "none"
    head = f"{place:3} {one.step:7.4g} {one.held:6.1f}  {pairs(one.sizes)}; {run}; {crossing}"
    shares = sorted(((value / one.step, name) for name, value in one.terms.items()), reverse=True)
    terms = ", ".join(f"{name} {share:.0%}" for share, name in shares[:6] if share >= 0.005)
    fits = len(head) + 2 + len(terms) <= width
    return f"{head}; {terms}" if fits else f"{head}\n{'':20}{terms}"


def to_type(one: Ranked, job: Job) -> list[str]:
    r"""What to type for a layout: in a trainer, and to see it first.

    Example:
        >>> one = Ranked({"dp": 8, "tp": 8}, ("dp",), 2, 64, 1, "fsdp", False, 1.0, {}, 9.0)
        >>> print(*to_type(one, Job(64, 8, 1024, 8192, LINKS["h100"])), sep="\n")
        mesh = meshkit.build_mesh(dp=8, tp=8)
        plan = mesh.batch(global_batch=1024, micro_batch=2)
        meshkit plan dp=8 tp=8 --nodes 8
    """
    data = {"data": ("dp", "ep")} if "ep" in one.sizes else {}
    batch = {"global_batch": job.global_batch, "micro_batch": one.micro_batch, **data}
    return [
        f"mesh = {Call('meshkit.build_mesh', kwargs=one.sizes)}",
        f"plan = {Call('mesh.batch', kwargs=batch)}",
        f"meshkit plan {pairs(one.sizes)} --nodes {job.nodes}",
    ]


def _job(asked: Namespace, links: Links) -> Job:
    """What was asked for. Raises as :class:`Job`, in the words of the command."""
    numbers = asked.world, asked.nodes, asked.global_batch, asked.seq
    check_job(typed(asked), *numbers)
    return Job(*numbers, links)


def _read(option: str, path: str) -> Mapping[str, object]:
    """A JSON object in a file.

    Raises:
        SpecError: where there is none.
    """
    why = "It holds no JSON object."
    try:
        if isinstance(found := json.loads(text_of(path)), dict):
            return found
    except ValueError as error:
        why = f"{error}."
    fix = {"model": "the config.json of a model.", "links": f"{', '.join(LINKS)}, or a JSON file."}
    raise SpecError(told(f"--{option} {path} cannot be read.", why, fix=fix[option]))


def _gigabytes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if 0 < found < 1e6:
        return found
    raise ArgumentTypeError(f"{text!r} is not a number of GB above zero")


def _add(parser: ArgumentParser) -> None:
    numbers = {
        "world": "ranks",
        "nodes": "equal nodes that they lie on, in blocks",
        "global-batch": "samples in one optimizer step",
        "seq": "tokens of a sample",
    }
    for name, text in numbers.items():
        parser.add_argument(f"--{name}", type=number, required=True, metavar="N", help=text)
    text = "the config.json of the model, as the Hugging Face Hub has it"
    parser.add_argument("--model", required=True, metavar="FILE", help=text)
    text = f"{', '.join(LINKS)}, or a JSON file of measured figures (default {USUAL})"
    parser.add_argument("--links", metavar="NAME", help=text)
    text = "1e9 bytes of one device that a job may fill (default: the device's)"
    parser.add_argument("--memory", type=_gigabytes, metavar="GB", help=text)
    parser.add_argument("--top", type=number, metavar="N", help=f"how many to show (default {TOP})")


SEARCH = Command("search", "rank the layouts that fit a model", _add, run)
