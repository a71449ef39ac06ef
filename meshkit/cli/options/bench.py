"""Sizes and operations as they are typed for ``meshkit bench``, and sizes that are too large."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError

from ...bench.results.collectives import OPERATIONS, sweep_sizes
from ...core.errors import Change, SpecError
from ...core.text import count_noun
from ...launch.doctor.memory import memory
from .grid import number

SIZES = "1K:16M:16"
FACTOR = 4
HELD = 2  # arrays of the whole size that a rank holds while it compares, at the least
# Bytes that a rank holds beyond what all share, without an array. A choice: 10 MiB were measured
# once a mesh of 4 stood (forkserver, gloo), 20 MiB later, and the rest is for torch's threads.
RANK = 2**25
SPARE = 4  # times what is needed at the least that a fix leaves room for
UNITS = {"": 0, "K": 10, "M": 20, "G": 30}  # binary, as nccl-tests reads them


def read_size(text: str) -> int:
    """Bytes as typed: a number, with K, M or G for 2^10, 2^20 and 2^30.

    Raises:
        ArgumentTypeError: where it is none.

    Example:
        >>> read_size("64K"), read_size("100")
        (65536, 100)
    """
    found = re.fullmatch(r"([0-9]{1,13})([KMG]?)", text.upper(), re.ASCII)
    if found is None:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes, such as 1024, 64K or 16M")
    return int(found[1]) << UNITS[found[2]]


def as_size(number: int) -> str:
    """Bytes as they are typed: what :func:`read_size` reads.

    Example:
        >>> as_size(65536), as_size(100), as_size(3 << 30), as_size(0)
        ('64K', '100', '3G', '0')
    """
    if number == 0:
        return "0"
    unit = next(unit for unit in reversed(UNITS) if number % (1 << UNITS[unit]) == 0)
    return f"{number >> UNITS[unit]}{unit}"


def sizes_as_typed(text: str) -> str:
    """The text itself, which holds sizes; it is quoted as it was typed. Raises as below."""
    read_sizes(text)
    return text


def read_sizes(text: str) -> tuple[int, ...]:
    """The sizes of a sweep as typed: one, or the least and the most, and the factor between.

    Raises:
        ArgumentTypeError: where there are none.

    Example:
        >>> read_sizes("1K:64K"), read_sizes("1M"), read_sizes("1K:4K:2")
        ((1024, 4096, 16384, 65536), (1048576,), (1024, 2048, 4096))
    """
    parts = text.split(":")
    if len(parts) > 3 or (len(parts) == 3 and not re.fullmatch("[0-9]{1,6}", parts[2], re.ASCII)):
        raise ArgumentTypeError(f"{text!r} is not LEAST:MOST or LEAST:MOST:FACTOR, such as 1K:64M")
    least, most = read_size(parts[0]), read_size(parts[-1] if len(parts) == 1 else parts[1])
    try:
        return sweep_sizes(least, most, int(parts[2]) if len(parts) == 3 else FACTOR)
    except SpecError as error:
        raise ArgumentTypeError(f"{text!r} holds no sizes from 1 byte to 1024G") from error


def read_operations(text: str) -> tuple[str, ...]:
    """Operations as typed, with commas between.

    Raises:
        ArgumentTypeError: for one that there is not.

    Example:
        >>> read_operations("broadcast,all_reduce")
        ('broadcast', 'all_reduce')
    """
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in OPERATIONS:
            raise ArgumentTypeError(f"{name!r} is not one of {', '.join(OPERATIONS)}")
    return names


def turns_as_typed(text: str) -> str:
    """The text itself, which says how many groups are measured alone. Raises as below."""
    read_turns(text)
    return text


def read_turns(text: str) -> int | None:
    """How many groups are measured alone at the most, as typed; None for all of them.

    Raises:
        ArgumentTypeError: where it is neither a number nor ``all``.

    Example:
        >>> read_turns("16"), read_turns("all")
        (16, None)
    """
    return None if text == "all" else number(text)


def check_memory(text: str, ranks: int) -> None:
    """Refuse ranks that this machine cannot hold, by themselves or with their arrays.

    Args:
        text: the sizes as they were typed.
        ranks: how many there are on this machine, whatever they compute on.

    Raises:
        SpecError: with ranks, or with sizes, that it can.
    """
    sizes, there = read_sizes(text), memory()
    needed = ranks * (HELD * sizes[-1] + RANK)
    if there is None or needed <= there:
        return
    left = there - ranks * RANK
    if left < SPARE * HELD * ranks:
        line = f"{count_noun(ranks, 'rank')} here do not fit into memory."
        each = f"Each holds some {RANK} bytes before an array; there are {there}."
        raise SpecError(line, each, fix=_fewer(there // (SPARE * RANK)))
    most = 2 ** int(math.log2(left // (SPARE * HELD * ranks)))
    fits = f"{as_size(sizes[0])}:{as_size(most)}" if sizes[0] < most else as_size(most)
    line = f"{as_size(sizes[-1])} does not fit into memory."
    holds = (
        f"{count_noun(ranks, 'rank')} here, each with {HELD} of it at the least and {RANK} bytes "
    )
    holds += f"beside, hold {needed} bytes; there are {there}."
    raise SpecError(line, holds, fix=(Change(bytes=fits), "."))


def _fewer(most: int) -> str:
    """The same command with ranks that fit; in words where its sizes ask for so many."""
    return f"a mesh of {count_noun(max(most, 1), 'rank')} or fewer on this machine."
