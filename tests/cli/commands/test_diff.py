"""``meshkit diff``: two grids compared, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

Answers = Callable[[str], tuple[int, str, str]]


def test_two_grids_word_for_word(answer: Answers) -> None:
    assert answer("diff 'dp=4 sp=2' 'dp=2 sp=2 tp=2'") == (
        0,
        "before  dp=4 sp=2: 8 ranks\n"
        "after   dp=2 sp=2 tp=2: 8 ranks\n"
        "\n"
        "axis  before  after  whose group changes\n"
        "────  ──────  ─────  ───────────────────\n"
        "dp         4      2  8 ranks: 0-7\n"
        "sp         2      2  8 ranks: 0-7\n"
        "tp         -      2  8 ranks: 0-7\n"
        "\n"
        "data      dp 4 -> 2; 8 ranks: 0-7 own other samples of a step\n"
        "weights   1 part -> 2 parts (weights are cut by pp and tp, all other axes hold\n"
        "            copies)\n"
        "          8 ranks: 0-7 hold all of what they need\n"
        "to fetch  nothing\n",
        "",
    )


def test_the_json(answer: Answers) -> None:
    code, text, _ = answer("diff 'dp=2 tp=2' 'dp=4' --json")
    assert code == 0
    assert json.loads(text) == {
        "before": {"dp": 2, "tp": 2},
        "after": {"dp": 4},
        "groups": {"dp": [0, 1, 2, 3], "tp": [0, 1, 2, 3]},
        "data": [0, 1, 2, 3],
        "checkpoint": {
            "parts_before": 2,
            "parts_after": 1,
            "held": {"1/2": [0, 1, 2, 3]},
            "total": "2",
            "lost": 0,
        },
    }


def test_a_batch_lists_the_ranks_that_read_other_samples(answer: Answers) -> None:
    batch = "--global-batch 8 --accumulation-steps 1 --json"
    assert json.loads(answer("diff dp=4 dp=8 --json")[1])["data"] == [0, 1, 2, 3]
    assert json.loads(answer(f"diff dp=4 dp=8 {batch}")[1])["data"] == []


def test_a_size_is_inferred_where_it_is_open(answer: Answers) -> None:
    text = answer("diff dp=2 'sp=2 dp=-1' --world-size 8")[1]
    assert text.startswith("before  dp=2: 2 ranks\nafter   dp=4 sp=2: 8 ranks\n")


def test_axes_without_a_standard_place_stand_as_written(answer: Answers) -> None:
    text = answer("diff 'tp=2 dp=4' 'tp=2 shard=4'")[1]
    assert text.startswith("before  dp=4 tp=2: 8 ranks\nafter   tp=2 shard=4: 8 ranks\n")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (
            "diff x=2 y=-1",
            'meshkit diff "x=2" "y=-1": there is nothing to infer y from.\n'
            '  Fix: for example meshkit diff "x=2" "y=-1" --world-size 8',
        ),
        (
            "diff 'dp=-1 tp=4' dp=2 --world-size 6",
            'meshkit diff "dp=-1 tp=4" "dp=2" --world-size 6 needs a multiple of 4 ranks, '
            "the world has 6.\n"
            "  tp 4 = 4; --world-size 6.\n"
            "  Fix: start 4 or 8 ranks.",
        ),
        (
            "diff dp=2 ''",
            'meshkit diff "dp=2" "": one of the two grids has no sizes.\n'
            '  Fix: for example meshkit diff "dp=4 sp=2" "dp=2 sp=2 tp=2"',
        ),
        (
            "diff dp=2 dp=3 --global-batch 4",
            'meshkit diff "dp=2" "dp=3" --global-batch 4: '
            "1 of global_batch, micro_batch, accumulation_steps is given.\n"
            "  Any two of the three give the third.\n"
            '  Fix: meshkit diff "dp=2" "dp=3" --global-batch 4 --accumulation-steps 1',
        ),
    ],
)
def test_what_cannot_be_is_one_message_and_misuse(
    answer: Answers, command: str, error: str
) -> None:
    assert answer(command) == (2, "", error + "\n")


def test_a_batch_over_an_unknown_role_asks_for_the_data_axes(answer: Answers) -> None:
    line = 'meshkit diff "x=4" "dp=4" --global-batch 8 --micro-batch 2'
    assert answer(line.removeprefix("meshkit ")) == (
        2,
        "",
        f"{line}: nothing says whether ranks along x share samples.\n"
        "  The roles of the axes, by their names: x unknown.\n"
        f"  Fix: {line} --data x, or {line} --data ''\n",
    )
    code, text, _ = answer(f"{line.removeprefix('meshkit ')} --data 'x dp'")
    assert code == 0
    assert "data      x dp 4 -> 4; 0 ranks own other samples of a step\n" in text


def test_samples_of_an_unknown_role_are_unknown(answer: Answers) -> None:
    _, text, _ = answer('diff "x=4" "dp=4"')
    assert "data      unknown, as no role is known for x: --data AXES\n" in text
    assert '"data": null' in answer('diff "x=4" "dp=4" --json')[1]


def test_experts_carved_out_of_dp_own_the_samples_that_they_had(answer: Answers) -> None:
    _, text, _ = answer('diff "dp=8" "dp=2 ep=4" --global-batch 32 --micro-batch 2')
    assert "data      dp ep 8 -> 8; 0 ranks own other samples of a step\n" in text


def test_the_options_of_a_batch_stay_in_a_fix(answer: Answers) -> None:
    batch = "--global-batch 100 --micro-batch 3"
    code, _, printed = answer(f'diff "ep=-1 pp=3 tp=8" "seq=1 dp=-1 cp=1" {batch}')
    assert code == 2
    fix = f'meshkit diff "ep=-1 pp=3 tp=8 dp=1" "seq=1 dp=-1 cp=1" {batch}'
    assert printed.splitlines()[-1] == f"  Fix: {fix}"


def test_two_million_ranks(answer: Answers) -> None:
    began = time.process_time()
    code, text, _ = answer("diff dp=2097152 tp=2097152")
    assert time.process_time() - began < 6  # 1 where nothing else runs
    assert code == 0
    assert "dp    2097152        1  2097152 ranks: 0-2097151\n" in text


def test_the_fix_works(answer: Answers) -> None:
    assert answer('diff "x=2" "y=-1" --world-size 8')[0] == 0
    assert answer('diff "dp=4 sp=2" "dp=2 sp=2 tp=2"')[0] == 0
