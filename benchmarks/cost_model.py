"""The cost model beside published runs: seconds of a step and MFU, predicted and measured.

``published_runs.json`` has the figures of each run, its source, and what had to be assumed. A
throughput gives the seconds of a step, and the seconds give an MFU, with the same operations on
both sides: 6 for each weight and token that passes it, and those of causal attention.
``python -m benchmarks cost_model`` writes the table into ``results/cost_model.md``, and its errors
into docs/evidence/cost-model.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from meshkit.plan.memory import RECOMPUTE, SHARDS, ModelShape, ParallelConfig
from meshkit.plan.step_time import AXES, MACHINES, TrainingJob, model_flops, step_terms
from meshkit.text import format_sizes

from .report import markdown_table, put_section

RUNS = Path(__file__).parent / "published_runs.json"
TABLE = Path(__file__).parent / "results" / "cost_model.md"
PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "cost-model.md"
BEGIN, END = "<!-- published runs -->", "<!-- /published runs -->"
GPUS_PER_NODE = 8
HEAD = (
    *("run", "machine", "layout", "batch x tokens", "published"),
    *("measured s", "predicted s", "error", "measured MFU", "predicted MFU"),
    *("share of the peak", "figure", "source"),
)


@dataclass(frozen=True)
class PublishedRun:
    """A run, with its measured and its predicted step."""

    model: str
    machine: str
    sharding: str  # the layout and how the states are sharded
    batch: str  # samples and tokens of a sample
    figure: str  # as published
    source: int  # the number of its source, from 1
    is_fitted: bool  # whether the share of the peak was chosen on this row
    is_checked: bool  # whether the figure was compared with a stored text
    measured: float  # seconds
    predicted: float  # seconds
    mfu_seconds: float  # seconds of a step at an MFU of 1

    @property
    def error(self) -> float:
        """The predicted step over the measured one, less 1."""
        return self.predicted / self.measured - 1


def published_runs() -> list[PublishedRun]:
    """Return the runs of the file, in its order."""
    data = json.loads(RUNS.read_text())
    models = {name: ModelShape(**sizes) for name, sizes in data["models"].items()}
    numbers = {name: number for number, name in enumerate(data["sources"], 1)}
    return [
        read_run(run, models[run["model"]], data["sources"][run["source"]], numbers[run["source"]])
        for run in data["runs"]
    ]


def read_run(
    run: Mapping[str, Any], model: ModelShape, source: Mapping[str, Any], number: int
) -> PublishedRun:
    """Return a run with the step that the model predicts, and the step that was measured."""
    axes, batch, seq = run["axes"], run["global_batch"], run["seq"]
    gpus, sizes = math.prod(axes.values()), {axis: axes.get(axis, 1) for axis in AXES}
    machine = MACHINES[source["machine"]].with_measured(source["figures"])
    config = ParallelConfig(
        **sizes,
        virtual=run.get("virtual", 1),
        micro_batch=run["micro_batch"],
        shard=SHARDS.index(run["shard"]),
        recompute=RECOMPUTE.index("full" if run.get("recompute") else "cheap"),
    )
    job = TrainingJob(gpus, gpus // GPUS_PER_NODE, batch, seq, machine)
    operations = model_flops(model, job)
    rate, tokens = run["published"], batch * seq
    step = {
        "s": lambda: rate,
        "tokens/s": lambda: tokens / rate,
        "tokens/s/GPU": lambda: tokens / rate / gpus,
        "TFLOP/s": lambda: operations / gpus / rate / 1e12,
        "TFLOP/s twice forward": lambda: (
            megatron_operations(model, batch, seq) / gpus / rate / 1e12
        ),
    }[run["unit"]]()
    how = [run["shard"], *[f"virtual {config.virtual}"] * (config.virtual > 1)]
    how += ["recompute"] * run.get("recompute", 0)
    return PublishedRun(
        run["model"],
        f"{gpus} {source['machine']}",
        f"{format_sizes(axes)}, {' '.join(how)}",
        f"{batch} x {seq}",
        f"{rate:,} {run['unit'].removesuffix(' twice forward')}"
        + (f", {run['mfu']} %" if "mfu" in run else ""),
        number,
        bool(source.get("fitted")),
        not run.get("from_memory"),
        step,
        float(sum(step_terms(model, job, config).values())),
        operations / gpus / machine.peak,
    )


def megatron_operations(model: ModelShape, batch: int, seq: int) -> float:
    """Return the operations of a step by the formula of arXiv 2104.04473, section 5.1."""
    h, layers = model.hidden, model.layers
    inside = 1 + seq / (6 * h) + model.vocab / (16 * layers * h)
    return 96 * batch * seq * layers * h**2 * inside


def table(runs: list[PublishedRun]) -> str:
    """Return the table of the runs and their sources, in Markdown."""
    sources = [
        f"{number}. {source['title']}. {source['notes']}"
        for number, source in enumerate(json.loads(RUNS.read_text())["sources"].values(), 1)
    ]
    lines = [HEAD, *map(_cells, runs)]
    return f"{markdown_table(lines)}\n\n" + "\n".join(sources) + "\n"


def section(runs: list[PublishedRun]) -> str:
    """Return the errors of the runs in Markdown, between the markers of the page."""
    sets = {
        "all": runs,
        "share of the peak chosen on them": [run for run in runs if run.is_fitted],
        "predicted": [run for run in runs if not run.is_fitted],
        "predicted, figure checked": [run for run in runs if run.is_checked and not run.is_fitted],
        **{name: [run for run in runs if name in run.machine] for name in MACHINES},
    }
    errors = {name: [run.error for run in some] for name, some in sets.items() if some}
    lines = [
        [name, str(len(some)), f"{median(map(abs, some)):.0%}", f"{min(some):+.0%}",
         f"{max(some):+.0%}"]
        for name, some in errors.items()
    ]  # fmt: skip
    head = ["published runs", "number", "median error", "least", "most"]
    return f"\n\n{markdown_table([head, *lines])}\n\n"


def _cells(run: PublishedRun) -> list[str]:
    steps = run.measured, run.predicted
    return [
        *(run.model, run.machine, run.sharding, run.batch, run.figure),
        *(f"{step:.3g}" for step in steps),
        f"{run.error:+.0%}",
        *(f"{run.mfu_seconds / step:.0%}" for step in steps),
        "fitted" if run.is_fitted else "given",
        "checked" if run.is_checked else "from memory",
        str(run.source),
    ]


def update_page() -> str:
    """Write the table, put its errors into the page, and return both."""
    runs = published_runs()
    TABLE.write_text(table(runs))
    put_section(PAGE, BEGIN, END, section(runs))
    return table(runs) + section(runs)
