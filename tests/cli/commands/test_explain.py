"""``meshkit explain``: one rank, all ranks, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from meshkit import BatchPlan, Layout, stream_seed
from meshkit.cli.main import main

Answers = Callable[[str], tuple[int, str, str]]

BATCH = "--global-batch 64 --micro-batch 4"


def test_one_rank(answer: Answers) -> None:
    code, text, _ = answer(f"explain 5 dp=4 sp=2 tp=1 --nodes 2 {BATCH} --seq 8192 --seed 7")
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


def test_a_rank_as_an_option(answer: Answers) -> None:
    assert answer("explain dp=4 sp=2 --rank 5") == answer("explain 5 dp=4 sp=2")
    code, _, error = answer("explain dp=4 --rank 4")
    assert code == 2
    assert "there is no rank 4." in error


def test_axes_of_other_names_cut_the_sequence(answer: Answers) -> None:
    code, text, _ = answer('explain 1 data=2 seq=2 --order "data seq" --seq 16')
    assert code == 0
    assert "tokens      8-15 of each sequence, which is cut over seq\n" in text


def test_one_rank_as_json(answer: Answers) -> None:
    code, text, _ = answer(
        f"explain 5 sp=2 --world-size 8 --nodes 2 {BATCH} --seq 16 --seed 0 --json"
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


def test_all_ranks_as_json(answer: Answers) -> None:
    code, text, _ = answer("explain --all dp=4 sp=2 --nodes 2 --json")
    assert code == 0
    reported = json.loads(text)["ranks"]
    layout = Layout(dp=4, sp=2)
    assert [one["rank"] for one in reported] == [*range(8)]
    assert [one["coordinate"] for one in reported] == [layout.coordinate(rank) for rank in range(8)]
    assert [(one["node"], one["slot"]) for one in reported] == [
        divmod(rank, 4) for rank in range(8)
    ]


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


def test_a_hundred_thousand_ranks(answer: Answers) -> None:
    began = time.process_time()
    code, text, _ = answer("explain --all dp=100000 --nodes 12500")
    assert time.process_time() - began < 3  # 0.6 where nothing else runs
    assert code == 0
    assert text.splitlines()[-1].split() == ["99999", "12499", "7", "99999"]


@pytest.mark.parametrize("micro", [1, 10**17])
def test_samples_that_nobody_could_hold(answer: Answers, micro: int) -> None:
    code, text, _ = answer(f"explain 1 dp=2 --global-batch {8 * 10**17} --micro-batch {micro}")
    printed = next(line for line in text.splitlines() if line.startswith("samples"))
    few, many = (
        "1, 3, 5, ..., 799999999999999999 (400000000000000000)",
        ("100000000000000000-199999999999999999"),
    )
    assert code == 0
    assert printed.removeprefix("samples").lstrip().startswith(few if micro == 1 else many)


@pytest.mark.parametrize(
    "command",
    [
        "explain 9 dp=4 --seed 0",
        "explain 8 dp=4 sp=2",
        "explain --all dp=262145",
        "explain 5 dp=1",
        "explain dp=4",
        "explain -1 dp=4",
        "explain tp=2 dp=4",
        "explain -1",
        "explain 5",
        "explain 5 dp=4 --all",
        "explain 1 dp=4 sp=2 cp=2 --seq 7",
        "explain --all dp=100000 --json",
        "explain 0 dp=1 --global-batch 4000000000 --micro-batch 4000000000 --json",
        "explain 5 dp=4 sp=2 --world-size 6",
        "explain 5 four",
    ],
)
def test_an_invalid_command_is_quoted_as_typed(answer: Answers, command: str) -> None:
    code, out, err = answer(command)
    text = json.loads(out)["error"]["text"] if "--json" in command else err
    assert code == 2
    assert text.startswith(f"meshkit {command}")
    assert "\n  Fix: " in text


def test_a_seed_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "0", "dp=4", "--seed", "x"]) == 2
    assert ": --seed: 'x' is not a whole number.\n" in capsys.readouterr().err
    assert main(["explain", "0", "dp=4", "--seed=-3"]) == 0
    assert main(["explain", "0", "dp=4", "--seed", "9" * 20]) == 2
    assert f": --seed: '{'9' * 20}' has more than 18 digits.\n" in capsys.readouterr().err
