"""Numbers as typed on a command line.

Files that are named on the command line, as text or as JSON.

The grid of a job: the sizes of its axes, their order, and the number of ranks.

The nodes of a job: their number, the ranks of each, or a file with the host of each rank.

The batch of a job: two of its three sizes, which give the third.

The speeds of links and devices: a known machine, or a JSON file of measured figures.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence

from ..core.axes import resolve_axes, unknown_axes
from ..core.batch import (
    BatchPlan,
    data_choices,
    describe_data,
    num_data_coordinates,
    resolve_data_axes,
    solve_batch,
)
from ..core.call import check_divides, drop_none, either, format_value
from ..core.cost.step_time import MACHINES, Machine
from ..core.errors import BatchError, SpecError
from ..core.group_plan import Axes
from ..core.layout import Layout
from ..core.sizes import (
    check_num_planned,
    divide_data_axis,
    infer_sizes,
    leave_out_experts,
    ordered_sizes,
    use_divided,
)
from ..core.text import count_noun
from ..core.topology import Topology, parse_hostfile

DIGITS = 18  # so that the number fits into int64
INTEGER = re.compile(rf"-?[0-9]{{1,{DIGITS}}}")


def read_count(text: str) -> int:
    """Read a number of ranks, nodes or samples, 1 or more."""
    return read_integer(text, least=1)


def read_integer(text: str, least: int | None = None) -> int:
    """Read a whole number."""
    if INTEGER.fullmatch(text) and (least is None or int(text) >= least):
        return int(text)
    if re.fullmatch("-?[0-9]+", text) and len(text.lstrip("-")) > DIGITS:
        raise ArgumentTypeError(f"{text!r} has more than {DIGITS} digits")
    limit = "" if least is None else f" of {least} or more"
    raise ArgumentTypeError(f"{text!r} is not a whole number{limit}")


def read_counts(text: str) -> tuple[int, ...]:
    """Read numbers of 1 or more, separated by commas."""
    return tuple(read_count(part) for part in text.split(","))


def read_seconds(text: str) -> float:
    """Read a time in seconds, from 0.001 to 1e9."""
    number = _read_float(text)
    if not 0.001 <= number <= 1e9:  # nan fails every comparison, so it is rejected
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0.001 to 1e9")
    return number


def read_gigabytes(text: str) -> float:
    """Read a number of GB above 0 and below a million."""
    number = _read_float(text)
    if not 0 < number < 1e6:  # nan fails every comparison, so it is rejected
        raise ArgumentTypeError(f"{text!r} is not a number of GB above 0 and below a million")
    return number


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


MAX_BYTES = 2**26  # about four million lines of hosts


def read_text(path: str) -> str:
    """Read the text of a file or a pipe."""
    if not path:
        raise ValueError("the file name is empty")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def read_json_object(path: str) -> dict[str, object]:
    """Read the JSON object in a file."""
    try:
        value = json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("The JSON is nested too deeply.") from error
    except ValueError as error:
        raise ValueError(f"{error}.") from error
    if not isinstance(value, dict):
        raise ValueError("The file has no JSON object.")
    return value


SIZES_HELP = 'the size of each axis: dp=4 tp=2, dp=4,tp=2 or "dp=4 tp=2"'


def add_grid(parser: ArgumentParser) -> None:
    """Add the options ``--world-size`` and ``--order``."""
    help = "the number of ranks, if a size is -1 or dp is left out"
    add_world_size(parser, help)
    add_order(parser)


def add_world_size(parser: ArgumentParser, help: str, *, required: bool = False) -> None:
    """Add the option ``--world-size``, which ``--world`` abbreviates."""
    flags = "--world-size", "--world"
    parser.add_argument(*flags, type=read_count, required=required, metavar="N", help=help)


def add_order(parser: ArgumentParser) -> None:
    """Add the option ``--order``."""
    help = (
        "the axes from the outermost to the innermost (default pp,dp,ep,cp,sp,tp); "
        "with hyphens as in Megatron, from the innermost: tp-dp"
    )
    parser.add_argument("--order", metavar="AXES", help=help)


def add_groups(parser: ArgumentParser) -> None:
    """Add the option ``--groups``."""
    help = 'the axes of one more group, for example "dp tp"; can be given several times'
    parser.add_argument("--groups", action="append", metavar="AXES", help=help)


def split_sizes(words: Sequence[str]) -> list[str]:
    """Return one word for each axis.

    Example:
        >>> split_sizes(["dp=4,sp=2", "tp=2 pp=1"])
        ['dp=4', 'sp=2', 'tp=2', 'pp=1']
    """
    return [size for word in words for size in word.replace(",", " ").split() or [word]]


def read_axis_sizes(words: Sequence[str]) -> dict[str, int]:
    """Read sizes such as ``dp=4``; a word may hold several, between commas or blanks."""
    sizes: dict[str, int] = {}
    for word in split_sizes(words):
        axis, equals, size = word.partition("=")
        if not equals:
            fix = "an axis, = and its size, for example dp=4."
            raise SpecError(f"{word!r} is not the size of an axis.", fix=fix)
        if axis in sizes:
            raise SpecError(f"{axis} has two sizes.", fix=f"give {axis} once.")
        if not INTEGER.fullmatch(size) or not (int(size) >= 1 or int(size) == -1):
            fix = f"a size of 1 or more, for example {axis}=4; or {axis}=-1, which infers it."
            raise SpecError(f"the size of {axis} is {size!r}.", fix=fix)
        sizes[axis] = int(size)
    return sizes


def read_layout(words: Sequence[str], args: Namespace) -> Layout:
    """Return the layout of sizes; ``args`` has ``order`` and ``world_size``, either may be None."""
    sizes = read_axis_sizes(words)
    nested = ordered_sizes(sizes, args.order, args.world_size)
    known = math.prod(size for size in nested.values() if size != -1)
    unknown = [axis for axis, size in nested.items() if size == -1]
    if args.world_size is None and unknown and (not sizes or -1 in sizes.values()):
        fix = f"for example --world-size {8 * known}."
        raise SpecError(f"there is nothing to infer {unknown[0]} from.", fix=fix)
    ranks = known if args.world_size is None else args.world_size
    check_num_planned(ranks)
    try:
        return Layout(ranks=None, **infer_sizes(nested, ranks, f"--world-size {ranks}"))
    except SpecError as error:
        if divided := divide_data_axis(nested, ranks):  # a command has no views
            dense = f"{leave_out_experts(nested)}, for the dense layers alone"
            error.fix = either(use_divided(nested, divided), dense, f"start {known} ranks")
        raise


def add_nodes(parser: ArgumentParser) -> None:
    """Add the options ``--nodes`` and ``--hosts``, of which one can be given."""
    either = parser.add_mutually_exclusive_group()
    help = "the number of equal nodes, or the number of ranks on each: 2, or 7,8"
    either.add_argument("--nodes", type=read_counts, metavar="N", help=help)
    help = "a file with one line for each rank: its host, then its rack if known"
    either.add_argument("--hosts", metavar="FILE", help=help)


def read_topology(layout: Layout, args: Namespace) -> Topology | None:
    """Return the nodes of a layout, or None if neither option was given."""
    if args.hosts is not None:
        return _read_hosts(args.hosts, layout.num_ranks)
    if args.nodes is None:
        return None
    ranks, nodes = layout.num_ranks, args.nodes
    if len(nodes) == 1:
        check_divides(ranks, nodes[0])
        return Topology.even(ranks, nodes=nodes[0])
    if sum(nodes) != ranks:
        summary = f"the nodes hold {sum(nodes)} ranks, the grid has {ranks}."
        raise SpecError(summary, fix=f"nodes whose ranks add up to {ranks}, or --nodes 1.")
    return Topology.of_sizes(nodes)


def _read_hosts(path: str, ranks: int) -> Topology:
    try:
        text = read_text(path)
    except ValueError as error:
        summary = f"{shlex.quote(path)} cannot be read: {error}."
        raise SpecError(summary, fix="a text file with one line for each rank.") from error
    topology = parse_hostfile(text)
    if topology.world_size != ranks:
        summary = f"{path} has {topology}, the grid has {ranks}."
        raise SpecError(summary, fix=f"{count_noun(ranks, 'line')}, one for each rank.")
    return topology


HELP = {
    "global_batch": "samples of one step",
    "micro_batch": "samples of one forward and backward pass of a rank",
    "accumulation_steps": "micro batches of one optimizer step; "
    "give two of --global-batch, --micro-batch, --accumulation-steps",
}


def add_batch(parser: ArgumentParser) -> None:
    """Add ``--global-batch``, ``--micro-batch``, ``--accumulation-steps`` and ``--data``."""
    for name, help in HELP.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=read_count, metavar="N", help=help)
    help = 'the axes that divide the samples (default: by their names, for example "dp ep")'
    parser.add_argument("--data", dest="data_axes", metavar="AXES", help=help)


def read_data_axes(args: Namespace, *layouts: Layout) -> tuple[Axes | None, ...]:
    """Return the axes of ``--data`` that each grid has; None for each grid without the option."""
    if args.data_axes is None:
        return (None,) * len(layouts)
    every = tuple(dict.fromkeys(axis for layout in layouts for axis in layout.axes))
    names = resolve_axes("data", args.data_axes, every)
    return tuple(tuple(axis for axis in names if axis in grid.axes) for grid in layouts)


def read_batch(layout: Layout, args: Namespace, data: Axes | None) -> BatchPlan | None:
    """Return the batch plan, or None if none of the options was given.

    The data axes are those of ``--data``; if they are None, the roles of the axes give them.
    """
    given = drop_none(**{name: getattr(args, name) for name in HELP})
    if not given:
        return None
    axes = _data_axes(layout, data)
    try:
        dp = num_data_coordinates(layout.sizes, axes)
        return BatchPlan(**solve_batch({"dp": dp, **given}), uneven=True)
    except BatchError as error:
        error.evidence += describe_data(layout.sizes, axes)
        error.fix = _batch_fix(error, given) or error.fix
        raise


def _data_axes(layout: Layout, data: Axes | None) -> Axes:
    """Return the data axes; the error for an unknown role proposes ``--data``."""
    try:
        return resolve_data_axes(data, layout.sizes)
    except SpecError as error:
        if data is None and unknown_axes(layout.sizes):
            error.fix = either(*(f"--data '{' '.join(a)}'" for a in data_choices(layout.sizes)))
        raise


def _batch_fix(error: BatchError, given: dict[str, object]) -> str:
    """Return a fix with the nearest batches that divide; "" if the error lists none."""
    ways = [f"--global-batch {n}" for n in (error.below, error.above) if n]
    if ways and error.micro_batches and len(given) == 2:
        other = next(name for name in ("micro_batch", "accumulation_steps") if name in given)
        nearest = min(error.micro_batches, key=lambda n: abs(n - int(str(given[other]))))
        ways.append(f"--{other.replace('_', '-')} {nearest}")
    if len(given) == 1:
        return "two of --global-batch, --micro-batch and --accumulation-steps."
    return either(*ways) if ways else ""


DEFAULT_MACHINE = "h100"
EXAMPLE = "meshkit bench dp=2 -n 2 --sizes 1K:1M --json"


def read_machine(args: Namespace) -> tuple[Machine, tuple[str, ...]]:
    """Return the machine, and one line of text for each figure that is assumed.

    A figure is assumed if the file of figures lacks it.
    """
    name = args.links or DEFAULT_MACHINE
    measured = {} if name in MACHINES else _read_figures(name)
    measured |= {"memory": args.memory} if args.memory else {}
    machine = MACHINES.get(name, MACHINES[DEFAULT_MACHINE]).with_measured(measured)
    return machine, () if name in MACHINES else machine.unmeasured(DEFAULT_MACHINE, measured)


def read_option_file(option: str, path: str, fix: str) -> dict[str, object]:
    """Return the JSON object in the file of an option."""
    try:
        return read_json_object(path)
    except ValueError as error:
        summary = f"the file of --{option} cannot be read."
        raise SpecError(summary, str(error), fix=fix) from error


def _read_figures(path: str) -> dict[str, object]:
    """Return the figures of a file, which may be the output of ``meshkit bench --json``."""
    content = read_option_file("links", path, f"{', '.join(MACHINES)}, or a JSON file.")
    is_bench = "measurements" in content
    return _figures_of_run(content) if is_bench else content


def _figures_of_run(run: Mapping[str, object]) -> dict[str, object]:
    """Return the figures of a benchmark run."""
    if run.get("interrupted") or run.get("ok") is not True:
        end = "was interrupted" if run.get("interrupted") else "failed"
        wrong = run.get("wrong")
        evidence = [f"Wrong elements: {format_value(wrong)}."] if wrong else []
        fix = f"a complete run without a wrong element, for example {EXAMPLE}"
        raise SpecError(f"the run in the file of --links {end}.", *evidence, fix=fix)
    links = run.get("links")
    if not isinstance(links, dict) or not links:
        names = "all_reduce, all_gather or reduce_scatter"
        fix = f"a run with at least two sizes, for example {EXAMPLE}"
        raise SpecError(f"the file of --links has no fit (latency, bandwidth) of {names}.", fix=fix)
    source = f"{links.get('source')}; the others: {MACHINES[DEFAULT_MACHINE].source}"
    return {**links, "source": source}
