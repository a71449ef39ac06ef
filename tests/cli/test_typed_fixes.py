"""The fixes that ``plan``, ``search`` and ``move`` print, typed: each line then runs."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.cli.processes import Answers

MODEL = "--model llama3-8b"
STEP = "--global-batch 64 --seq 8192"
LINES = (
    # an option that needs --model
    "plan dp=4 --seq 8192",
    "plan dp=4 --dtype fp32",
    "plan dp=4 --links a100",
    "plan dp=4 --memory 40",
    "plan dp=4 --shard ddp",
    "plan dp=4 --recompute full",
    # sizes that the model does not have
    f"plan pp=6 dp=1 tp=4 {MODEL} --nodes 3 --global-batch 60 --seq 8192",
    f"plan pp=3 dp=8 tp=8 {MODEL} --nodes 24 --global-batch 96 --seq 8192",
    f"plan dp=4 tp=64 {MODEL} --nodes 32 {STEP}",
    f"plan dp=2 tp=3 {MODEL} --nodes 1 --global-batch 6 --seq 8192",
    f"plan dp=4 sp=8 tp=8 {MODEL} --nodes 32 {STEP}",
    f"plan dp=2 sp=3 {MODEL} --nodes 1 --global-batch 6 --seq 8190",
    "plan dp=4 ep=3 --model mixtral-8x7b --nodes 3 --global-batch 60 --seq 8192",
    f"plan dp=8 tp=8 {MODEL} --nodes 8 --global-batch 60 --seq 8192",
    f"plan dp=8 tp=8 {MODEL} --nodes 8 --global-batch 64 --micro-batch 3 --seq 8192",
    f"plan dp=8 tp=8 {MODEL} --nodes 8 --global-batch 64 --accumulation-steps 3 --seq 8192",
    f"plan dp=2 tp=4 {MODEL} --nodes 1 --global-batch 4 --seq 8191",
    f"plan dp=4 cp=8 {MODEL} --nodes 4 --global-batch 4 --seq 100",
    f"plan dp=64,tp=1 dp=4,tp=16 dp=1,tp=64 {MODEL} --nodes 8 {STEP}",
    # names
    f"plan dp=8 --model llama3-8 --nodes 1 {STEP}",
    f"plan dp=8 --model meta-llama/Meta-Llama-3-8B --nodes 1 {STEP}",
    f"plan dp=8 --model qwen3 --nodes 1 {STEP}",
    "search --model mixtral --world 8 --nodes 1 --global-batch 8 --seq 4096",
    "plan dp=8 tp=8 --num-nodes 8 --micro-batch-size 4 --global-batch-size 256",
    f"plan dp=8 {MODEL} --nnodes 1 --seq-length 8192 --global-batch 64",
    "plan --tp 8 --nodes 1",
    "plan dp=8 tp=8 order=tp,dp",
    "plan dp=8 tp=8 nodes=8",
    "plan dp=8 tp=8 --order tp",
    "plan dp=4 --global-bacth 64",
    "plan dp=4 --global-batch 64",
    "plan dp=4 --micro-bacth=4",
    "plan dp=4 --accumulation-steps 4",
    "explain 0 dp=4 --batch-size 4",
    "eject dp=4 --global-bacth 64",
    "search --model llama3-8b --ranks 8 --nodes 1 --global-bacth 64 --seq 4096",
    "plan dp=4 tp=2 --ranks 8",
    "plan dp=4 tp=2 --nproc 8",
    "plan dp=4 tp=2 --gpus-per-node 4",
    "plan dp=4 tp=2 --backend gloo --verbose",
    # numbers of ranks, nodes and racks
    "plan tp=8 pp=4 --world-size 100",
    "plan dp=8 tp=8 --world-size 128",
    "plan dp=8 tp=8 --nodes 7",
    "search --model llama3-8b --world 64 --nodes 7 --global-batch 64 --seq 8192",
    "plan dp=8 tp=8 --nodes 8 --racks 3",
    "plan dp=8 tp=8 --place",
    "plan dp=-1 tp=8",
    "plan dp=8 tp=8 --nodes 8x8",
    f"plan dp=8 {MODEL} --nodes 1 --global-batch 64 --seq 8k",
    "plan foo=8 bar=8 --global-batch 64 --micro-batch 1",
    # warnings of a plan
    "plan dp=2 tp=4 --order tp,dp --nodes 2",
    "plan dp=4 tp=16 --nodes 8",
)
NO_FIX = (
    f"plan pp=3 dp=1 tp=8 {MODEL} --nodes 3 --global-batch 64 --seq 8192",  # 3 divides nothing
    "search --model llama3-8b --world 8 --nodes 1 --global-batch 8 --seq 8192 --tp 8",
    "move dp=4 o/dp i -> o i",
)


def ways_of(text: str) -> list[str]:
    """Return the alternatives of the fix of an error or a warning, without what explains them."""
    fix = re.sub(r"\s*\n\s+(?!Fix:)", " ", text).partition("Fix: ")[2].split("\n")[0]
    fix = fix.strip().removesuffix(".").removeprefix("for example ")
    return [way.partition(", which")[0] for way in re.split(r"[,;] or ", fix)]


def typed(line: str, way: str) -> str | None:
    """Return a line as a reader changes it by one way; None for a file that the reader has."""
    command, *words = shlex.split(line)
    if way.startswith("meshkit "):
        return way.removeprefix("meshkit ")
    if "FILE" in way:
        return None
    way = way.removesuffix(", without hyphens")
    new = shlex.split(way.partition(" in place of ")[0])
    if way.startswith("leave out"):
        words = without(words, new[2])
    elif " in place of " in way:
        old = shlex.split(way.partition(" in place of ")[2])
        kept = [word for word in words if word not in old and word != ",".join(old)]
        words = [*kept, *(new if len(words) - len(kept) == len(old) else [",".join(new)])]
    elif new[0].startswith("-"):
        words = [*without(words, new[0]), *new]
    else:
        for size in new:
            words = without(words, size.partition("=")[0])
        words = [*new, *words]
    return shlex.join([command, *words])


def without(words: list[str], name: str) -> list[str]:
    """Return words without an option and its value, however it is written, or without an axis."""
    plain = name.lstrip("-").replace("-", "_")
    at = next((i for i, word in enumerate(words) if word.split("=")[0].lstrip("-") == plain), None)
    at = next((i for i, word in enumerate(words) if word in {name, f"--{plain}"}), at)
    at = words.index("--world") if name == "--world-size" and "--world" in words else at
    if at is None:
        return words
    has_value = words[at].startswith("-") and "=" not in words[at]
    return words[:at] + words[at + 1 + has_value :]


@pytest.mark.parametrize("line", LINES)
def test_each_way_of_a_fix_runs(answer: Answers, line: str) -> None:
    _, printed, refusal = answer(line)
    ways = ways_of(refusal or printed)
    assert ways != [""], refusal
    for way in ways:
        new = typed(line, way)
        if new is None:
            continue
        code, printed, error = answer(new)
        assert code in (0, 1), f"{new}\n{error}"  # 1: a layout that does not fit
        assert refusal or "Fix:" not in printed, new  # the warning is gone


def test_the_nearest_layout_is_named(answer: Answers) -> None:
    _, _, error = answer(f"plan dp=4 tp=64 {MODEL} --nodes 32 {STEP}")
    assert error.endswith("Fix: dp=8 tp=32 in place of dp=4 tp=64.\n")
    _, _, error = answer(f"plan dp=2 --model lama3-8b --nodes 1 {STEP}")
    assert error.endswith("Fix: --model llama3-8b.\n")
    _, _, error = answer(f"plan dp=2 --model qwen3-14b --nodes 1 {STEP}")  # another model
    assert "or one of" in error


@pytest.mark.parametrize("line", NO_FIX)
def test_no_fix_is_better_than_a_wrong_one(answer: Answers, line: str) -> None:
    code, _, error = answer(line)
    assert code == 2
    assert "Fix:" not in error
