"""The result of a search as text, character by character."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meshkit
from meshkit.core.cost.memory import ModelShape
from meshkit.core.cost.search import RankedLayout, format_search, format_snippet, search
from meshkit.core.cost.step_time import MACHINES, TrainingJob

LLAMA_8B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
LLAMA_405B = {
    **LLAMA_8B,
    "hidden_size": 16384,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "intermediate_size": 53248,
}

TABLE = """\
llama-405b.json: 405.85 billion weights; 16384 ranks on 2048 nodes.
A step: 2048 samples of 8192 tokens.
A rank: 80 GB, 544 TFLOP/s attained, 450 GB/s in a node, 50 GB/s out of it.

   step s    GB  layout             sharding         micro batches  across nodes
─  ──────  ────  ─────────────────  ───────────────  ─────────────  ────────────
1   6.488  66.7  pp=16 dp=128 tp=8  zero1 virtual=8  16 x 1         pp dp
2   6.527  66.7  pp=16 dp=64 cp=2   zero1 virtual=8  16 x 2         pp dp cp
                   tp=8

percent of the step
   compute  bubble  tp  weights  pp  dp
─  ───────  ──────  ──  ───────  ──  ──
1       74      10   9        3   3   1
2       74      10   9        3   3   1

715 of 3060 layouts fit.
    210 out: pp divides neither 126 layers nor 128: pp=256 dp=1 tp=64
    986 out: tp does not divide 8 kv heads: dp=1 tp=16384
   1104 out: tp x sp does not divide 8 kv heads: dp=1 sp=2048 tp=8
     30 out: tp x sp x 2 cp does not divide 8192 tokens: dp=1 cp=2048 tp=8
     15 out: dp x ep does not divide 2048 samples: dp=4096 tp=4

# meshkit plan pp=16 dp=128 tp=8 --nodes 2048
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
import meshkit

mesh = meshkit.build_mesh(pp=16, dp=128, tp=8)
plan = mesh.batch(global_batch=2048, micro_batch=1)
model = DistributedDataParallel(
    model, process_group=mesh.gradient_group()
)
optimizer = ZeroRedundancyOptimizer(
    model.parameters(),
    torch.optim.AdamW,
    process_group=mesh.gradient_group(),
)

This ranks layouts by a model of compute and links; it promises no seconds."""

NONE = """\
llama-405b.json: 405.85 billion weights; 8 ranks on 1 node.
A step: 2048 samples of 8192 tokens.
A rank: 80 GB, 544 TFLOP/s attained, 450 GB/s in a node, 50 GB/s out of it.

0 of 35 layouts fit.
     35 out: no configuration fits into 80 GB; the smallest needs 918.5 GB: dp=1
             tp=8"""


def text(ranks: int, nodes: int, **more: Any) -> str:
    job = TrainingJob(ranks, nodes, 2048, 8192, MACHINES["h100"])
    model = ModelShape.of(LLAMA_405B)
    title = f"llama-405b.json: {model.parameters / 1e9:.2f} billion weights"
    return format_search(search(model, job, top=2), job, title, **more)


def test_the_table_of_the_largest_job() -> None:
    assert text(16384, 2048) == TABLE
    assert max(map(len, TABLE.splitlines())) <= 80


@pytest.mark.parametrize("width", [60, 72, 160])
def test_the_columns_fit_into_any_width(width: int) -> None:
    lines = text(16384, 2048, width=width).splitlines()
    code = lines.index("import meshkit")
    assert all(len(line) <= width for line in lines[:code] + lines[-2:])
    narrow, wide = (" ".join(" ".join(x).split()) for x in (lines, TABLE.splitlines()))
    assert sorted(narrow.replace("─", "").split()) == sorted(wide.replace("─", "").split())


def layout(shard: str, **sizes: int) -> RankedLayout:
    return RankedLayout(sizes, (), 2, 4, 1, shard, False, 1.0, {"compute": 1.0}, 1.0)


def run_snippet(text: str) -> str:
    """Run a snippet on a rank whose model is one layer; return the class of the model."""
    names = {"model": torch.nn.Linear(4, 4)}
    exec(text, names)
    return type(names["model"]).__name__


@pytest.mark.parametrize(
    ("shard", "sizes", "kind"),
    [
        ("ddp", {"dp": 2}, "DistributedDataParallel"),
        ("zero1", {"dp": 2}, "DistributedDataParallel"),
        ("fsdp", {"dp": 2}, "FSDPLinear"),
        ("fsdp", {"dp": 1, "cp": 2}, "FSDPLinear"),
    ],
)
def test_the_snippet_can_be_pasted_whole(shard: str, sizes: dict[str, int], kind: str) -> None:
    job = TrainingJob(2, 1, 16, 8, MACHINES["h100"])
    snippet = "\n".join(format_snippet(layout(shard, **sizes), job))
    assert meshkit.spawn(run_snippet, 2, (snippet,), timeout=120) == [kind] * 2


def test_nothing_fits() -> None:
    assert text(8, 1) == NONE
