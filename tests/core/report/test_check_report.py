"""What ``meshkit check`` says, word for word and key by key."""

from __future__ import annotations

import json
from dataclasses import replace

from meshkit.core.report.verification import CheckReport, GroupTiming, Verification

ONE = GroupTiming(("dp",), 2, 2, 0.001, (1, 3), 0.002)
REPORT = CheckReport(
    rank=0,
    sizes={"dp": 2, "sp": 2, "tp": 1},
    launcher="slurm",
    device="cuda",
    backend="nccl",
    found=Verification((ONE, replace(ONE, axes=("dp", "sp"), num_groups=1)), 3, 0.5, "dp=1 sp=1"),
    built=1.25,
    checked=0.5,
)


def test_the_text_word_for_word() -> None:
    assert REPORT.as_text() == (
        "dp=2 sp=2 tp=1: 4 ranks, launcher slurm, device cuda, backend nccl; "
        "joined and built in 1.25 s\n"
        "OK  dp     2 groups of 2  4 members met in 1.000 ms, at most 2.000 ms on ranks 1, 3\n"
        "OK  dp sp  1 group of 2   2 members met in 1.000 ms, at most 2.000 ms on ranks 1, 3\n"
        "OK  tp     4 groups of 1  nothing to meet\n"
        "OK: 3 groups checked in 0.50 s; rank 3 (dp=1 sp=1) came last, by 500.000 ms"
    )


def test_the_json_key_by_key() -> None:
    told = json.loads(json.dumps(REPORT.as_dict()))
    assert list(told) == [
        *("ok", "sizes", "launcher", "device", "backend", "built", "checked"),
        *("groups", "slowest_rank", "waited", "coordinate"),
    ]
    assert told["groups"][0] == {
        "axes": ["dp"],
        "num_groups": 2,
        "group_size": 2,
        "seconds": 0.001,
        "slowest": [1, 3],
        "slowest_seconds": 0.002,
        "members": 4,
    }
    assert (told["built"], told["checked"], told["slowest_rank"]) == (1.25, 0.5, 3)
