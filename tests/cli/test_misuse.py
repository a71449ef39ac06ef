"""Hundreds of wrong command lines: each ends soon, with one message, and a fix that is right."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshkit.cli import bench, main, ranks
from meshkit.launch import open_store
from tests.cli.processes import Answers

NUMBERS = (
    *("0", "-1", "-5", "1.5", "1e9", "nan", "inf", "0x10", "١٢"),
    *("", " ", "9" * 40, "2**8", "two"),
)
CONTROL = ("\x1b[31m", "a\x00b", "\x07", "\u202e4", "\r\n", "\x9b2J", "\ufeff8", "a\tb")
SIZES = ("dp=9223372036854775807", "dp=2147483647 tp=2147483647", f"dp={'9' * 20}", "dp=-2")
AXES = ("=4", "dp=", "dp==4", "dp=4=4", "dp=4 dp=2", "4", "dp", "dp:4", "dp=4,", ",", "'dp tp=2'")
AXES += ("dp=2 dp_shard=2", "a-b=2", "ranks=2", "timeout=9", "-dp 4", "--dp=4", "dp\uff1d4", "é=2")
COUNTS = ("--nodes", "--global-batch", "--micro-batch", "--accumulation-steps", "--world-size")
TEXTS = ("--order=dp-", "--order=xx", "--data=", "--data=tp,zz", "--groups=", "--groups='dp dp'")
MISSING = "/nonexistent/file"
OPTIONS = {
    "store --port=": ("-1", "65536", "1e3", "x", ""),
    "bench dp=2 -n 2 --sizes=": ("", ":", "9:1", "1K:2K:0", "x"),
    "bench dp=2 -n 2 --ops=": ("", ",", "all_reduc", "all_reduce,,x"),
    "bench dp=2 -n 2 --iters=": ("0", "-1", "x", "1e99"),
    "rehearse --world-size=": ("", "0", "-1", "x", "9" * 30),
    "rehearse --world-size=8 ": ("", MISSING, "--nodes=0 train.py", "--nodes=3 train.py"),
    "move tp=2 ": ("", "->", "s -> ", "s/xx -> s", "s/tp", "((("),
    "move tp=2 's/tp -> s' ": ("s=0", "s=-1", "s=1.5", "s=", "q=4", "s=3"),
}
OTHERS = (
    *("search", f"plan dp=4 --hosts {MISSING}", "plan dp=4 --hosts /", "plan dp=4 --html /"),
    *("plan dp=4 --hosts /dev/zero", "plan dp=8 --hosts /dev/null", "plan --json dp=0"),
    *(f"plan dp=4 --html {MISSING}", "plan dp=2000000 --nodes 2000000"),
    *("plan dp=4 --nodes 2000000", "move dp=4 'o/dp -> o' o=8 --dtype=int3"),
    *("nosuch", "", "help nosuch", "--help --json", "help help help", "plan --nosuch", "-"),
)
# exit code 2, with a fix
MISUSE = {
    "doctor": ("--timeout=0", "--timeout=-1", "--timeout=nan", "--timeout=soon", "--timeout=''"),
    "plan": (
        *("dp=4 sp=2 --world-size 6", "dp=-1 tp=2", "dp=4 sp=3 --nodes 5", "dp=4 --nodes 7,8"),
        *("dp=4 --global-batch 100 --micro-batch 3", "dp=8 ep=4 --world-size 8", "dp=4 nodes=2"),
        *("x=8 --order x --global-batch 8 --micro-batch 1", "dp=4,tp=2 dp=4", "dp=4 --groups dd"),
        *("dp=2 ep=2 --global-batch 10 --micro-batch 1 --data dd", "dp=4 --world-size x", "four"),
        *("dp=4 --nodes 2 --model llama3-8b", "dp=four", "dp=1_0", "dp=4 --nodes 2,", "dp=4.0"),
        *("dp=4 --nodes 2 --model llama-3 --global-batch 8 --seq 8", "dp=4 --racks 2"),
        *("dp=4 --nodes 4 --racks 3", "dp=4 --data dp", "dp=4 --seq 8", "dp=4 --recompute full"),
        *("dp=2 tp=4 --place", "dp=4 dp=2", "", "dp=4 --nodes", "--dp 4", "dp=4 --node=2"),
    ),
    "explain": (
        *("9 dp=4 --seed 0", "dp=4", "-1 dp=4", "5", "5 dp=4 --all", "5 four", "0 dp=4 --seed x"),
        *("1 dp=4 sp=2 cp=2 --seq 7", "--all dp=100000 --json", "5 dp=4 sp=2 --world-size 6"),
        "0 dp=1 --global-batch 4000000000 --micro-batch 4000000000 --json",
    ),
    "move": ("'dp=4 tp=2' 'o/dq i -> o i' o=4 i=4", "dp=4 'o/dp i -> o i' o=4", "dp=4 o=4"),
    "check": (
        *("dp=3 sp=2 -n 8", "x=2 -n 2", "dp=4 sp=2", "dp=2 dp=2 -n 2", "timeout=2 -n 2"),
        *("dp=2 --groups 'dp dp' -n 2", "dp=2.0 -n 2", "dp=\u0662 -n 2", "'' -n 2"),
    ),
    "bench": (
        *("dp=3 sp=2 -n 8", "dp=4 sp=2 --axes 'dp,dp sp'", "dp=1 tp=1 -n 1"),
        *("dp=2 -n 2 --axes 'dp,zz zz'", "dp=2 -n 2 --sizes 1K:x"),
        *("dp=2 -n 2 --min-busbw zz=1", f"dp=2 -n 2 --against {MISSING}"),
    ),
    "preflight": ("dp=3 sp=2 -n 8", "dp=2 -n 2 --skip all", f"dp=2 -n 2 --rehearse {MISSING}"),
    "store": ("--port 70000",),
    "help": ("plam",),
    "diff": ("dp=2 dp=4",),
    "helo": ("-n 2",),
    "xyz": ("",),
    "dp=4": ("tp=2",),
}


def lines() -> Iterator[str]:
    """Yield hostile lines of every command."""
    for command in ("plan", "explain 0", "check -n 2", "bench -n 2"):
        yield from (f"{command} {words}" for words in (*SIZES, *AXES))
    for option in COUNTS:
        yield from (f"plan dp=4 {option}={shlex.quote(number)}" for number in NUMBERS)
    yield from (f"plan dp=4 tp=2 {words}" for words in TEXTS)
    commands = (*main.COMMANDS, "bogus")
    yield from (f"{command} {word!r}" for word in CONTROL for command in commands)
    yield from (f"explain {shlex.quote(number)} dp=4" for number in NUMBERS)
    yield from (f"hello -n={shlex.quote(number)}" for number in NUMBERS)
    for option, texts in OPTIONS.items():
        yield from (f"{option}{shlex.quote(text)}" for text in texts)
    model = "search --world-size 8 --nodes 1 --global-batch 8 --seq 128 --model"
    yield from (f"{model} {path}" for path in (MISSING, "/", "/dev/null", "/etc/hostname"))
    given = f"{model} llama3-8b"
    yield from (f"{given} {word}" for word in ("--memory=-1", "--memory=nan", "--nodes=7"))
    yield from OTHERS


HOSTILE = [*lines()]
REFUSED = [f"{command} {words}" for command in MISUSE for words in MISUSE[command]]


@pytest.fixture(autouse=True)
def _starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a wrong line started ranks or a store")

    for module in (ranks, bench):
        monkeypatch.setattr(module, "spawn_ranks", started)
        monkeypatch.setattr(module, "run_under_launcher", started)
    monkeypatch.setattr(open_store, "serve_store", started)


@pytest.mark.parametrize("line", REFUSED)
def test_misuse_has_exit_code_2_and_a_fix(line: str, answer: Answers) -> None:
    code, out, error = answer(line)
    text = json.loads(out)["error"]["text"] if "--json" in line else error
    assert code == 2
    assert text.startswith(f"meshkit {line.split()[0]}")
    assert text.splitlines()[-1].startswith("  Fix: ")


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("hello 4", "meshkit hello -n 4"),
        ("hello --device cpu 4", "meshkit hello --device cpu -n 4"),
        ("hello --nproc-per-node 2", "meshkit hello --world-size 2"),
        ("hello -n 2 4", "meshkit hello -n 2"),
        ("rehearse train.py", "for example meshkit rehearse --world-size 64 train.py"),
        ("rehearse --nproc 8 train.py --lr 3", "meshkit rehearse --world-size 8 train.py --lr 3"),
        ("rehearse -np 8 train.py", "meshkit rehearse -n 8 train.py"),
        ("rehearse train.py -n 8", "for example meshkit rehearse --world-size 8 train.py"),
        ("rehearse 8 train.py", "for example meshkit rehearse --world-size 8 train.py"),
        ("rehearse --wrold-size 8 train.py --ops x", "meshkit rehearse --world-size 8 train.py"),
        ("bench dp=2 -np 2", "meshkit bench dp=2 -n 2"),
        ("bench dp=2 -np2", "meshkit bench dp=2 -n=2"),
        ("bench -np 2", "for example meshkit bench dp=2 -n 2"),
        ("check -n 2", "for example meshkit check dp=2 -n 2"),
        ("plan dp=8 -N 2", "meshkit plan dp=8 --nodes 2"),
        ("plan --gpus 8", "for example meshkit plan dp=8 --world-size 8"),
        ("plan --bogus", "for example meshkit plan dp=4 sp=2 "),
        ("plan dp=4 --verbose", "meshkit plan dp=4"),
        ("plan dp=4 -v --amp 2", "meshkit plan dp=4"),
        ("plan --svg a.svg dp=4", "meshkit plan dp=4"),
        ("doctor --debug", "meshkit doctor"),
        (
            "rehearse --verbose train.py -n 8",
            "for example meshkit rehearse --world-size 8 train.py",
        ),
        ("check dp=2 -n 2 --backend gloo", "meshkit check dp=2 -n 2 --device cpu"),
        ("check dp=2 -n 2 --backend=gloo", "meshkit check dp=2 -n 2"),
        ("check --backend nccl", "for example meshkit check dp=4 --device cuda"),
        ("plan dp=4 tp=2 --gpus-per-node 4", "meshkit plan --nodes 2 dp=4 tp=2"),
        ("plan --nproc_per_node=2 dp=4,tp=2", "meshkit plan --nodes 4 dp=4,tp=2"),
        ("plan dp=4 --gpus-per-node 3", "meshkit plan dp=4"),
        ("plan --gpus-per-node 8", "for example meshkit plan dp=4 sp=2 "),
        ("plan 8", "an axis, = and its size, for example dp=8."),
        ("plan dp=4 8", "an axis, = and its size, for example tp=8."),
        ("plan dp 8", "an axis, = and its size, for example dp=8."),
        ("plan dp:8", "an axis, = and its size, for example dp=8."),
        ("plan dp8 tp2", "an axis, = and its size, for example dp=8."),
        ("plan dp = 8", "an axis, = and its size, for example dp=8."),
        ("plan dp= 8", "a size of 1 or more, for example dp=8;"),
        ("plan -dp 8", "dp=8, without hyphens."),
        ("plna dp=4", "meshkit plan dp=4"),
        ("show dp=4", "meshkit plan dp=4"),
        ("--nodes 2 plan dp=4", "meshkit plan --nodes 2 dp=4"),
        ("plan --tensor-model-parallel-size 2 -n 8", "tp=2, without hyphens."),
        ("plan --tp=2 -n 8", "tp=2, without hyphens."),
        ("plan dp=8 --gpu h100", "meshkit plan dp=8 --links h100"),
        ("store 29400", "for example meshkit store --port=29400"),
        ("search llama3-8b -n 64", "for example meshkit search --model llama3-8b --world-size 64 "),
        ("eject dp=4 train.py", "--output train.py."),
        ("preflight dp=2 -n 2 train.py", "--rehearse train.py."),
        ("rehearse -n 8 python train.py --lr 3", "train.py --lr 3 in place of python train.py "),
        ("plan", "for example meshkit plan dp=4 sp=2 --nodes 2 "),
        ("explain --rank 5 dp=4 sp=2", "meshkit explain 5 dp=4 sp=2"),
        ("plan --rank=5 dp=4 sp=2", "meshkit explain 5 dp=4 sp=2"),
        ("run train.py --lr 3", "torchrun --nproc-per-node 4 train.py --lr 3"),
        ("launch", "torchrun --nproc-per-node 4 train.py"),
        ("version", "meshkit --version"),
        ("plan dp=4 tp=2 --order tp dp", "--order tp,dp."),
        ("plan dp=4 tp=2 --groups dp tp", "--groups dp,tp."),
        (
            "search --model llama3-8b --world-size 8 --nodes 1 --global-bacth 64",
            "for example meshkit search --seq 8192 --model llama3-8b --world-size 8 --nodes 1 ",
        ),
    ],
)
def test_a_fix_keeps_a_number_of_ranks_and_shows_a_line(
    line: str, fix: str, answer: Answers
) -> None:
    code, _, error = answer(line)
    assert code == 2
    assert error.splitlines()[-1].startswith(f"  Fix: {fix}")


def test_a_misspelt_option_is_named_beside_those_that_are_missing(answer: Answers) -> None:
    _, _, error = answer("search --model llama3-8b --world-size 8 --nodes 1 --global-bacth 64")
    assert "there is no option --global-bacth.\n" in error
    assert "It may be --global-batch; then the following arguments are required: --seq.\n" in error


def test_a_rank_by_name_and_an_operation_in_the_words_of_nccl_are_understood(
    answer: Answers,
) -> None:
    assert answer("explain rank=5 dp=4 sp=2") == answer("explain 5 dp=4 sp=2")
    assert answer("explain 5 -n 8") == answer("explain 5 dp=8")
    assert answer("plan help") == answer("help plan")
    assert bench.read_operations("allreduce,all-gather,AllGather") == ("all_reduce", "all_gather")


@pytest.mark.parametrize("command", ["plan", "explain 5", "search"])
def test_commands_without_ranks_take_their_number_as_n(command: str, answer: Answers) -> None:
    line = {"search": "--model llama3-8b --nodes 1 --global-batch 64 --seq 4096"}
    outcomes = [
        answer(f"{command} {line.get(command, 'dp=-1 tp=2')} {option} 8")
        for option in ("-n", "--world-size")
    ]
    assert outcomes[0][0] == 0, outcomes
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("line", HOSTILE)
def test_a_hostile_line_is_one_message(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    code = main.main(words(line))
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert time.process_time() - began < 2
    assert code in (0, 1, 2), code
    assert "Traceback" not in text
    assert all(c.isprintable() or c == "\n" for c in text), repr(text)
    if code == 2:
        assert printed.err.count("Fix:") <= 1, text
        check_fix(text)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".html"]


def words(line: str) -> list[str]:
    """Return the words of a line; control characters are written as Python writes them."""
    if "\\" in line or any(not c.isprintable() for c in line):
        command, _, word = line.partition("'")
        return [*command.split(), word.rstrip("'").encode().decode("unicode_escape")]
    return shlex.split(line)


def check_fix(text: str) -> None:
    """Check that a line that a fix types in full is no misuse itself."""
    for fix in (line.partition("Fix:")[2].strip() for line in text.splitlines() if "Fix:" in line):
        assert fix
        typed = fix.removesuffix(".")
        if typed.startswith(("meshkit plan", "meshkit explain", "meshkit move")):
            assert main.main(shlex.split(typed)[1:]) != 2, fix
