"""``meshkit search``: its table to the letter, its JSON, its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshkit import factor_world
from meshkit.bench.results.json_format import run_to_json
from meshkit.cli import main
from meshkit.core.cost.machines import MACHINES
from tests.bench.results.example_runs import CLEAN, EMPTY, REPORT
from tests.core.cost.test_search_report import LLAMA_8B, LLAMA_405B, NONE, TABLE

ROOT = Path(__file__).parents[3]

MIXTRAL = {**LLAMA_8B, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}

ASKED = ["--world-size", "64", "--nodes", "8", "--global-batch", "1024", "--seq", "8192"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"llama-8b": LLAMA_8B, "llama-405b": LLAMA_405B, "mixtral": MIXTRAL}
    for name, config in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    return tmp_path


def line(folder: Path, links: str | Path) -> str:
    """The command of ``ASKED`` with links, as errors quote it."""
    words = [*ASKED, "--model", str(folder / "llama-8b.json"), "--links", str(links)]
    return " ".join(["meshkit search", *words])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr, in this process."""
    code = main.main(["search", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


# ---------------------------------------------------------------- the table


def test_the_command_prints_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    size = ["--world-size", "16384", "--nodes", "2048", "--global-batch", "2048", "--seq", "8192"]
    model = ["--model", str(folder / "llama-405b.json"), "--top", "2"]
    assert run(capsys, *size, *model) == (0, TABLE + "\n", "")
    size[1], size[3] = "8", "1"
    assert run(capsys, *size, *model) == (1, NONE + "\n", "")


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


@pytest.mark.parametrize("links", [{}, None, [1]])
def test_a_bench_without_lines_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], links: object
) -> None:
    path = benched(folder, links=links)
    reported = (
        f"{line(folder, path)}: the file of --links has no fit (latency, bandwidth) of "
        "all_reduce, all_gather or reduce_scatter.\n"
        "  Fix: a run with at least two sizes, for example meshkit bench dp=2 -n 2 --sizes 1K:1M "
        "--json\n"
    )
    model = ["--model", str(folder / "llama-8b.json")]
    assert run(capsys, *ASKED, *model, "--links", path) == (2, "", reported)


@pytest.mark.parametrize(
    ("printed", "end"),
    [
        (run_to_json(REPORT), "failed.\n  Wrong elements: 3."),
        (run_to_json(EMPTY), "was interrupted."),
        ({**run_to_json(CLEAN), "interrupted": True}, "was interrupted."),
        ({"results": [], "links": {"bandwidth_intra_node": 3}}, "failed."),
    ],
)
def test_a_bench_that_is_not_whole_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], printed: dict[str, object], end: str
) -> None:
    path = folder / "bench.json"
    path.write_text(json.dumps(printed))
    model = ["--model", str(folder / "llama-8b.json")]
    assert run(capsys, *ASKED, *model, "--links", str(path)) == (
        2,
        "",
        f"{line(folder, path)}: the run in the file of --links {end}\n"
        "  Fix: a complete run without a wrong element, for example meshkit bench dp=2 -n 2 "
        "--sizes 1K:1M --json\n",
    )


FIGURES = (
    "Fix: one of flops, memory, memory_bandwidth, bandwidth_intra_node, bandwidth_inter_node, "
    "latency_intra_node, latency_inter_node, source; or the output of meshkit bench --json."
)


RANGE = "\n  Fix: a number from 1e-30 to 1e+30."


@pytest.mark.parametrize(
    ("printed", "reported"),
    [
        ({"ok": True}, f"'ok' in the file of --links is not a figure.\n  {FIGURES}"),
        (
            {"bandwidth_intra_node": "370"},
            f"bandwidth_intra_node in the file of --links is '370'.{RANGE}",
        ),
        (
            {"bandwidth_intra_node": True},
            f"bandwidth_intra_node in the file of --links is True.{RANGE}",
        ),
        (
            {"bandwidth_intra_node": 0},
            f"bandwidth_intra_node in the file of --links is 0.{RANGE}",
        ),
        (
            {"bandwidth_intra_node": 10**400},
            f"bandwidth_intra_node in the file of --links is {10**400}.{RANGE}",
        ),
        ({"source": 3}, "source in the file of --links is 3.\n  Fix: a text."),
    ],
)
def test_figures_that_are_none(
    folder: Path, capsys: pytest.CaptureFixture[str], printed: dict[str, object], reported: str
) -> None:
    path = folder / "links.json"
    path.write_text(json.dumps(printed))
    model = ["--model", str(folder / "llama-8b.json")]
    want = f"{line(folder, path)}: {reported}\n"
    assert run(capsys, *ASKED, *model, "--links", str(path)) == (2, "", want)


def test_results_without_lines_name_no_internal_call(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bench.json").write_text('{"ok": true, "results": []}')
    model = ["--model", str(folder / "llama-8b.json"), "--links", str(folder / "bench.json")]
    assert (
        "the file of --links has no fit (latency, bandwidth) of all_reduce"
        in run(capsys, *ASKED, *model)[2].splitlines()[0]
    )


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


def test_torch_is_not_imported(folder: Path) -> None:
    asked = ["search", *ASKED, "--model", str(folder / "llama-8b.json")]
    code = (
        "import sys\nfrom meshkit.cli.main import main\n"
        f"code = main({asked!r})\nprint(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


# ---------------------------------------------------------------- refusals


def test_a_file_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder / "none.json")
    reported = (
        f"{' '.join(['meshkit search', *ASKED])} --model {path}: "
        "the file of --model cannot be read.\n"
        "  No such file or directory.\n"
        "  Fix: the config.json of a model.\n"
    )
    assert run(capsys, *ASKED, "--model", path) == (2, "", reported)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("[1]", "The file has no JSON object."),
        ("[" * 200_000, "The JSON is nested too deeply."),
        ('"a"', "The file has no JSON object."),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
    ],
)
def test_a_file_that_holds_something_else(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str, why: str
) -> None:
    path = folder / "links.json"
    path.write_text(content)
    reported = (
        f"{line(folder, path)}: the file of --links cannot be read.\n  {why}\n"
        "  Fix: a100, h100, h200, b200, or a JSON file.\n"
    )
    model = ["--model", str(folder / "llama-8b.json")]
    assert run(capsys, *ASKED, *model, "--links", str(path)) == (2, "", reported)


def test_a_model_that_is_none_is_misuse(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bert.json").write_text(json.dumps({"hidden_size": 768}))
    code, out, err = run(capsys, *ASKED, "--model", str(folder / "bert.json"))
    assert (code, out) == (2, "")
    assert err == (
        f"{' '.join(['meshkit search', *ASKED])} --model {folder / 'bert.json'}: "
        "there is no num_hidden_layers or n_layer.\n"
        "  Fix: the config.json of a decoder, as the Hugging Face Hub has it.\n"
    )


NOT_GB = "is not a number of GB above 0 and below a million"


@pytest.mark.parametrize(
    ("option", "value", "last"),
    [
        (
            "--world-size",
            "0",
            "--world-size: '0' is not a whole number of 1 or more",
        ),
        ("--seq", "8k", "--seq: '8k' is not a whole number of 1 or more"),
        ("--memory", "-1", f"--memory: '-1' {NOT_GB}"),
        ("--memory", "nan", f"--memory: 'nan' {NOT_GB}"),
        ("--memory", "80GB", f"--memory: '80GB' {NOT_GB}"),
    ],
)
def test_an_option_that_cannot_be(
    capsys: pytest.CaptureFixture[str], option: str, value: str, last: str
) -> None:
    code, _, err = run(capsys, *ASKED, "--model", "m.json", option, value)
    assert code == 2
    assert err.splitlines()[0].endswith(f" {option} {value}: {last}.")


def test_nodes_that_do_not_divide(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*ASKED, "--nodes", "7", "--model", str(folder / "llama-8b.json")]
    assert run(capsys, *asked) == (
        2,
        "",
        f"{' '.join(['meshkit search', *asked])}: 64 ranks do not divide over 7 nodes.\n"
        "  Fix: 4 or 8 nodes.\n",
    )
