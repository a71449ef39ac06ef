"""All ranks compare what they asked for before a group exists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshkit
from tests.live import agree_jobs as jobs

SLACK = 5.0  # seconds; a disagreement is told as soon as all have come, here in milliseconds
ABOUT = "ranks disagree about the mesh; no process group was created."


def test_every_field_of_a_request_is_perturbed_below() -> None:
    (fields,) = meshkit.spawn(jobs.fields_compared, 1)
    assert set(fields) == {*jobs.PASSED, *jobs.ALTERED}


@pytest.mark.parametrize(("ranks", "odd"), [(2, [0, 1]), (4, [0, 1, 2, 3]), (8, [0, 5, 7])])
def test_each_field_on_each_rank_in_turn(ranks: int, odd: list[int]) -> None:
    by_rank = meshkit.spawn(jobs.each_field_on_each_rank, ranks, (odd,), timeout=300)
    assert [(left, total) for _, left, total in by_rank] == [(0, ranks)] * ranks
    for key in by_rank[0][0]:
        field, one = key
        told = [everything[key] for everything, _, _ in by_rank]
        assert len({(kind, text) for kind, text, _, _ in told}) == 1, key
        kind, text, requests, _ = told[0]
        assert (kind, text.splitlines()[0]) == ("DisagreementError", ABOUT)
        assert max(seconds for *_, seconds in told) < SLACK
        assert set(requests) == set(range(ranks))
        assert (ranks == 2 and one == 0) or f"  rank {one} (host " in text, text
        shown = "dp=" if field == "sizes" else f"{field}="
        assert shown in text, text


def test_each_comparison_is_needed() -> None:
    """Where one field is not compared, a rank that differs in it passes unnoticed."""
    for noticed in meshkit.spawn(jobs.without_each_comparison, 4, (2,), timeout=120):
        assert noticed == dict.fromkeys((*jobs.PASSED, *jobs.ALTERED), "built")


def test_thirty_two_ranks() -> None:
    told = meshkit.spawn(jobs.refused_sizes, 32, (17,), timeout=300)
    assert {kind for kind, *_ in told} == {"DisagreementError"}
    lines = told[0][1].splitlines()
    assert lines[1] == "  ranks 0-16 and 18-31:  dp=32"
    assert lines[2].startswith("  rank 17 (host ")
    assert len({text for _, text, *_ in told}) == 1


@pytest.mark.parametrize("first", [True, False], ids=["joined", "not joined yet"])
@pytest.mark.parametrize("odd", [0, 2])
def test_a_refused_request_is_quoted_to_the_others_at_once(odd: int, first: bool) -> None:
    by_rank = meshkit.spawn(jobs.refused_on, 4, (odd, first), timeout=120)
    assert [total for _, total in by_rank] == [4] * 4
    for rank, (told, _) in enumerate(by_rank):
        kind, text, _, seconds = told
        assert seconds < SLACK
        if rank == odd:
            assert kind == "SpecError"
            assert text.startswith("build_mesh({'dp': 3}, arrival_timeout=60) needs 3 ranks, ")
        else:
            assert kind == "DisagreementError"
            lines = text.splitlines()
            assert lines[0] == ABOUT
            assert lines[1].startswith(f"  rank {odd} (host ")
            assert "gave up: SpecError: build_mesh({'dp': 3}, arrival_timeout=60)" in lines[1]


def test_a_rank_that_cannot_create_its_groups_is_told_to_the_others() -> None:
    by_rank = meshkit.spawn(jobs.one_cannot_create, 4, (2,), timeout=120)
    assert [total for _, total in by_rank] == [4] * 4
    kinds = [told[0] for told, _ in by_rank]
    assert kinds == ["DisagreementError", "DisagreementError", "OSError", "DisagreementError"]
    text = by_rank[0][0][1]
    assert text.startswith("a rank could not create its groups of the mesh; all are closed again.")
    assert "gave up: OSError: too many open files" in text


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    "error", [RuntimeError("Gloo: too many open files"), OSError("too many open files")]
)
def test_a_group_that_fails_on_one_rank_while_others_connect(number: int, error: Exception) -> None:
    """They wait for it as long as one try takes, are told who it was, and all can build again."""
    by_rank = meshkit.spawn(jobs.one_group_fails, 4, (1, number, error), timeout=120)
    for rank, (told, axes, calls) in enumerate(by_rank):
        kind, text, seconds = told
        assert axes == "('dp', 'sp')"
        if rank == 1:
            assert (kind, calls >= number) == (type(error).__name__, True)
        else:
            assert kind == "DisagreementError", text
            assert "rank 1 (host " in text
            assert f"gave up: {type(error).__name__}: {error}" in text
        assert seconds < 10 + 3


def agreed(by_rank: list[Any], **options: Any) -> list[Any]:
    return meshkit.spawn(jobs.values, 4, (by_rank, options), timeout=120)


def test_a_value_of_ones_own() -> None:
    assert agreed([1e-3] * 4, dp=4) == [("built", 0)] * 4
    told = agreed([1e-3, 1e-3, 2e-3, 1e-3], dp=4)
    for (kind, text, requests, _), left in told:
        assert (kind, left) == ("DisagreementError", 0)
        lines = text.splitlines()
        assert lines[:2] == [
            "ranks disagree about learning rate.",
            "  ranks 0-1 and 3:  learning rate=0.001",
        ]
        assert lines[2].startswith("  rank 2 (host ")
        assert lines[2].endswith("):  learning rate=0.002")
        assert lines[3:] == ["  Fix: pass equal learning rate on every rank."]
        assert requests[2] == "learning rate=0.002"


def test_a_value_over_a_part_of_the_world() -> None:
    told = agreed([1, 2, 1, 3], dp=2, ranks=[0, 2])
    assert [one[0] for one in told[::2]] == ["built", "built"]
    assert {one[0][0] for one in told[1::2]} == {"CoordinateError"}


@pytest.mark.parametrize("calls", [("build", "agree"), ("agree", "other")])
def test_different_calls_are_told(calls: tuple[str, str]) -> None:
    told = meshkit.spawn(jobs.different_calls, 3, calls, timeout=60)
    assert {kind for kind, *_ in told} == {"DisagreementError"}
    assert len({text for _, text, *_ in told}) == 1
    assert max(seconds for *_, seconds in told) < SLACK
    assert "  rank 1 (host " in told[0][1]


SCRIPT = """
import json, sys, time
import meshkit
rank = meshkit.detect().rank
began = time.monotonic()
try:
    meshkit.build_mesh(dp=4 if rank != 1 else 2, sp=1 if rank != 1 else 2)
except meshkit.DisagreementError as error:
    told = [str(error), time.monotonic() - began]
    json.dump(told, open(f"{sys.argv[1]}/{rank}.json", "w"))
meshkit.shutdown()
"""


def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert len({text for text, _ in told}) == 1
    lines = told[0][0].splitlines()
    assert lines[1] == "  ranks 0 and 2-3:  dp=4 sp=1"
    assert lines[2].endswith("):  dp=2 sp=2")
