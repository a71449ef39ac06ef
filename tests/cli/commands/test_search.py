"""``meshkit search``: its table to the letter, its JSON, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshkit import factor_world
from meshkit.bench.results import run_to_json
from meshkit.cli import main
from meshkit.core.cost.step_time import MACHINES
from tests.bench.results.example_runs import CLEAN, EMPTY, REPORT
from tests.core.cost.test_search import CONFIG_8B as LLAMA_8B
from tests.core.cost.test_search import CONFIG_405B as LLAMA_405B

MIXTRAL = {**LLAMA_8B, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}

ASKED = ["--world-size", "64", "--nodes", "8", "--global-batch", "1024", "--seq", "8192"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"llama-8b": LLAMA_8B, "llama-405b": LLAMA_405B, "mixtral": MIXTRAL}
    for name, config in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, in this process."""
    code = main.main(["search", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


# ---------------------------------------------------------------- the table


def test_the_printed_call_builds_a_mesh_of_that_world(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, *ASKED, "--model", str(folder / "mixtral.json"))
    snippet = out[out.index("# meshkit plan") :].splitlines()
    plan = snippet[0].removeprefix("# ")
    mesh, batch = (next(line for line in snippet if line.startswith(n)) for n in ("mesh", "plan"))
    build = {"build_mesh": lambda **sizes: factor_world(64, **sizes)}
    layout = eval(mesh.removeprefix("mesh = meshkit."), build)
    assert layout.num_ranks == 64
    assert layout.sizes["ep"] > 1
    assert batch.startswith("plan = mesh.batch(global_batch=1024, micro_batch=")
    assert "data=" not in batch  # dp and ep divide the samples
    sizes = " ".join(f"{axis}={size}" for axis, size in layout.sizes.items())
    assert plan == f"meshkit plan {sizes} --nodes 8"
    assert main.main(plan.split()[1:]) == 0
    assert f"ep       {layout.sizes['ep']}" in capsys.readouterr().out


# ---------------------------------------------------------------- JSON and options


def test_json_holds_the_whole_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "llama-8b.json")
    code, out, _ = run(capsys, *ASKED, "--model", model, "--json", "--top", "3")
    printed = json.loads(out)
    assert code == 0
    assert printed["ok"] is True
    assert printed["parameters"] == 8_030_261_248
    assert printed["model"]["kv_heads"] == 8
    assert printed["job"]["machine"]["bandwidth_intra_node"] == 450
    assert len(printed["best"]) == 3
    assert printed["best"][0]["sizes"] == {"dp": 64}
    assert printed["best"][0]["step"] == pytest.approx(sum(printed["best"][0]["terms"].values()))
    assert printed["fits"] + sum(row["count"] for row in printed["excluded"]) == 210
    assert "promises no seconds" in printed["note"]


def test_memory_and_links_are_those_that_were_given(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(folder / "llama-8b.json")]
    measured = folder / "measured.json"
    measured.write_text(
        json.dumps({"bandwidth_intra_node": 370, "bandwidth_inter_node": 42.5, "source": "a run"})
    )
    lines = [
        run(capsys, *ASKED, *model, *more)[1].splitlines()[2]
        for more in (["--links", "a100"], ["--links", str(measured)], ["--memory", "40"])
    ]
    assert lines == [
        "A rank: 80 GB, 172 TFLOP/s attained, 300 GB/s in a node, 25 GB/s out of it.",
        "A rank: 80 GB, 544 TFLOP/s attained, 370 GB/s in a node, 42.5 GB/s out of it.",
        "A rank: 40 GB, 544 TFLOP/s attained, 450 GB/s in a node, 50 GB/s out of it.",
    ]
    tight = json.loads(run(capsys, *ASKED, *model, "--memory", "40", "--json")[1])
    assert all(row["memory_gb"] <= 40 for row in tight["best"])


# ---------------------------------------------------------------- links out of meshkit bench


def benched(folder: Path, **changes: object) -> str:
    path = folder / "bench.json"
    path.write_text(json.dumps({**run_to_json(CLEAN), **changes}))
    return str(path)


def test_links_are_read_from_what_bench_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(folder / "llama-8b.json")]
    code, out, _ = run(capsys, *ASKED, *model, "--links", benched(folder), "--json")
    links, measured = json.loads(out)["job"]["machine"], run_to_json(CLEAN)["links"]
    assert code == 0
    assert links["bandwidth_inter_node"] == measured["bandwidth_inter_node"]
    assert links["latency_inter_node"] == measured["latency_inter_node"]
    assert (links["bandwidth_intra_node"], links["flops"]) == (
        MACHINES["h100"].bandwidth_intra_node,
        MACHINES["h100"].flops,
    )
    assert links["source"] == f"{measured['source']}; the others: {MACHINES['h100'].source}"


def test_the_table_lists_the_figures_that_were_not_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "links.json"
    path.write_text(
        '{"bandwidth_intra_node": 370, "flops": 4e14, "memory_bandwidth": 3e3, '
        '"latency_inter_node": 2e-5}'
    )
    asked = [*ASKED, "--model", str(folder / "llama-8b.json")]
    out = run(capsys, *asked, "--links", str(path), "--memory", "60")[1]
    assert out.splitlines()[3:6] == [
        "  across nodes: h100's 50 GB/s, not measured",
        "  a step in a node: h100's 3.4 us, not measured",
        "",
    ]
    assert "not measured" not in run(capsys, *asked)[1]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model", None),
        ("model", {"hidden_size": 768}),
        ("links", None),
        ("links", [1]),
        ("links", {"ok": True, "measurements": []}),
        ("links", run_to_json(REPORT)),
        ("links", run_to_json(EMPTY)),
        ("links", {"unknown": 1}),
        ("links", {"bandwidth_intra_node": "370"}),
        ("links", {"bandwidth_intra_node": 0}),
    ],
)
def test_a_file_that_cannot_be_used_is_misuse(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, content: object
) -> None:
    path = folder / "given.json"
    if content is not None:
        path.write_text(json.dumps(content))
    files = {"--model": str(folder / "llama-8b.json"), f"--{file}": str(path)}
    code, out, err = run(capsys, *ASKED, *(word for pair in files.items() for word in pair))
    assert (code, out) == (2, "")
    assert err.startswith("meshkit search ")
    assert err.splitlines()[-1].startswith("  Fix: ")


@pytest.mark.parametrize(
    "option", ["--world-size=0", "--seq=8k", "--memory=-1", "--memory=nan", "--nodes=7"]
)
def test_an_invalid_option_is_misuse(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert run(capsys, *ASKED, "--model", str(folder / "llama-8b.json"), option)[0] == 2
