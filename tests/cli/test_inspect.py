"""``meshkit plan``, ``explain``, ``move`` and ``search``: text, JSON and misuse."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import meshkit
from meshkit import BatchPlan, stream_seed
from meshkit.cli import main

ROOT = Path(__file__).parents[2]

Answers = Callable[[str], tuple[int, str, str]]


PLAN = """\
dp=4 sp=2 tp=1: 8 ranks on 2 nodes of 4

axis  size  stride  groups  first group  crosses nodes
────  ────  ──────  ──────  ───────────  ─────────────
dp       4       2       2  0, 2, 4, 6   yes
sp       2       1       4  0, 1         no
tp       1       1       8  0            no

┌ node 0 ──────────┐  ┌ node 1 ──────────┐
│       sp=0  sp=1 │  │       sp=0  sp=1 │
│ dp=0     0     1 │  │ dp=2     4     5 │
│ dp=1     2     3 │  │ dp=3     6     7 │
└──────────────────┘  └──────────────────┘

groups  4 on each rank, the default group included; 15 in all
batch   global_batch 1024 = micro_batch 4 x accumulation_steps 64 x dp 4
"""

BATCH = "--global-batch 1024 --micro-batch 4"
BIG = "--global-batch 5000 --micro-batch 1"


def test_the_text_of_a_plan(answer: Answers) -> None:
    assert answer(f"plan dp=4 sp=2 tp=1 --nodes 2 {BATCH}") == (0, PLAN, "")


def test_the_json_of_a_plan(answer: Answers) -> None:
    code, text, _ = answer(
        f"plan dp=-1 tp=2 --world-size 8 --nodes 2 --groups 'dp tp' --json {BATCH}"
    )
    assert code == 0
    reported = json.loads(text)
    assert reported["axes"][0] == {
        **{"axis": "dp", "size": 4, "stride": 2, "groups": 2, "first_group": [0, 2, 4, 6]},
        **{"crossing": 2, "spans": 2, "outer": {}},
    }
    assert reported["batch"] == {
        **{"dp": 4, "global_batch": 1024, "micro_batch": 4, "accumulation_steps": 64},
        "uneven": False,
    }
    del reported["axes"], reported["batch"]
    assert reported == {
        "world_size": 8,
        "sizes": {"dp": 4, "tp": 2},
        "node_sizes": [4, 4],
        "groups_per_rank": 4,
        "groups": 15,
        "warnings": [],
        "placement": None,
        "cost": None,
    }


def test_sizes_are_nested_and_inferred_as_in_build_mesh(answer: Answers) -> None:
    assert answer("plan tp=2 sp=2 --world-size 12")[1].startswith("dp=3 sp=2 tp=2: 12 ranks\n")
    assert answer("plan tp=2 sp=2")[1].startswith("dp=1 sp=2 tp=2: 4 ranks\n")
    assert answer("plan tp=2 dp=-1 --world-size 4 --order 'tp dp'")[1].startswith(
        "tp=2 dp=2: 4 ranks\n"
    )
    uneven = "dp=15: 15 ranks on 2 nodes of 7 and 8\n"
    assert answer("plan dp=15 --nodes 7,8")[1].startswith(uneven)


SMALL_BATCH = "--global-batch 64 --micro-batch 4"


def test_a_plan_of_a_hundred_thousand_ranks(answer: Answers) -> None:
    code, text, _ = answer(f"plan pp=10 dp=1250 tp=8 --nodes 12500 {BIG}")
    assert code == 0
    assert len(text.splitlines()) < 60
    assert "pp=10 dp=1250 tp=8: 100000 ranks on 12500 nodes of 8\n" in text
    assert "... 12496 nodes more ...\n" in text
    assert "99999" in text


DEALT = "a\nb\n" * 4


def test_hosts_from_a_file_and_ranks_placed_on_them(answer: Answers, tmp_path: Path) -> None:
    file, page = tmp_path / "hosts", tmp_path / "grid.html"
    file.write_text(DEALT)
    command = f"plan dp=2 tp=4 --hosts {file}"
    _, printed, _ = answer(command)
    assert "warning  tp crosses nodes: 2 of 2 groups span 2 nodes." in printed
    code, printed, _ = answer(f"{command} --place --html {page}")
    assert code == 0
    assert "tp stays inside nodes; before, tp crosses nodes" in printed
    assert "warning" not in printed
    assert '"ranks":[0,2,4,6,1,3,5,7]' in page.read_text()
    _, printed, _ = answer(f"{command} --place --json")
    assert json.loads(printed)["placement"]["ranks"] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert answer(f"{command} --html {tmp_path}/none/grid.html")[0] == 2
    assert answer(f"plan dp=16 --hosts {file}")[0] == 2


@pytest.mark.parametrize(
    "command",
    [
        "plan dp=4 sp=2 --world-size 6",
        "plan dp=-1 tp=2",
        "plan dp=4 sp=3 --nodes 5",
        "plan dp=4 --nodes 7,8",
        "plan dp=4 --global-batch 100 --micro-batch 3",
        "plan x=8 --order x --global-batch 8 --micro-batch 1",
        "plan dp=2 ep=2 --global-batch 10 --micro-batch 1 --data dd",
        "plan dp=8 ep=4 --world-size 8",
        "plan dp=4 nodes=2",
        "plan dp=4 dtype=bf16",
        "plan dp=4 --nodes 2 --model llama3-8b",
        "plan dp=4 --nodes 2 --model llama-3 --global-batch 8 --seq 8",
        "plan dp=4 --racks 2",
        "plan dp=4 --nodes 4 --racks 3",
        "plan dp=4 --data dp",
        "plan dp=4 --seq 8",
        "plan dp=4 --recompute full",
        "plan dp=4,tp=2 dp=4",
        "plan dp=4 --groups dd",
        "plan dp=4 dp=2",
        "plan four",
        *(f"plan dp={size}" for size in ("four", "0", "-2", "4.0", "1_0")),
        "plan dp=99999999999",
        "plan dp=4 --world-size x",
        "plan dp=4 --nodes 2,",
        "plan dp=2 tp=4 --place",
        "explain 9 dp=4 --seed 0",
        "explain dp=4",
        "explain -1 dp=4",
        "explain 5",
        "explain 5 dp=4 --all",
        "explain 1 dp=4 sp=2 cp=2 --seq 7",
        "explain --all dp=100000 --json",
        "explain 0 dp=1 --global-batch 4000000000 --micro-batch 4000000000 --json",
        "explain 5 dp=4 sp=2 --world-size 6",
        "explain 5 four",
        "explain 0 dp=4 --seed x",
        "move 'dp=4 tp=2' 'o/dq i -> o i' o=4 i=4",
        "move dp=4 'o/dp i -> o i' o=4",
        "move dp=4 o=4",
    ],
)
def test_misuse_has_exit_code_2_and_a_fix(answer: Answers, command: str) -> None:
    code, out, err = answer(command)
    assert code == 2
    text = json.loads(out)["error"]["text"] if "--json" in command else err
    assert text.startswith(f"meshkit {command.partition(' ')[0]} ")
    assert text.splitlines()[-1].startswith("  Fix: ")


# ---------------------------------------------------------------- plan for a model

FOR_70B = "--model llama3-70b --nodes 128 --global-batch 2048 --seq 8192 --world 1024"


def test_what_a_layout_costs(answer: Answers) -> None:
    code, text, _ = answer(f"plan 'pp=4 dp=32 tp=8' {FOR_70B} --racks 8")
    assert code == 0
    for line in (
        "llama3-70b: 70.55 billion weights, bf16; 1024 ranks on 128 nodes, in 8 racks.",
        "batch   global_batch 2048 = micro_batch 2 x accumulation_steps 32 x dp 32",
        "32 of 2: a rank runs 32 micro batches of 2 samples in a step.",
        "GB of a rank, which has 80",
        "seconds of a step",
        "GB that a rank sends in a step: weights and activations in bf16, gradients in fp32",
    ):
        assert f"\n{line}\n" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("1  across")]
    assert [row[1:3] for row in rows] == [["across", "nodes"], ["across", "racks"]]
    reported = json.loads(answer(f"plan 'pp=4 dp=32 tp=8' {FOR_70B} --racks 8 --json")[1])
    cost = reported["cost"]["layouts"][0]
    assert {*cost["memory"]} == {"weights", "gradients", "optimizer", "activations", "buffers"}
    assert reported["batch"]["micro_batch"] == cost["micro_batch"] == 2
    assert (reported["cost"]["links"], reported["cost"]["job"]["dtype"]) == ("h100", "bf16")
    assert reported["axes"][0]["outer"] == {"rack": {"crossing": 256, "spans": 4}}


def test_a_choice_of_the_user_counts(answer: Answers) -> None:
    chosen = "--micro-batch 1 --shard zero1 --recompute full --dtype fp32 --links a100"
    code, text, _ = answer(f"plan 'pp=4 dp=32 tp=8' {FOR_70B} {chosen} --json")
    cost = json.loads(text)["cost"]
    layout = cost["layouts"][0]
    assert (code, cost["links"], cost["job"]["dtype"]) == (0, "a100", "fp32")
    assert (layout["micro_batch"], layout["shard"], layout["recompute"]) == (1, "zero1", "full")


def test_a_layout_that_does_not_fit_fails(answer: Answers) -> None:
    code, text, _ = answer(f"plan dp=1024 {FOR_70B} --shard ddp")
    assert code == 1
    assert "Layout 1 does not fit" in text
    assert "as what needs least memory" in text
    assert "fastest that fits" not in text


def test_two_layouts_side_by_side_and_what_moves(answer: Answers) -> None:
    command = f"plan 'pp=4 dp=32 tp=8' dp=128,tp=8 {FOR_70B} --shard ddp --recompute full"
    code, text, _ = answer(f"{command} --memory 2000")
    assert code == 0
    assert "\n1  pp=4 dp=32 tp=8 " in text
    assert "\n2  dp=128 tp=8 " in text
    moves = json.loads(answer(f"{command} --memory 2000 --json")[1])["moves"]
    # with ddp a rank keeps its quarter of the layers, and those of the last stage their head
    assert moves["needed_gb"]["weights"] == pytest.approx(2 * 70.55 / 8, rel=1e-3)
    assert moves["fetched_gb"]["weights"] == pytest.approx(0.75 * 2 * 70.55 / 8, rel=0.01)
    assert moves["samples_kept"] == pytest.approx(1 / 32)
    _, text, _ = answer("plan dp=4,tp=2 dp=8 --global-batch 16 --micro-batch 1")
    assert text.endswith("samples  25 % of a step stay on their rank\n")


def test_three_layouts_and_placed_ones(answer: Answers, tmp_path: Path) -> None:
    words = "dp=8 dp=4,tp=2 dp=2,tp=4 --global-batch 16 --micro-batch 1"
    reported = json.loads(answer(f"plan {words} --json")[1])
    kept = [layout["moves"]["samples_kept"] for layout in reported["layouts"][1:]]
    assert kept == [0.125, 0.125]
    assert reported["moves"] == reported["layouts"][1]["moves"]
    file, page = tmp_path / "hosts", tmp_path / "plan.html"
    file.write_text(DEALT)
    job = f"--hosts {file} --place --model llama3-8b --global-batch 16 --seq 4096 --shard fsdp"
    code, text, _ = answer(f"plan dp=8 dp=4,tp=2 dp=2,tp=4 {job} --html {page}")
    assert code == 0
    rows = [" ".join(line.split()[:5]) for line in text.splitlines() if line[:1].isdecimal()][:6]
    assert rows[2].startswith("3 dp=2 tp=4 placed")
    assert rows[5].startswith("6 dp=2 tp=4 as")
    assert page.read_text().count("<iframe") == 3


def test_racks_can_have_a_figure_of_their_own(answer: Answers, tmp_path: Path) -> None:
    links = tmp_path / "slow.json"
    links.write_text('{"bandwidth_inter_rack": 1}')
    job = "--model llama3-70b --nodes 128 --global-batch 2048 --seq 8192 --recompute cheap"
    line = f"plan dp=512 tp=2 {job} --micro-batch 1 --shard fsdp --racks 8 --json"
    usual, slow = (
        json.loads(answer(f"{line} {more}")[1])["cost"] for more in ("", f"--links {links}")
    )
    across = sum(slow["layouts"][0]["sent"]["across racks"].values())
    assert slow["layouts"][0]["sent"] == usual["layouts"][0]["sent"]
    assert slow["layouts"][0]["step"] > across / 1 > usual["layouts"][0]["step"]
    text = answer(f"{line.removesuffix(' --json')} --links {links}")[1]
    assert "1 GB/s out of a rack" in " ".join(text.split())


def test_a_placement_is_explained_in_gigabytes_and_seconds(answer: Answers, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(DEALT)
    job = "--model llama3-8b --global-batch 8 --seq 4096 --shard fsdp"
    _, text, _ = answer(f"plan dp=2 tp=4 --hosts {file} --place {job} --json")
    now, before = json.loads(text)["cost"]["layouts"]
    assert now["sent"]["across nodes"]["tp"] == 0 < before["sent"]["across nodes"]["tp"]
    assert now["step"] < before["step"]
    _, text, _ = answer(f"plan dp=2 tp=4 --hosts {file} --place {job}")
    assert "\n1  dp=2 tp=4 placed " in text
    assert "\n2  dp=2 tp=4 as numbered " in text


def test_words_are_a_mapping_as_typed(answer: Answers) -> None:
    assert answer("plan data=4 model=2")[1].startswith("data=4 model=2: 8 ranks\n")
    assert answer("plan model=2 data=4")[1].startswith("model=2 data=4: 8 ranks\n")
    assert answer("plan data=-1 model=2 --world 8")[1].startswith("data=4 model=2: 8 ranks\n")


def test_a_fix_is_right_or_absent(answer: Answers) -> None:
    assert answer("plan dp=4 dtype=bf16")[2].endswith("\n  Fix: --dtype bf16.\n")
    help_of_plan = "  Fix: meshkit help plan lists the options.\n"
    assert answer("plan dp=4 --modell 2")[2].endswith("  Fix: meshkit plan dp=4 --model 2\n")
    assert answer("plan dp=4 --htm")[2].endswith(help_of_plan)  # --html needs a file
    assert answer("plan dp=4 --svg grid.svg")[2].endswith(help_of_plan)
    assert answer("plan dp=8 tp=2 --order tp")[2].endswith("  Fix: --order 'tp dp'.\n")
    assert answer("plan dp=8 tp=2 --order 'tp dp'")[0] == 0
    assert "no role" in answer(f"plan foo=4 bar=256 {FOR_70B}")[2]  # --data could not help
    assert "leave out --data" in answer(f"plan dp=128 tp=8 --data tp {FOR_70B}")[2]
    _, _, error = answer(f"search {FOR_70B} dp=32")
    assert "Fix" not in error
    assert "meshkit plan reports a layout that you choose" in error


# ---------------------------------------------------------------- explain


def test_one_rank_as_text(answer: Answers) -> None:
    code, text, _ = answer(f"explain 5 dp=4 sp=2 tp=1 --nodes 2 {SMALL_BATCH} --seq 8192 --seed 7")
    assert code == 0
    assert text == (
        "rank 5 of dp=4 sp=2 tp=1: 8 ranks on 2 nodes of 4\n"
        "\n"
        "coordinate  dp=2 sp=1 tp=0\n"
        "node        1, slot 1\n"
        "samples     8-11, 24-27, 40-43, 56-59 in step 0, a range for each micro batch\n"
        "tokens      4096-8191 of each sequence, which is cut over sp\n"
        "seed        4232173327378486640 on all ranks; by axis below\n"
        "\n"
        "axis  index   before  after  group                      seed\n"
        "────  ──────  ──────  ─────  ──────────  ───────────────────\n"
        "dp    2 of 4       3      7  1, 3, 5, 7  5226965292822398527\n"
        "sp    1 of 2       4      4  4, 5         579700634850306452\n"
        "tp    0 of 1       -      -  5           5736562324411063986\n"
    )


def test_one_rank_as_json(answer: Answers) -> None:
    code, text, _ = answer(
        f"explain 5 sp=2 --world-size 8 --nodes 2 {SMALL_BATCH} --seq 16 --seed 0 --json"
    )
    assert code == 0
    reported = json.loads(text)
    plan = BatchPlan.solve(dp=4, global_batch=64, micro_batch=4)
    assert reported.pop("samples") == plan.samples(0, 2).tolist()
    assert [axis.pop("peers") for axis in reported["axes"]] == [[1, 3, 5, 7], [4, 5]]
    assert reported == {
        "rank": 5,
        "coordinate": {"dp": 2, "sp": 1},
        "node": 1,
        "slot": 1,
        "axes": [
            {"axis": "dp", "index": 2, "before": 3, "after": 7, "seed": stream_seed(0, dp=2)},
            {"axis": "sp", "index": 1, "before": 4, "after": 4, "seed": stream_seed(0, sp=1)},
        ],
        "tokens": [[8, 15]],
        "seed": stream_seed(0),
    }


def test_all_ranks_as_a_table(answer: Answers) -> None:
    assert answer("explain dp=2 sp=2 --nodes 2 --all") == (
        0,
        "rank  node  slot  dp  sp\n"
        "────  ────  ────  ──  ──\n"
        "   0     0     0   0   0\n"
        "   1     0     1   0   1\n"
        "   2     1     0   1   0\n"
        "   3     1     1   1   1\n",
        "",
    )


def test_a_list_of_a_hundred_thousand_ranks(answer: Answers) -> None:
    code, text, _ = answer("explain --all dp=100000 --nodes 12500")
    assert code == 0
    assert text.splitlines()[-1].split() == ["99999", "12499", "7", "99999"]


@pytest.mark.parametrize("micro", [1, 10**17])
def test_samples_of_huge_batches(answer: Answers, micro: int) -> None:
    code, text, _ = answer(f"explain 1 dp=2 --global-batch {8 * 10**17} --micro-batch {micro}")
    printed = next(line for line in text.splitlines() if line.startswith("samples"))
    few, many = (
        "1, 3, 5, ..., 799999999999999999 (400000000000000000)",
        ("100000000000000000-199999999999999999"),
    )
    assert code == 0
    assert printed.removeprefix("samples").lstrip().startswith(few if micro == 1 else many)


# ---------------------------------------------------------------- move


def test_the_text_and_the_json_of_a_move(answer: Answers) -> None:
    code, text, error = answer("move 'dp=4 tp=2' 'o/dp/tp i -> o/tp i/dp' o=4096 i=4096")
    plan = meshkit.plan_redistribution("dp=4 tp=2", "o/dp/tp i -> o/tp i/dp", o=4096, i=4096)
    assert (code, text, error) == (0, f"{plan}\n", "")
    _, text, _ = answer("move 'dp=4 tp=2' 'o/dp/tp i -> o/tp i/dp' o=4096 i=4096 --json")
    assert json.loads(text) == json.loads(json.dumps(plan.as_dict()))


def test_a_move_to_the_ranks_of_another_mesh(answer: Answers) -> None:
    words = "move 'dp=4 tp=2' 'o/dp/tp i -> o/tp i' o=64 i=64 --to 'dp=8 tp=4' --dtype bf16"
    plan = meshkit.plan_redistribution(
        "dp=4 tp=2", "o/dp/tp i -> o/tp i", to="dp=8 tp=4", dtype="bf16", o=64, i=64
    )
    assert answer(words) == (0, f"{plan}\n", "")
    _, text, _ = answer(f"{words} --json")
    forward = json.loads(text)["forward"]
    assert forward["bytes"] == forward["bound"] == 2 * 64 * 64 // 4


# ---------------------------------------------------------------- search

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
MIXTRAL = {**LLAMA_8B, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}

JOB = ["--world-size", "64", "--nodes", "8", "--global-batch", "1024", "--seq", "8192"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"llama-8b": LLAMA_8B, "llama-405b": LLAMA_405B, "mixtral": MIXTRAL}
    for name, config in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    return tmp_path


def run_search(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return exit code, output and errors."""
    code = main.main(["search", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_printed_command_reports_the_best_layout(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--model", str(folder / "mixtral.json"), "--racks", "2", "--memory", "70"]
    _, out, _ = run_search(capsys, *JOB, *more)
    found = json.loads(run_search(capsys, *JOB, *more, "--json")[1])["layouts"][0]
    line = next(line for line in out.splitlines() if line.startswith("  meshkit plan "))
    assert main.main([*shlex.split(line)[1:], "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["cost"]["layouts"] == [found]
    assert planned["sizes"] == found["sizes"]
    assert found["sizes"]["ep"] > 1
    for page in (word for word in out.split() if word.startswith("docs/")):
        assert (ROOT / page).is_file()


def test_json_holds_the_whole_result(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "llama-8b.json")
    code, out, _ = run_search(capsys, *JOB, "--model", model, "--json", "--top", "3")
    printed = json.loads(out)
    assert code == 0
    assert printed["ok"] is True
    assert printed["parameters"] == 8_030_261_248
    assert printed["model"]["kv_heads"] == 8
    assert printed["job"]["machine"]["bandwidth_intra_node"] == 450
    assert len(printed["layouts"]) == 3
    assert printed["layouts"][0]["sizes"] == {"dp": 64}
    assert {*printed["layouts"][0]["sent"]} == {"in a node", "across nodes", "across racks"}
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
        " ".join(run_search(capsys, *JOB, *model, *more)[1].split()).partition(" A rank (")[2]
        for more in (["--links", "a100"], ["--links", str(measured)], ["--memory", "40"])
    ]
    for line, figures in zip(
        lines,
        (
            "a100): 80 GB, 197 of 312 TFLOP/s attained, 300 GB/s in a node, 25 GB/s out of it. ",
            "measured.json): 80 GB, 544 of 989 TFLOP/s attained, 370 GB/s in a node, 42.5 GB/s ",
            "h100): 40 GB, 544 of 989 TFLOP/s attained, 450 GB/s in a node, 50 GB/s out of it. ",
        ),
        strict=True,
    ):
        assert line.startswith(figures)
    tight = json.loads(run_search(capsys, *JOB, *model, "--memory", "40", "--json")[1])
    assert all(row["memory_gb"] <= 40 for row in tight["layouts"])


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model", None),
        ("model", {"hidden_size": 768}),
        ("links", None),
        ("links", [1]),
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
    code, out, err = run_search(capsys, *JOB, *(word for pair in files.items() for word in pair))
    assert (code, out) == (2, "")
    assert err.startswith("meshkit search ")
    assert err.splitlines()[-1].startswith("  Fix: ")


@pytest.mark.parametrize(
    "option", ["--world-size=0", "--seq=8k", "--memory=-1", "--memory=nan", "--nodes=7"]
)
def test_an_invalid_option_is_misuse(
    folder: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert run_search(capsys, *JOB, "--model", str(folder / "llama-8b.json"), option)[0] == 2
