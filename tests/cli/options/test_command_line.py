"""Command lines that errors quote, and their changes."""

from __future__ import annotations

import shlex

import pytest

from meshkit.cli.main import parse_command
from meshkit.cli.options.command_line import CommandLine, command_line, format_option


def test_sizes_and_options_are_quoted_as_typed() -> None:
    call = CommandLine(
        "meshkit explain", ("0", {"dp": 4, "seed": 2}), {"seed": 0, "order": "dp seed"}
    )
    assert str(call) == "meshkit explain 0 dp=4 seed=2 --order 'dp seed' --seed 0"
    assert shlex.split(str(call))[-3] == "dp seed"


def test_changes_become_sizes_and_options() -> None:
    call = CommandLine("meshkit plan", ({"dp": 4, "tp": 2},), {"world_size": 6})
    assert str(call.with_args(dp=None)) == "meshkit plan tp=2 --world-size 6"
    assert str(call.with_args(dp=None, tp=None)) == "meshkit plan dp=-1 --world-size 6"
    assert str(call.with_args(dp=3, world_size=None)) == "meshkit plan dp=3 tp=2"
    assert str(call.with_args(sp=2)) == "meshkit plan dp=4 tp=2 sp=2 --world-size 6"
    assert (
        str(call.with_args(micro_batch=1))
        == "meshkit plan dp=4 tp=2 --world-size 6 --micro-batch 1"
    )


@pytest.mark.parametrize(
    ("ranks", "nodes", "fitting"),
    [(4, "3", "2"), (6, "3", "3"), (6, "4", "3"), (15, "7,8", "7,8"), (16, "7,8", "1")],
)
def test_a_change_keeps_the_most_nodes_that_divide_the_ranks(
    ranks: int, nodes: str, fitting: str
) -> None:
    line = CommandLine("meshkit plan", ({"x": 1},), {"nodes": nodes})
    assert str(line.with_args(x=ranks)) == f"meshkit plan x={ranks} --nodes {fitting}"


def test_options() -> None:
    assert [*format_option("groups", ["dp tp", "dp"])] == ["--groups", "'dp tp'", "--groups", "dp"]
    assert [*format_option("all", True)] == ["--all"]
    assert [*format_option("nodes", "7,8")] == ["--nodes", "7,8"]
    assert [*format_option("timeout", 5.0)] == ["--timeout", "5"]


def test_defaults_are_not_quoted_and_a_whole_number_has_no_point() -> None:
    typed = ["dp=2", "--iters", "7", "--sizes", "1k:4M", "--timeout", "2.0"]
    args = parse_command("bench", [*typed, "--warm-up", "3", "--json"])
    assert str(command_line(args)) == (
        "meshkit bench dp=2 --sizes 1k:4M --iters 7 --timeout 2 --json"
    )
    args = parse_command("check", ["dp=2", "--timeout", "0.5"])
    assert str(command_line(args).with_args(n=2)) == "meshkit check dp=2 --timeout 0.5 -n 2"
    args = parse_command("check", ["dp=2"])
    assert str(command_line(args)) == "meshkit check dp=2"


def test_an_axis_with_the_name_of_an_option_is_an_axis() -> None:
    line = CommandLine("meshkit plan", ({"dp": 4, "seed": 2},))
    assert str(line.with_args(seed=None)) == "meshkit plan dp=4"


def test_a_command_without_sizes_gets_none() -> None:
    line = CommandLine("meshkit search", (), {"world_size": 64, "nodes": "7"})
    assert str(line.with_args(nodes=8)) == "meshkit search --world-size 64 --nodes 8"


def test_invalid_words_are_quoted_for_a_shell() -> None:
    args = parse_command("plan", ["dp=4", "a b"])
    assert str(command_line(args)) == "meshkit plan dp=4 'a b'"


def test_a_rank_stands_before_the_sizes() -> None:
    args = parse_command("explain", ["5", "dp=4"])
    assert str(command_line(args).with_args(dp=None, sp=2)) == "meshkit explain 5 sp=2"
