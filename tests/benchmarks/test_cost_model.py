"""The cost model beside published runs: figures agree with themselves, and the page with them."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks import cost_model
from benchmarks.cost_model import PAGE, RUNS, TABLE, megatron_operations, published_runs
from meshkit.plan.memory import ModelShape
from meshkit.plan.step_time import MACHINES, TrainingJob, model_flops

DATA = json.loads(RUNS.read_text())
WITH_MFU = [run for run in DATA["runs"] if "mfu" in run]


def test_the_page_has_the_errors_of_the_runs_and_a_file_the_table() -> None:
    assert cost_model.section(published_runs()) in PAGE.read_text()
    assert cost_model.table(published_runs()) == TABLE.read_text()


def test_ten_sources_and_more_are_all_used() -> None:
    assert {run["source"] for run in DATA["runs"]} == {*DATA["sources"]}
    assert {run["model"] for run in DATA["runs"]} == {*DATA["models"]}
    assert len(DATA["sources"]) >= 10


@pytest.mark.parametrize("run", WITH_MFU, ids=lambda run: f"{run['model']} {run['published']} s")
def test_a_published_step_gives_the_mfu_of_its_source(run: dict[str, object]) -> None:
    """The sources count the scores of attention in full."""
    model = ModelShape(**DATA["models"][run["model"]])
    batch, seq, axes = run["global_batch"], run["seq"], run["axes"]
    assert isinstance(batch, int) and isinstance(seq, int) and isinstance(axes, dict)  # noqa: PT018
    masked = 6 * batch * seq * seq * model.heads * model.head_dim * model.layers
    machine, gpus = MACHINES[DATA["sources"][run["source"]]["machine"]], math.prod(axes.values())
    flops = model_flops(model, TrainingJob(gpus, gpus // 8, batch, seq, machine)) + masked
    seconds = flops / gpus / machine.peak
    assert 100 * seconds / float(str(run["published"])) == pytest.approx(run["mfu"], abs=0.4)


def test_the_formula_of_megatron_counts_each_product_of_a_step() -> None:
    model, batch, seq = ModelShape(**DATA["models"]["GPT 175B"]), 6, 2048
    h = model.hidden
    shapes = [(h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)]  # qkv, projection, feed-forward
    products = sum(2 * batch * seq * rows * columns for rows, columns in shapes)
    scores = 2 * 2 * batch * seq * seq * h  # q with k, and their softmax with v
    passes = 4  # forward twice, and backward for inputs and for weights
    head = 3 * 2 * batch * seq * h * model.vocab
    expected = passes * model.layers * (products + scores) + head
    assert megatron_operations(model, batch, seq) == pytest.approx(expected)


def test_models_have_as_many_weights_as_their_names_say() -> None:
    for name, sizes in DATA["models"].items():
        said = name.split()[-1].partition("-")[0]
        number = float(said[:-1]) * {"B": 1e9, "T": 1e12}[said[-1]]
        assert ModelShape(**sizes).parameters == pytest.approx(number, rel=0.08)


def test_the_command_writes_the_page_anew(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("docs")
    page, table = folder / "page.md", folder / "table.md"
    page.write_text(f"before {cost_model.BEGIN} old {cost_model.END} after")
    monkeypatch.setattr(cost_model, "PAGE", page)
    monkeypatch.setattr(cost_model, "TABLE", table)
    errors = cost_model.update_page().removeprefix(table.read_text())
    assert page.read_text() == f"before {cost_model.BEGIN}{errors}{cost_model.END} after"
    assert len(table.read_text().splitlines()) > len(DATA["runs"])
