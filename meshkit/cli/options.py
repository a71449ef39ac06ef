"""Options that commands share, as typed: sizes, nodes, batch, machine, numbers and files."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..call import check_divides, divisors, drop_none, either
from ..data.batch import (
    BatchPlan,
    data_choices,
    describe_data,
    num_data_coordinates,
    resolve_data_axes,
    solve_batch,
)
from ..errors import BatchError, SpecError
from ..layout.axes import axis_role, resolve_axes, unknown_axes
from ..layout.group_plan import Axes
from ..layout.layout import Layout
from ..layout.sizes import (
    STANDARD_AXES,
    check_num_planned,
    infer_sizes,
    ordered_sizes,
    parse_sizes,
    read_sizes,
    split_words,
)
from ..layout.topology import Topology, parse_hostfile
from ..plan.memory import PRECISIONS, ModelShape
from ..plan.step_time import MACHINES, TrainingJob
from ..synonyms import closest_names
from ..text import INTEGER, count_noun, dtype_name

# options whose value is a file, by its suffix
FILES = {".py": ("output", "rehearse"), ".html": ("html",), ".json": ("save", "against")}
MAX_FILE = 2**28  # characters: the hosts of a job of millions of ranks
SIZES_HELP = 'the size of each axis: dp=4 tp=2, dp=4,tp=2 or "dp=4 tp=2"'
BATCH_HELP = {
    "global_batch": "samples of one step",
    "micro_batch": "samples of one forward and backward pass of a rank",
    "accumulation_steps": "micro batches of one optimizer step; "
    "give two of --global-batch, --micro-batch, --accumulation-steps",
}
DEFAULT_MACHINE, DEFAULT_DTYPE = "h100", "bf16"
MODELS = {path.stem: path for path in sorted((Path(__file__).parent / "models").glob("*.json"))}


def read_integer(text: str, least: int | None = None) -> int:
    """Read a whole number of at most 18 digits."""
    if INTEGER.fullmatch(text) and (least is None or int(text) >= least):
        return int(text)
    limit = "" if least is None else f" of {least} or more"
    raise ArgumentTypeError(f"{text!r} is not a whole number{limit}, with at most 18 digits")


def read_count(text: str) -> int:
    """Read a number of ranks, nodes or samples, 1 or more."""
    return read_integer(text, least=1)


def read_counts(text: str) -> tuple[int, ...]:
    """Read numbers of 1 or more, separated by commas."""
    return tuple(read_count(part) for part in text.split(","))


def read_seconds(text: str) -> float:
    """Read a time in seconds, from 0.001 to 1e9."""
    return parse_number(text, "seconds", 1e9)


def read_gigabytes(text: str) -> float:
    """Read a number of GB, from 0.001 to 1e6."""
    return parse_number(text, "GB", 1e6)


def read_dtype(text: str) -> str:
    """Read the name of a dtype, also as torch has it."""
    return next((name for name in PRECISIONS if dtype_name(name) == dtype_name(text)), text)


def read_links(text: str) -> str:
    """Read the name of a machine in any case, or the path of a file."""
    return text.lower() if text.lower() in MACHINES else text


def parse_number(text: str, unit: str, most: float) -> float:
    """Read a number of a unit, from 0.001 to the most."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.001 <= number <= most:  # nan fails every comparison
        raise ArgumentTypeError(f"{text!r} is not a number of {unit} from 0.001 to {most:g}")
    return number


def check_output_file(option: str, path: str) -> None:
    """Check that a file can be written, before the work whose result it will have."""
    file = Path(path)
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        summary = f"the file of --{option} cannot be written."
        raise SpecError(summary, fix="a file in an existing folder with write access.")


def read_file(option: str, path: str, fix: str) -> str:
    """Return the text in the file of an option."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: no UTF-8
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"the file of --{option} cannot be read.", f"{reason}.", fix=fix) from error
    if len(text) > MAX_FILE:  # a device has no end
        line = f"It has more than {MAX_FILE} characters."
        raise SpecError(f"the file of --{option} is too large.", line, fix=fix)
    return text


def read_json_file(option: str, path: str, fix: str) -> dict[str, object]:
    """Return the JSON object in the file of an option."""
    try:
        value = json.loads(read_file(option, path, fix))
    except SpecError:
        raise
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the file of --{option} is not JSON.", f"{error}.", fix=fix) from error
    if not isinstance(value, dict):
        raise SpecError(f"the file of --{option} has no JSON object.", fix=fix)
    return value


def write_file(noun: str, path: str, text: str) -> None:
    """Write a text into a file, which is replaced."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        summary = f"the {noun} cannot be written: {error.strerror}."
        raise SpecError(summary, fix="a file in an existing folder with write access.") from error


def add_grid(parser: ArgumentParser) -> None:
    """Add the options ``--world-size`` and ``--order``."""
    add_world_size(parser, "the number of ranks, if a size is -1 or dp is left out")
    add_order(parser)


def add_world_size(parser: ArgumentParser, help: str, *, required: bool = False) -> None:
    """Add the option ``--world-size``, which ``--world`` and ``-n`` abbreviate."""
    flags = "--world-size", "--world", "-n"
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


def read_axis_sizes(words: Sequence[str], args: Namespace | None = None) -> dict[str, int]:
    """Read sizes such as ``dp=4``; ``args`` has the options, which are written with hyphens."""
    for word in split_words(words) if args is not None else ():
        axis, equals, size = word.partition("=")
        option = equals and axis in vars(args) and f"--{axis.replace('_', '-')}"
        if option and (axis_role(axis) == "unknown" or not INTEGER.fullmatch(size)):
            value = next((w for w in words if w.startswith(f"{axis}=")), word).partition("=")[2]
            fix = f"{option} {shlex.quote(value)}."
            raise SpecError(f"{axis} is no axis; it is an option.", fix=fix)
    _check_one_word(split_words(words), args)
    _check_no_file(words, args)
    return parse_sizes(words, can_infer=True)


def _check_no_file(words: Sequence[str], args: Namespace | None) -> None:
    """Check that no word is a file, which is the value of an option."""
    for word in words:
        for option in FILES.get(Path(word).suffix, ()):
            if "=" not in word and option in vars(args or Namespace()):
                line = f"{word!r} is not the size of an axis."
                raise SpecError(line, fix=f"--{option} {shlex.quote(word)}.")


def _check_one_word(words: Sequence[str], args: Namespace | None) -> None:
    """Check that no word is a further axis of ``--order`` or ``--groups``."""
    order, groups = getattr(args, "order", None), getattr(args, "groups", None) or [""]
    option, first = ("order", order) if order else ("groups", groups[-1])
    names = [word for word in words if word in STANDARD_AXES and word not in first.split(",")]
    if names and first:
        raise SpecError(
            f"{names[0]!r} is not the size of an axis.",
            f"The axes of --{option} are one word.",
            fix=f"--{option} {','.join([first, *names])}.",
        )


@contextmanager
def order_as_option() -> Iterator[None]:
    """Name ``order=`` in the fix of an error as a shell takes it."""
    try:
        yield
    except SpecError as error:
        raise error.but(fix=error.fix.replace("order=", "--order ")) from None


def read_layout(words: Sequence[str], args: Namespace) -> Layout:
    """Return the layout of sizes; ``args`` has ``order`` and ``world_size``, either may be None."""
    sizes = read_axis_sizes(words, args)
    standard = sizes.keys() <= STANDARD_AXES
    with order_as_option():
        order = args.order if standard else read_sizes(sizes, {}, args.order)[1]
        nested = ordered_sizes(sizes, order, args.world_size)
    known = math.prod(size for size in nested.values() if size != -1)
    unknown = [axis for axis, size in nested.items() if size == -1]
    if args.world_size is None and unknown and (not sizes or -1 in sizes.values()):
        fix = f"for example --world-size {8 * known}."
        raise SpecError(f"there is nothing to infer {unknown[0]} from.", fix=fix)
    ranks = known if args.world_size is None else args.world_size
    check_num_planned(ranks)
    evidence, start = f"--world-size {ranks}", "--world-size {number}"
    return Layout(ranks=None, **infer_sizes(nested, ranks, evidence, start=start))


def add_nodes(parser: ArgumentParser) -> None:
    """Add ``--nodes`` and ``--hosts``, of which one can be given, and ``--racks``."""
    either = parser.add_mutually_exclusive_group()
    help = "the number of equal nodes, or the number of ranks on each: 2, or 7,8"
    either.add_argument("--nodes", type=read_counts, metavar="N", help=help)
    help = "the number of equal racks, which --nodes fill one after the other"
    parser.add_argument("--racks", type=read_count, metavar="N", help=help)
    help = "a file with one line for each rank: its host, then its rack if known"
    either.add_argument("--hosts", metavar="FILE", help=help)


def read_topology(layout: Layout, args: Namespace) -> Topology | None:
    """Return the nodes of a layout, or None if neither option was given."""
    ranks, nodes = layout.num_ranks, args.nodes
    if args.racks is not None and (nodes is None or len(nodes) > 1):
        raise SpecError("--racks divides equal nodes.", fix="--nodes N beside --racks.")
    if args.hosts is not None:
        fix = f"{count_noun(ranks, 'line')}, one for each rank."
        topology = parse_hostfile(read_file("hosts", args.hosts, f"a text file with {fix}"))
        if topology.world_size != ranks:
            raise SpecError(f"--hosts has {topology}, the grid has {ranks}.", fix=fix)
        return topology
    if nodes is None:
        return None
    if len(nodes) == 1:
        check_nodes(ranks, nodes[0], args.racks)
        return Topology.even(ranks, nodes=nodes[0], racks=args.racks)
    if sum(nodes) != ranks:
        summary = f"the nodes hold {sum(nodes)} ranks, the grid has {ranks}."
        raise SpecError(summary, fix=f"nodes whose ranks add up to {ranks}.")
    return Topology.of_sizes(nodes)


def with_nearest(error: SpecError, option: str) -> SpecError:
    """Return the error with the nearest numbers that divide, as values of an option."""
    ways = [f"{option} {n}" for n in (error.below, error.above) if n]
    return error.but(fix=either(*ways)) if ways else error


def check_nodes(ranks: int, nodes: int, racks: int | None) -> None:
    """Check that ranks divide over the nodes, and the nodes over the racks."""
    try:
        check_divides(ranks, nodes)
    except SpecError as error:
        raise with_nearest(error, "--nodes") from None
    if racks is not None and nodes % racks:
        ways = [f"--racks {n}" for n in divisors(nodes) if racks / 2 < n < racks * 2]
        summary = f"{nodes} nodes do not divide over {racks} racks."
        raise SpecError(summary, fix=either(*(ways or ["leave out --racks"])))


def add_batch(parser: ArgumentParser) -> None:
    """Add ``--global-batch``, ``--micro-batch``, ``--accumulation-steps`` and ``--data``."""
    for name, help in BATCH_HELP.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=read_count, metavar="N", help=help)
    help = 'the axes that divide the samples (default: by their names, for example "dp ep")'
    parser.add_argument("--data", dest="data_axes", metavar="AXES", help=help)


def read_data_axes(layout: Layout, args: Namespace) -> Axes | None:
    """Return the axes of ``--data``; None without the option."""
    return None if args.data_axes is None else resolve_axes("data", args.data_axes, layout.axes)


def read_batch(
    layout: Layout, args: Namespace, data: Axes | None, micro_batch: int | None = None
) -> BatchPlan | None:
    """Return the batch plan, or None if none of the options was given.

    ``micro_batch`` counts if it would be the second size.
    """
    given: dict[str, Any] = drop_none(**{name: getattr(args, name) for name in BATCH_HELP})
    if [*given] == ["global_batch"]:
        given |= drop_none(micro_batch=micro_batch)
    if not given:
        if data is not None:
            fix = "two of --global-batch, --micro-batch and --accumulation-steps beside --data."
            raise SpecError("--data divides the samples of a batch.", fix=fix)
        return None
    try:
        axes = resolve_data_axes(data, layout.sizes)
    except SpecError as error:
        if data is None and unknown_axes(layout.sizes):
            ways = [f"--data '{' '.join(a)}'" for a in data_choices(layout.sizes)]
            raise error.but(fix=either(*ways)) from None
        raise
    try:
        dp = num_data_coordinates(layout.sizes, axes)
        return BatchPlan(**solve_batch({"dp": dp, **given}), uneven=True)
    except BatchError as error:
        evidence, fix = (*error.evidence, *describe_data(layout.sizes, axes)), error.fix
        ways = [f"--global-batch {n}" for n in (error.below, error.above) if n]
        if ways and error.micro_batches and len(given) == 2:
            other = next(name for name in ("micro_batch", "accumulation_steps") if name in given)
            nearest = min(error.micro_batches, key=lambda n: abs(n - given[other]))
            ways.append(f"--{other.replace('_', '-')} {nearest}")
        if len(given) == 1:
            fix = f"for example {' '.join(missing_batch_size(args))}."
        elif ways:
            fix = either(*ways)
        raise error.but(evidence=evidence, fix=fix) from None


def missing_batch_size(args: Namespace) -> list[str]:
    """Return the option that a single size of a batch lacks, for example of one micro batch."""
    given = [name for name in BATCH_HELP if getattr(args, name, None) is not None]
    if len(given) != 1 or getattr(args, "model", None) is not None:  # a model has its own
        return []
    return ["--micro-batch" if given == ["accumulation_steps"] else "--accumulation-steps", "1"]


def split_layouts(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each layout: a word each if one has a blank or a comma, else all."""
    is_each = len(words) > 1 and any("," in word or len(word.split()) > 1 for word in words)
    return [[word] for word in words] if is_each else [[*words]]


def add_model(parser: ArgumentParser, *, required: bool = False) -> None:
    """Add ``--model`` and ``--seq``, and the options of the devices."""
    help = f"the config.json of a model of the Hugging Face Hub, or {', '.join(MODELS)}"
    parser.add_argument("--model", required=required, metavar="NAME", help=help)
    help = "tokens of one sample"
    parser.add_argument("--seq", type=read_count, required=required, metavar="N", help=help)
    names = f"{', '.join(MACHINES)} (default {DEFAULT_MACHINE})"
    help = f"{names}, or a JSON file of measured figures"
    parser.add_argument("--links", type=read_links, metavar="NAME", help=help)
    help = "GB (1e9 bytes) of one device that a job may fill (default: all of the device)"
    parser.add_argument("--memory", type=read_gigabytes, metavar="GB", help=help)
    help = (
        f"of weights and activations, with fp32 gradients and optimizer (default {DEFAULT_DTYPE})"
    )
    parser.add_argument("--dtype", type=read_dtype, choices=PRECISIONS, help=help)


def read_model(args: Namespace) -> tuple[str, ModelShape]:
    """Return the name and the shape of the model of ``--model``."""
    plain = letters(args.model.rpartition("/")[2].removesuffix(".json"))
    name = next((name for name in MODELS if letters(name) == plain), None)
    path = str(MODELS[name]) if name else args.model
    # a name with other digits is another model
    digits = [n for n in MODELS if re.sub(r"\D", "", n) == re.sub(r"\D", "", plain)]
    close = closest_names(plain, map(letters, digits), 0.7)
    near = [n for n in MODELS if letters(n) in close or (plain and letters(n).startswith(plain))]
    known = f"the config.json of a model, or one of {', '.join(MODELS)}."
    is_typo = near and not Path(path).exists()
    fix = either(*(f"--model {name}" for name in near)) if is_typo else known
    return name or Path(path).name, ModelShape.of(read_json_file("model", path, fix))


def letters(name: str) -> str:
    """Return the letters and digits of a name, in small letters."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def refuse_model_options(args: Namespace) -> None:
    """Refuse options that mean nothing without ``--model``."""
    for name in ("seq", "links", "memory", "dtype", "shard", "recompute"):
        if getattr(args, name) is not None:
            line = "A cost needs --model, --nodes, --global-batch and --seq."
            raise SpecError(f"--{name} needs --model.", line, fix=f"leave out --{name}.")


def links_name(args: Namespace) -> str:
    """Return the name of the figures of ``--links``."""
    return Path(args.links or DEFAULT_MACHINE).name


def read_job(args: Namespace, world_size: int, nodes: int, racks: int) -> TrainingJob:
    """Return the job of the batch, ``--seq``, ``--links``, ``--memory`` and ``--dtype``."""
    measured: dict[str, object] = {}
    links = args.links or DEFAULT_MACHINE
    if links not in MACHINES:
        measured = read_json_file("links", links, f"{', '.join(MACHINES)}, or a JSON file.")
    measured |= drop_none(memory=args.memory)
    machine = MACHINES.get(links, MACHINES[DEFAULT_MACHINE]).with_measured(measured)
    dtype = args.dtype or DEFAULT_DTYPE
    return TrainingJob(world_size, nodes, args.global_batch, args.seq, machine, racks, dtype)
