"""``meshkit search``: the layouts that fit a model and a world, ranked by predicted step time."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ...core.cost.machines import MACHINES
from ...core.cost.search import search
from ...core.cost.search_report import DISCLAIMER, format_search
from ...core.cost.step_time import TrainingJob, check_job
from ...core.cost.transformer import ModelShape
from ...launch.output.progress import Progress, show_progress
from ..command import Command, Result
from ..options.grid import add_world_size
from ..options.machine import DEFAULT_MACHINE, read_machine, read_option_file
from ..options.numbers import read_count, read_gigabytes

TOP = 10  # layouts that are shown by default


def run(args: Namespace) -> Result:
    """Rank the layouts that fit. Local, without torch; at most a second for 16,384 ranks."""
    model = ModelShape.of(read_option_file("model", args.model, "the config.json of a model."))
    machine, assumed = read_machine(args)
    numbers = args.world_size, args.nodes, args.global_batch, args.seq
    check_job(*numbers)
    job = TrainingJob(*numbers, machine)
    with show_progress(Progress("meshkit search", sys.stderr)) as progress:
        progress.state = f"the layouts of {job.world_size} ranks are ranked"
        result = search(model, job, args.top or TOP)
    ok = bool(result.best)
    title = f"{Path(args.model).name}: {model.parameters / 1e9:.2f} billion weights"
    request = {"model": asdict(model), "parameters": model.parameters, "job": asdict(job)}
    return Result(
        lambda: {"ok": ok, **request, **asdict(result), "note": DISCLAIMER},
        partial(format_search, result, job, title, unmeasured=assumed),
        ok,
    )


def _add_options(parser: ArgumentParser) -> None:
    required = {
        "nodes": "the number of equal nodes, with consecutive ranks on each",
        "global-batch": "samples of one optimizer step",
        "seq": "tokens of one sample",
    }
    add_world_size(parser, "the number of ranks", required=True)
    for name, help in required.items():
        parser.add_argument(f"--{name}", type=read_count, required=True, metavar="N", help=help)
    help = "the config.json of the model, in the format of the Hugging Face Hub"
    parser.add_argument("--model", required=True, metavar="FILE", help=help)
    help = (
        f"{', '.join(MACHINES)}, or a JSON file of measured figures, for example the output of "
        f"meshkit bench --json (default {DEFAULT_MACHINE})"
    )
    parser.add_argument("--links", metavar="NAME", help=help)
    help = "GB (1e9 bytes) of one device that a job may fill (default: all of the device)"
    parser.add_argument("--memory", type=read_gigabytes, metavar="GB", help=help)
    help = f"the number of layouts to show (default {TOP})"
    parser.add_argument("--top", type=read_count, metavar="N", help=help)


MODEL = "--model examples/llama-3-8b.json"
SEARCH = Command(
    "search",
    "rank the layouts that fit a model",
    _add_options,
    run,
    (
        f"{MODEL} \\\n    --world-size 64 --nodes 8 --global-batch 512 --seq 8192",
        f"{MODEL} --top 3 \\\n    --world-size 8 --nodes 1 --global-batch 64 --seq 4096",
    ),
)
