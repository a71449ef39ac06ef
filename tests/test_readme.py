"""The README: its Python runs and prints the text below it; its messages are real."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import meshkit
from meshkit.cli import terminal
from meshkit.cli.main import main
from meshkit.core.call import Call
from meshkit.core.errors import format_error
from meshkit.core.report.disagreement import describe_disagreement
from meshkit.core.topology.crossing_policy import check_crossings
from meshkit.live.setup.proposal import CONFLICT

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def followed_by_text(kind: str) -> list[tuple[str, str]]:
    pairs = zip(BLOCKS, [*BLOCKS[1:], ("", "")], strict=True)
    return [(body, after[1]) for (name, body), after in pairs if name == kind]


@pytest.mark.parametrize(("code", "output"), followed_by_text("python"))
def test_python_blocks_print_what_follows_them(tmp_path: Path, code: str, output: str) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
    assert done.stderr == ""


@pytest.mark.parametrize(
    "block", [body for kind, body in BLOCKS if kind == "text" and body.startswith("$ meshkit ")]
)
def test_a_command_prints_the_text_below_it(
    block: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _, output = block.partition("\n")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(terminal, "get_line_characters", lambda: terminal.LINES)
    assert main(shlex.split(command.removeprefix("$ meshkit"))) == 0
    assert capsys.readouterr().out == output


def test_three_commands_are_shown() -> None:
    assert sum(body.startswith("$ meshkit ") for _, body in BLOCKS) == 3


def test_there_are_python_blocks_and_the_example_is_eight_lines_of_code() -> None:
    codes = followed_by_text("python")
    assert len(codes) == 5
    assert len([line for line in codes[0][0].splitlines() if line.strip()]) == 8


def test_the_first_two_sh_blocks_are_one_line_each() -> None:
    commands = [body for kind, body in BLOCKS if kind == "sh"][:2]
    assert [command.count("\n") for command in commands] == [1, 1]
    assert "torchrun --nproc-per-node 8 examples/train.py --dp 4 --sp 2 --tp 1" in commands[0]
    assert "pytest" in commands[1]


def raised_by(call: Call, case: Callable[[], object]) -> str:
    """Return the error of a case as the call of a live job quotes it."""
    with pytest.raises(meshkit.MeshkitError) as caught:
        case()
    return f"{type(caught.value).__name__}: {caught.value.quote(call)}"


def test_the_errors_shown_are_the_errors_raised() -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "6"}
    sizes, batch = {"dp": 4, "sp": 2, "tp": 1}, {"global_batch": 100, "micro_batch": 3}
    spec = raised_by(Call("build_mesh", (), sizes), lambda: meshkit.factor_world(6, **sizes))
    assert spec.replace("world_size = 6", meshkit.detect(torchrun).size_evidence) in README
    case = partial(meshkit.BatchPlan.solve, dp=4, **batch)
    assert raised_by(Call("mesh.batch", (), batch), case) in README


def test_the_disagreement_shown_is_the_one_raised() -> None:
    request, other = {"sizes": "dp=4 sp=2 tp=1"}, {"sizes": "dp=2 sp=4 tp=1"}
    requests = {rank: other if rank == 4 else request for rank in range(8)}
    evidence, fix = describe_disagreement(requests, {4: "host b, pid 311"}, [])
    text = format_error(CONFLICT, *evidence, fix=fix)
    assert f"DisagreementError: {text}" in README


def test_the_warning_shown_is_the_one_given() -> None:
    sizes = {"dp": 2, "tp": 2}
    topology = meshkit.Topology.of_hosts(["a", "b"] * 2)
    warning = check_crossings(meshkit.Layout(**sizes), topology, {"tp": "warn"}).warning
    assert warning is not None
    assert f"RuntimeWarning: {warning.quote(Call('build_mesh', (), sizes))}\n" in README


def test_the_files_named_exist() -> None:
    names = re.findall(r"`((?:tests|examples|meshkit|benchmarks)/[\w/.]*)`", README)
    names += re.findall(r"\]\(([\w/.]+)\)", README)
    assert len(names) > 15
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_arithmetic_of_accumulation() -> None:
    steps = 1024 // (4 * 8)
    assert steps == 32
    assert steps * 4 * 4 == 512
    plan = meshkit.BatchPlan.solve(dp=4, global_batch=1024, micro_batch=4)
    assert plan.accumulation_steps == 64


def test_no_figure_is_still_to_be_filled_in() -> None:
    assert re.findall(r"\b[A-Z]{2,}_?[A-Z]+ times\b|\bTODO\b|\bXXX\b", README) == []
