"""The command that plays ranks of a job of any size, and compares what they do."""

from __future__ import annotations

import shlex
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from itertools import dropwhile
from pathlib import Path

from ..errors import SpecError
from ..plan.memory import SHARDS
from ..plan.search import fastest_cost
from ..plan.step_time import MACHINES, TrainingJob
from ..rehearse.report import RehearsalReport
from .main import Command, Result
from .options import (
    DEFAULT_MACHINE,
    add_world_size,
    read_count,
    read_integer,
    read_model,
    read_seconds,
)


def run_rehearse(args: Namespace) -> Result:
    """Rehearse a script, and report what was found."""
    from ..rehearse.rehearsal import rehearse, run_script  # they import torch

    path, *words = read_script(args)
    job = _read_job(args)
    name, model = (None, None) if args.model is None else read_model(args)
    report = rehearse(
        run_script,
        args.world_size,
        (path, words),
        nodes=args.nodes,
        ranks=args.ranks,
        device=args.device,
        timeout=args.timeout,
        links=args.links,
        progress=True,
    )
    if model is None or job is None:
        return Result(report.as_dict, report.draw, ok=report.ok)
    options = {"micro_batch": args.micro_batch, "shard": args.shard, "recompute": "none"}
    try:
        cost = fastest_cost(model, job, report.names.layouts[0], report.topology, **options)
    except SpecError as error:  # the layout is known after the rehearsal only
        reason = f"The cost model has no seconds for this job: {error.summary}"
        return Result(report.as_dict, partial(_draw_with, report, reason), ok=report.ok)

    parts = [f"{seconds:.3g} s over {axis}" for axis, seconds in cost.idle.items() if seconds]
    text = f"The cost model of {name} has {', '.join(parts) or '0 s'} in a step"
    text += f" ({cost.shard}, micro batches of {cost.micro_batch})."
    return Result(
        lambda: {**report.as_dict(), "model_seconds": cost.idle},
        partial(_draw_with, report, text),
        ok=report.ok,
    )


def read_script(args: Namespace) -> list[str]:
    """Return the path of the script and its arguments; the file must exist."""
    path, *words = args.script or [""]
    if not Path(path).is_file():
        line = f"there is no script {path!r}." if path else "no script is given."
        fix = "the path of a Python script, and its arguments, last."
        if script := [*dropwhile(lambda word: not word.endswith(".py"), words)]:
            fix = f"{shlex.join(script)} in place of {shlex.join(args.script)}."
        raise SpecError(line, fix=fix)
    return [path, *words]


def _draw_with(report: RehearsalReport, line: str, *, width: int = 80, ascii: bool = False) -> str:
    return f"{report.draw(width=width, ascii=ascii)}\n{line}"


def _read_job(args: Namespace) -> TrainingJob | None:
    """Return the steps of the script for the cost model, or None without a model."""
    of_model = ("seq", "global_batch", "micro_batch", "shard")
    given = [name for name in of_model if getattr(args, name) is not None]
    if args.model is None:
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise SpecError(f"{option} is for --model.", fix=f"leave out {option}.")
        return None
    if not (args.seq and args.global_batch):
        line = "--model needs --seq and --global-batch: the batch of the steps of the script."
        raise SpecError(line, fix="add --seq N --global-batch N.")
    numbers = args.world_size, args.nodes or 1, args.global_batch, args.seq
    return TrainingJob(*numbers, MACHINES[args.links])


def read_ranks(text: str) -> str | list[int]:
    """Read the ranks to play: ``corners``, ``all`` or numbers separated by commas."""
    if text in ("corners", "all"):
        return text
    try:
        return [read_integer(part, least=0) for part in text.split(",")]
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r} is neither corners, all nor ranks such as 0,7") from None


def _add_options(parser: ArgumentParser) -> None:
    add_world_size(parser, "the number of ranks of the job", required=True)
    help = "the number of nodes that the ranks divide over; 1 by default"
    parser.add_argument("--nodes", type=read_count, metavar="N", help=help)
    help = "the ranks to play: corners (default), all, or numbers separated by commas"
    parser.add_argument("--ranks", type=read_ranks, default="corners", metavar="RANKS", help=help)
    help = "meta plays models of any size, without values"
    parser.add_argument("--device", choices=("cpu", "meta"), default="cpu", help=help)
    help = "the machine whose links give seconds"
    parser.add_argument("--links", choices=[*MACHINES], default=DEFAULT_MACHINE, help=help)
    help = "a model whose seconds by the cost model are shown, as in meshkit plan"
    parser.add_argument("--model", metavar="NAME", help=help)
    for flag, help in (
        ("--seq", "tokens of a sample, for --model"),
        ("--global-batch", "samples of one step, for --model"),
        ("--micro-batch", "samples of one forward and backward, for --model"),
    ):
        parser.add_argument(flag, type=read_count, metavar="N", help=help)
    help = "how copies share weights, for --model"
    parser.add_argument("--shard", choices=SHARDS, help=help)
    help = "how long the rehearsal may take, 300 by default"
    parser.add_argument("--timeout", type=read_seconds, default=300.0, metavar="SECONDS", help=help)
    help = "the script and its arguments, last on the line"
    parser.add_argument("script", nargs=REMAINDER, metavar="SCRIPT", help=help)


REHEARSE = Command(
    "rehearse",
    "play ranks of a job of any size here, and compare their collectives",
    _add_options,
    run_rehearse,
    (
        "--world-size 64 --nodes 8 \\\n    --ranks 0,63 examples/train.py --tp 8 --steps 1",
        "--world-size 8 --json \\\n    --ranks 0,7 examples/train.py --steps 1",
    ),
)
