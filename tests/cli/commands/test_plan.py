"""``meshkit plan``: its text, its JSON, its errors and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meshkit.cli import terminal
from meshkit.cli.main import main

ROOT = Path(__file__).parents[3]

Answers = Callable[[str], tuple[int, str, str]]


def run(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A real run of ``python -m meshkit``."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "meshkit", *shlex.split(command)],
        env={**os.environ, **environ},
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


SHEET = """\
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

TWIN = """\
tp=4 dp=2: 8 ranks on 2 nodes of 4

axis  size  stride  groups  first group  crosses nodes
----  ----  ------  ------  -----------  -------------
tp       4       2       2  0, 2, 4, 6   yes
dp       2       1       4  0, 1         no

+ node 0 ----------+  + node 1 ----------+
|       dp=0  dp=1 |  |       dp=0  dp=1 |
| tp=0     0     1 |  | tp=2     4     5 |
| tp=1     2     3 |  | tp=3     6     7 |
+------------------+  +------------------+

groups   3 on each rank, the default group included; 7 in all
warning  tp crosses nodes: 2 of 2 groups span 2 nodes.
           tp communicates in every layer, so it needs the fastest links.
           Fix: meshkit plan tp=4 dp=2 --order 'dp tp' --nodes 2
"""

BATCH = "--global-batch 1024 --micro-batch 4"
BIG = "--global-batch 5000 --micro-batch 1"


def test_the_sheet_of_a_job_word_for_word(answer: Answers) -> None:
    assert answer(f"plan dp=4 sp=2 tp=1 --nodes 2 {BATCH}") == (0, SHEET, "")


def test_its_ascii_twin_on_a_terminal_that_draws_no_lines() -> None:
    done = run("plan tp=4 dp=2 --order 'tp dp' --nodes 2", PYTHONIOENCODING="ascii", COLUMNS="80")
    assert (done.returncode, done.stdout, done.stderr) == (0, TWIN, "")


def test_the_fix_of_the_warning_warns_no_more(answer: Answers) -> None:
    for first in ("plan tp=4 dp=2 --order 'tp dp' --nodes 2", "plan dp=2 tp=8 --nodes 4"):
        _, text, _ = answer(first)
        fix = text.rpartition("Fix: meshkit ")[2].strip().removesuffix(".").partition(", as ")[0]
        code, text, _ = answer(fix)
        assert code == 0
        assert "tp" in text
        assert "warning" not in text


def test_nothing_is_coloured_and_the_columns_are_kept() -> None:
    done = run("plan dp=64 sp=16 tp=8 --nodes 64", COLUMNS="60", NO_COLOR="1", FORCE_COLOR="1")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 60
    wide = run("plan dp=64 sp=16 tp=8 --nodes 64", COLUMNS="160").stdout
    assert max(map(len, wide.splitlines())) > 80


def test_without_nodes_it_is_the_grid_alone(answer: Answers) -> None:
    code, text, _ = answer("plan dp=2 sp=2")
    assert code == 0
    assert text == (
        "dp=2 sp=2: 4 ranks\n\n"
        "axis  size  stride  groups  first group\n"
        "────  ────  ──────  ──────  ───────────\n"
        "dp       2       2       2  0, 2\n"
        "sp       2       1       2  0, 1\n\n"
        "      sp=0  sp=1\ndp=0     0     1\ndp=1     2     3\n\n"
        "groups  3 on each rank, the default group included; 5 in all\n"
    )


def test_the_json(answer: Answers) -> None:
    code, text, _ = answer(
        f"plan dp=-1 tp=2 --world-size 8 --nodes 2 --groups 'dp tp' --json {BATCH}"
    )
    assert code == 0
    reported = json.loads(text)
    assert reported["axes"][0] == {
        **{"axis": "dp", "size": 4, "stride": 2, "groups": 2, "first_group": [0, 2, 4, 6]},
        **{"crossing": 2, "spans": 2},
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
        "groups_per_rank": 3,
        "groups": 7,
        "warnings": [],
        "placement": None,
    }


def test_sizes_are_nested_and_inferred_as_in_build_mesh(answer: Answers) -> None:
    assert answer("plan tp=2 sp=2 --world-size 12")[1].startswith("dp=3 sp=2 tp=2: 12 ranks\n")
    assert answer("plan tp=2 sp=2")[1].startswith("dp=1 sp=2 tp=2: 4 ranks\n")
    assert answer("plan tp=2 dp=-1 --world-size 4 --order 'tp dp'")[1].startswith(
        "tp=2 dp=2: 4 ranks\n"
    )


def test_nodes_that_differ(answer: Answers) -> None:
    _, text, _ = answer("plan dp=15 --nodes 7,8")
    assert text.startswith("dp=15: 15 ranks on 2 nodes of 7 and 8\n")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (
            "plan dp=4 sp=2 --world-size 6",
            "meshkit plan dp=4 sp=2 --world-size 6 needs 8 ranks, the world has 6.\n"
            "  dp 4 x sp 2 = 8; --world-size 6.\n"
            "  Fix: start 8 ranks, or meshkit plan sp=2 --world-size 6, which gives dp=3.",
        ),
        (
            "plan dp=-1 tp=2",
            "meshkit plan dp=-1 tp=2: there is nothing to infer dp from.\n"
            "  Fix: for example meshkit plan dp=-1 tp=2 --world-size 16",
        ),
        (
            "plan dp=4 sp=3 --nodes 5",
            "meshkit plan dp=4 sp=3 --nodes 5: 12 ranks do not divide over 5 nodes.\n"
            "  Fix: meshkit plan dp=4 sp=3 --nodes 4, or meshkit plan dp=4 sp=3 --nodes 6",
        ),
        (
            "plan dp=4 --nodes 9",
            "meshkit plan dp=4 --nodes 9: 4 ranks do not divide over 9 nodes.\n"
            "  Fix: meshkit plan dp=4 --nodes 4",
        ),
        (
            "plan dp=20 --nodes 9",
            "meshkit plan dp=20 --nodes 9: 20 ranks do not divide over 9 nodes.\n"
            "  Fix: meshkit plan dp=20 --nodes 5, or meshkit plan dp=20 --nodes 10",
        ),
        (
            "plan dp=8 --nodes 99999999999",
            "meshkit plan dp=8 --nodes 99999999999: 8 ranks do not divide over 99999999999 nodes.\n"
            "  Fix: meshkit plan dp=8 --nodes 8",
        ),
        (
            "plan seq=1 --order seq --nodes 5",
            "meshkit plan seq=1 --order seq --nodes 5: 1 rank does not divide over 5 nodes.\n"
            "  Fix: meshkit plan seq=1 --order seq --nodes 1",
        ),
        (
            "plan dp=4 --nodes 7,8",
            "meshkit plan dp=4 --nodes 7,8: the nodes hold 15 ranks, the grid has 4.\n"
            "  Fix: nodes whose ranks add up to 4, or --nodes 1.",
        ),
        (
            "plan dp=4 --global-batch 100 --micro-batch 3",
            "meshkit plan dp=4 --global-batch 100 --micro-batch 3: "
            "100 is not a multiple of dp 4 x micro_batch 3 = 12.\n"
            "  Nearest global batches: 96 and 108.\n"
            "  Micro batches that divide 100 over dp 4: 1, 5, 25.\n"
            "  Fix: meshkit plan dp=4 --global-batch 96 --micro-batch 3, "
            "or meshkit plan dp=4 --global-batch 108 --micro-batch 3, "
            "or meshkit plan dp=4 --global-batch 100 --micro-batch 1",
        ),
        (
            "plan x=8 --order x --global-batch 8 --micro-batch 1",
            "meshkit plan x=8 --order x --global-batch 8 --micro-batch 1: "
            "nothing says whether ranks along x share samples.\n"
            "  The roles of the axes, by their names: x unknown.\n"
            "  Fix: meshkit plan x=8 --order x --global-batch 8 --micro-batch 1 --data x, "
            "or meshkit plan x=8 --order x --global-batch 8 --micro-batch 1 --data ''",
        ),
        (
            "plan dp=2 ep=2 --global-batch 10 --micro-batch 1 --data dd",
            "meshkit plan dp=2 ep=2 --global-batch 10 --micro-batch 1 --data dd: "
            "there is no axis 'dd'.\n"
            "  The axes are dp, ep.\n"
            "  Fix: did you mean dp?",
        ),
        (
            "plan dp=2 ep=2 --global-batch 10 --micro-batch 1",
            "meshkit plan dp=2 ep=2 --global-batch 10 --micro-batch 1: "
            "10 is not a multiple of dp 4 x micro_batch 1 = 4.\n"
            "  Nearest global batches: 8 and 12.\n"
            "  Micro batches that divide 10 over dp 4: none.\n"
            "  dp 2 x ep 2 = 4 divides the samples.\n"
            "  Fix: meshkit plan dp=2 ep=2 --global-batch 8 --micro-batch 1, "
            "or meshkit plan dp=2 ep=2 --global-batch 12 --micro-batch 1",
        ),
        (
            "plan dp=8 ep=4 --world-size 8",
            "meshkit plan dp=8 ep=4 --world-size 8 needs 32 ranks, the world has 8.\n"
            "  dp 8 x ep 4 = 32; --world-size 8.\n"
            "  Ranks along ep read different samples, so 8 data-parallel ranks are dp 2 x ep 4.\n"
            "  Fix: meshkit plan dp=2 ep=4 --world-size 8, "
            "or meshkit plan dp=8 --world-size 8 for the dense layers alone, or start 32 ranks.",
        ),
        (
            "plan shard=2 dp=2",
            "meshkit plan shard=2 dp=2: the axis shard has no standard position.\n"
            "  The standard order is pp dp ep cp sp tp, the outermost axis first.\n"
            "  An axis of another name may be a misspelt option, unless order= names it.\n"
            "  Fix: give its position: meshkit plan shard=2 dp=2 --order 'shard dp'",
        ),
        (
            "plan dp=4 --groups dd",
            "meshkit plan dp=4 --groups dd: there is no axis 'dd'.\n"
            "  The axes are dp.\n"
            "  Fix: did you mean dp?",
        ),
        (
            "plan dp=4 dp=2",
            "meshkit plan dp=4 dp=2: dp has two sizes.\n  Fix: give dp once.",
        ),
        (
            "plan four",
            "meshkit plan four: 'four' is not the size of an axis.\n"
            "  Fix: an axis, = and its size, for example dp=4.",
        ),
        *(
            (
                f"plan dp={size}",
                f"meshkit plan dp={size}: the size of dp is '{size}'.\n"
                "  Fix: a size of 1 or more, for example dp=4; or dp=-1, which infers it.",
            )
            for size in ("four", "0", "-2", "4.0", "1_0")
        ),
        (
            "plan dp=99999999999",
            "meshkit plan dp=99999999999: 99999999999 ranks are too many.\n"
            "  Fix: at most 2097152 ranks.",
        ),
    ],
)
def test_what_cannot_be_is_one_message_and_misuse(
    answer: Answers, command: str, error: str
) -> None:
    assert answer(command) == (2, "", error + "\n")


def test_a_number_that_is_none_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    refused = (("--world-size", "x"), ("--nodes", "2,"), ("--micro-batch", "0"))
    for option, text in refused:
        assert main(["plan", "dp=4", option, text]) == 2
        wrong = text.split(",")[-1]
        first, fix = capsys.readouterr().err.splitlines()
        typed = f"meshkit plan dp=4 {option} {text}"
        assert first == f"{typed}: {option}: '{wrong}' is not a whole number of 1 or more."
        assert fix.startswith("  Fix: for example meshkit plan ")


PURE = """
import sys
from meshkit.cli import terminal
from meshkit.cli.main import main
code = main({0!r})
print(code, 'numpy' in sys.modules, 'torch' in sys.modules)
"""


@pytest.mark.parametrize(
    "command",
    [
        "plan dp=4 --nodes 2 --json",
        "explain 1 dp=4 --nodes 2 --json --seed 1 --seq 8",
        "diff dp=4 dp=2 --json",
    ],
)
def test_no_torch_is_imported(command: str) -> None:
    code = PURE.format(shlex.split(command))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "0 True False", done.stderr


def test_a_hundred_thousand_ranks(answer: Answers) -> None:
    began = time.process_time()
    code, text, _ = answer(f"plan pp=10 dp=1250 tp=8 --nodes 12500 {BIG}")
    assert time.process_time() - began < 1  # 0.05 where nothing else runs
    assert code == 0
    assert len(text.splitlines()) < 60
    assert "pp=10 dp=1250 tp=8: 100000 ranks on 12500 nodes of 8\n" in text
    assert "... 12496 nodes more ...\n" in text
    assert "99999" in text


DEALT = "a\nb\n" * 4

PLACED = """\
dp=2 tp=4: 8 ranks on 2 nodes of 4, not in blocks: node 0 has ranks 0, 2, 4, 6

axis  size  stride  groups  first group  crosses nodes
----  ----  ------  ------  -----------  -------------
dp       2       4       4  0, 1         yes
tp       4       1       2  0, 2, 4, 6   no

+ node 0 ----------------------+  + node 1 ----------------------+
|       tp=0  tp=1  tp=2  tp=3 |  |       tp=0  tp=1  tp=2  tp=3 |
| dp=0     0     2     4     6 |  | dp=1     1     3     5     7 |
+------------------------------+  +------------------------------+

groups  3 on each rank, the default group included; 7 in all
placed  a node holds tp=4; a step sends 4 x dp out of the busiest node, 256 x dp
          before
          next best: a node holds dp=2 tp=2; a step sends 128 x dp out of the
            busiest node
"""


def test_hosts_from_a_file_and_ranks_placed_on_them(
    answer: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, picture = tmp_path / "hosts", tmp_path / "grid.svg"
    file.write_text(DEALT)
    command = f"plan dp=2 tp=4 --hosts {file}"
    monkeypatch.setattr(terminal, "get_line_characters", lambda: "")
    _, printed, _ = answer(command)
    assert "warning  tp crosses nodes: 2 of 2 groups span 2 nodes." in printed
    assert f"or meshkit {command} --place" in " ".join(printed.split())  # what is typed next
    wrote = f"\nwrote {picture}: 8 ranks, 4 kB\n"
    assert answer(f"{command} --place --svg {picture}") == (0, PLACED + wrote, "")
    assert "<title>rank 2\ndp=0 tp=1\nnode 0<" in picture.read_text()
    _, printed, _ = answer(f"{command} --place --json")
    placement = json.loads(printed)["placement"]
    assert placement["ranks"] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert (placement["cost"], placement["before"]) == ({"node": 4.0}, {"node": 256.0})


def test_what_cannot_be_of_hosts(answer: Answers, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(DEALT)
    assert answer("plan dp=2 tp=4 --place") == (
        2,
        "",
        "meshkit plan dp=2 tp=4 --place: the nodes of the ranks are unknown.\n"
        "  Fix: for example meshkit plan dp=2 tp=4 --nodes 2 --place, or --hosts FILE.\n",
    )
    assert answer("plan cp=1 dp=1 sp=7 --place")[2].splitlines()[-1] == (
        "  Fix: for example meshkit plan cp=1 dp=1 sp=7 --nodes 7 --place, or --hosts FILE."
    )
    line = f"meshkit plan dp=16 --hosts {file}: {file} has 8 ranks on 2 nodes of 4, "
    assert answer(f"plan dp=16 --hosts {file}") == (
        2,
        "",
        f"{line}not in blocks: node 0 has ranks 0, 2, 4, 6, the grid has 16.\n"
        "  Fix: 16 lines, one for each rank.\n",
    )
    file.write_text("a r1\na slots=8\n")
    assert answer(f"plan dp=2 --hosts {file}") == (
        2,
        "",
        f"meshkit plan dp=2 --hosts {file}: line 2 has 'slots=8', which is no host and no rack.\n"
        "  An MPI hostfile has a line for each host; this file needs one for each rank.\n"
        "  Fix: for each rank on a, a line with the name a.\n",
    )


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none", "No such file or directory"),
        ("''", "the file name is empty"),
        ("/dev/zero", "it is larger than 67108864 bytes"),
        ("a.out", "it is not UTF-8 text"),
        (".", "Is a directory"),
    ],
)
def test_a_file_of_hosts_that_cannot_be_read(
    answer: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.out").write_bytes(b"\xff\xfe")
    assert answer(f"plan dp=2 --hosts {path}") == (
        2,
        "",
        f"meshkit plan dp=2 --hosts {path}: {path} cannot be read: {reason}.\n"
        "  Fix: a text file with one line for each rank.\n",
    )
