"""``meshkit diff``: two grids compared, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

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


def test_samples_of_an_unknown_role_are_unknown(answer: Answers) -> None:
    _, text, _ = answer('diff "x=4" "dp=4"')
    assert "data      unknown, as no role is known for x: --data AXES\n" in text
    assert '"data": null' in answer('diff "x=4" "dp=4" --json')[1]


def test_experts_carved_out_of_dp_own_the_samples_that_they_had(answer: Answers) -> None:
    _, text, _ = answer('diff "dp=8" "dp=2 ep=4" --global-batch 32 --micro-batch 2')
    assert "data      dp ep 8 -> 8; 0 ranks own other samples of a step\n" in text


def test_two_million_ranks(answer: Answers) -> None:
    began = time.process_time()
    code, text, _ = answer("diff dp=2097152 tp=2097152")
    assert time.process_time() - began < 6  # 1 where nothing else runs
    assert code == 0
    assert "dp    2097152        1  2097152 ranks: 0-2097151\n" in text


def test_the_fix_works(answer: Answers) -> None:
    assert answer('diff "x=2" "y=-1" --world-size 8')[0] == 0
    assert answer('diff "dp=4 sp=2" "dp=2 sp=2 tp=2"')[0] == 0
