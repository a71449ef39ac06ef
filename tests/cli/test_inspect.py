"""``meshkit plan``, ``explain``, ``move`` and ``search``: text, JSON and misuse."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import meshkit
from meshkit import BatchPlan, stream_seed
from tests.cli.processes import ROOT, Answers

# The pages of docs/commands run lines of each command, and compare the text and the fields of JSON.
BATCH = "--global-batch 1024 --micro-batch 4"


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


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("tp=2 sp=2 --world-size 12", "dp=3 sp=2 tp=2: 12 ranks"),
        ("tp=2 sp=2", "dp=1 sp=2 tp=2: 4 ranks"),
        ("tp=2 dp=-1 --world-size 4 --order 'tp dp'", "tp=2 dp=2: 4 ranks"),
        ("dp=15 --nodes 7,8", "dp=15: 15 ranks on 2 nodes of 7 and 8"),
        ("data=4 model=2", "data=4 model=2: 8 ranks"),  # other names nest as typed
        ("model=2 data=4", "model=2 data=4: 8 ranks"),
        ("data=-1 model=2 --world 8", "data=4 model=2: 8 ranks"),
    ],
)
def test_sizes_are_nested_and_inferred_as_in_build_mesh(
    answer: Answers, words: str, first: str
) -> None:
    assert answer(f"plan {words}")[1].startswith(f"{first}\n")


def test_a_plan_of_a_hundred_thousand_ranks(answer: Answers) -> None:
    code, text, _ = answer("plan pp=10 dp=1250 tp=8 --nodes 12500")
    assert code == 0
    assert len(text.splitlines()) < 60
    assert "pp=10 dp=1250 tp=8: 100000 ranks on 12500 nodes of 8\n" in text


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


# ---------------------------------------------------------------- plan for a model

FOR_70B = "--model llama3-70b --nodes 128 --global-batch 2048 --seq 8192 --world 1024"


def test_the_json_of_a_cost(answer: Answers) -> None:
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
    code, text, _ = answer(f"{command} --memory 2000 --json")
    moves = json.loads(text)["moves"]
    assert code == 0
    # with ddp a rank keeps its quarter of the layers, and those of the last stage their head
    assert moves["needed_gb"]["weights"] == pytest.approx(2 * 70.55 / 8, rel=1e-3)
    assert moves["fetched_gb"]["weights"] == pytest.approx(0.75 * 2 * 70.55 / 8, rel=0.01)
    assert moves["samples_kept"] == pytest.approx(1 / 32)


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


def test_a_fix_is_right_or_absent(answer: Answers) -> None:
    assert answer("plan dp=4 dtype=bf16")[2].endswith("\n  Fix: --dtype bf16.\n")
    assert answer("plan dp=4 --modell 2")[2].endswith("  Fix: meshkit plan dp=4 --model 2\n")
    needs_file = "\n  It may be --html; then --html: expected one argument.\n"
    assert needs_file in answer("plan dp=4 --htm")[2]
    assert answer("plan dp=4 --svg grid.svg")[2].endswith("  Fix: meshkit plan dp=4\n")
    assert answer("plan dp=8 tp=2 --order tp")[2].endswith("  Fix: --order 'tp dp'.\n")
    assert answer("plan dp=8 tp=2 --order 'tp dp'")[0] == 0
    assert "no role" in answer(f"plan foo=4 bar=256 {FOR_70B}")[2]  # --data could not help
    assert "leave out --data" in answer(f"plan dp=128 tp=8 --data tp {FOR_70B}")[2]
    _, _, error = answer(f"search {FOR_70B} dp=32")
    assert "Fix" not in error
    assert "meshkit plan reports a layout that you choose" in error


# ---------------------------------------------------------------- explain


def test_one_rank_as_json(answer: Answers) -> None:
    code, text, _ = answer(
        "explain 5 sp=2 --world-size 8 --nodes 2 --seq 16 --seed 0 --json "
        "--global-batch 64 --micro-batch 4"
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


def test_a_list_of_a_hundred_thousand_ranks(answer: Answers) -> None:
    code, text, _ = answer("explain --all dp=100000 --nodes 12500")
    assert code == 0
    first, *_, last = (line.split() for line in text.splitlines())
    assert first == ["rank", "node", "slot", "dp"]
    assert last == ["99999", "12499", "7", "99999"]


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


@pytest.mark.parametrize("to", [{}, {"to": "dp=8 tp=4", "dtype": "bf16"}])
def test_the_text_and_the_json_of_a_move(answer: Answers, to: dict[str, str]) -> None:
    pattern = "o/dp/tp i -> o/tp i" if to else "o/dp/tp i -> o/tp i/dp"
    plan = meshkit.plan_redistribution("dp=4 tp=2", pattern, **to, o=4096, i=4096)
    options = shlex.join(word for name, value in to.items() for word in (f"--{name}", value))
    words = f"move 'dp=4 tp=2' '{pattern}' o=4096 i=4096 {options}"
    assert answer(words) == (0, f"{plan}\n", "")
    _, text, _ = answer(f"{words} --json")
    assert json.loads(text) == json.loads(json.dumps(plan.as_dict()))


# ---------------------------------------------------------------- search

JOB = "search --world-size 64 --nodes 8 --global-batch 1024 --seq 8192 --model"


def test_the_printed_command_reports_the_best_layout(answer: Answers) -> None:
    line = f"{JOB} mixtral-8x7b --racks 2 --memory 70"
    _, out, _ = answer(line)
    best = json.loads(answer(f"{line} --json")[1])["layouts"][0]
    typed = next(line for line in out.splitlines() if line.startswith("  meshkit plan "))
    planned = json.loads(answer(f"{typed.removeprefix('  meshkit ')} --json")[1])
    assert planned["cost"]["layouts"] == [best]
    assert planned["sizes"] == best["sizes"]
    assert best["sizes"]["ep"] > 1
    for page in (word for word in out.split() if word.startswith("docs/")):
        assert (ROOT / page).is_file()


def test_json_holds_the_whole_result(answer: Answers) -> None:
    code, out, _ = answer(f"{JOB} llama3-8b --json --top 3")
    printed = json.loads(out)
    assert (code, printed["ok"]) == (0, True)
    assert printed["parameters"] == 8_030_261_248
    assert printed["model"]["kv_heads"] == 8
    assert printed["job"]["machine"]["bandwidth_intra_node"] == 450
    assert printed["layouts"][0]["sizes"] == {"dp": 64}
    assert len(printed["layouts"]) == 3
    assert {*printed["layouts"][0]["sent"]} == {"in a node", "across nodes", "across racks"}
    assert printed["fits"] + sum(row["count"] for row in printed["excluded"]) == 210
    assert "promises no seconds" in printed["note"]


def test_memory_and_links_are_those_that_were_given(answer: Answers, tmp_path: Path) -> None:
    measured = tmp_path / "measured.json"
    measured.write_text('{"bandwidth_intra_node": 370, "bandwidth_inter_node": 42.5}')
    for option, figures in (
        ("--links a100", "a100): 80 GB, 197 of 312 TFLOP/s attained, 300 GB/s in a node, 25 GB/s"),
        (f"--links {measured}", "measured.json): 80 GB, 544 of 989 TFLOP/s attained, 370 GB/s in"),
        ("--memory 40", "h100): 40 GB, 544 of 989 TFLOP/s attained, 450 GB/s in a node, 50 GB/s"),
    ):
        assert f" A rank ({figures} " in " ".join(answer(f"{JOB} llama3-8b {option}")[1].split())
    tight = json.loads(answer(f"{JOB} llama3-8b --memory 40 --json")[1])
    assert all(row["memory_gb"] <= 40 for row in tight["layouts"])


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("model", None),
        ("model", '{"hidden_size": 768}'),
        ("links", None),
        ("links", "[1]"),
        ("links", '{"unknown": 1}'),
        ("links", '{"bandwidth_intra_node": "370"}'),
        ("links", '{"bandwidth_intra_node": 0}'),
    ],
)
def test_a_file_that_cannot_be_used_is_misuse(
    answer: Answers, tmp_path: Path, option: str, content: str | None
) -> None:
    path = tmp_path / "given.json"
    if content is not None:
        path.write_text(content)
    code, out, err = answer(f"{JOB} llama3-8b --{option} {path}")
    assert (code, out) == (2, "")
    assert err.startswith("meshkit search ")
    assert err.splitlines()[-1].startswith("  Fix: ")
