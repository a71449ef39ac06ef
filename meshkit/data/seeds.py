"""Compute the seeds of random streams from coordinates, never from ranks.

A coordinate is encoded without the sizes of the axes, so no stream changes when an axis grows. Each
index plus one is written in binary. A number of n binary digits is written after n - 1 zeros (P.
Elias' gamma code, IEEE Trans. Inf. Theory 21, 1975). The axes follow each other after a leading
one::

    dp=2 tp=0     1  011  1   = 23        tp=0 dp=2: the same
    dp=0 tp=2     1  1  011   = 27

The code can be decoded in one way only. A keyed bijection then scatters the codes over 63 bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from ..call import check_integer, parse_integer, quotes_call
from ..errors import CoordinateError, SpecError
from ..layout.axes import resolve_axes
from ..layout.layout import Layout
from ..layout.position import check_member
from ..synonyms import STANDARD
from ..text import article, format_sizes, group_by, summarize

CODE_BITS = 63  # seeds fit into int64, the type of tensors and checkpoints
LOW = 0xFFFFFFFF


@quotes_call("stream_seed")
def stream_seed(base: int, name: str = "", /, **coordinate: int) -> int:
    """Return the seed of a stream: equal for equal arguments, on every rank and in every job.

    Streams of different coordinates along the same axes, with one base and name, are distinct:

    * Their seeds always differ. A coordinate whose code exceeds 63 bits raises. With ``n`` axes,
      every one of fewer than ``2**((62 - n) // 2 + 1)`` ranks has a code (2**29 with six axes).
    * Their low 32 bits differ if both codes are below 2**32. torch's CPU generator uses only these
      (Philox on CUDA uses 64). With ``n`` axes this holds for fewer than
      ``2**((31 - n) // 2 + 1)`` ranks: 2**16 with one axis, 2**15 with two, 2**13 with six. Beyond
      that, two streams share the low bits with probability 1 in 2**32 a pair.

    Between different bases, names or sets of axes, seeds are equal with probability 1 in 2**63 a
    pair, 1 in 2**32 on the CPU. The names of the axes count, not their order, and no sizes.

    Args:
        base: the seed of the job, any int.
        name: the purpose of the stream: ``"dropout"``, ``"layer.weight"``.
        **coordinate: axis name to index, 0 or more, for the axes along which streams differ. Names
            other than those of mesh axes are allowed: ``block=3``, ``epoch=1``.

    Returns:
        An int from 0 to 2**63 - 1, which is valid for every generator of torch.

    Raises:
        SpecError: if the base is not an int, or the name is not a str.
        CoordinateError: if an index is not an int or is negative, or the coordinate is too large.

    Example:
        >>> stream_seed(0), stream_seed(0, "dropout", dp=2, tp=0)
        (2630070831674974442, 2083744102578743801)
    """
    return compute_seed(base, name, coordinate)


def compute_seed(base: object, name: object, coordinate: Mapping[str, object]) -> int:
    """Return the seed of :func:`stream_seed`, for a coordinate that is a mapping."""
    number = parse_integer(base)
    if number is None:
        raise SpecError(
            f"the base is {base!r}, {article(type(base).__name__)}.",
            "A base is any int, equal on all ranks.",
            fix="the int that seeds the job, first.",
        )
    if not isinstance(name, str):
        line = f"the name is {name!r}, {article(type(name).__name__)}."
        raise SpecError(line, fix=f"a str, for example {str(name)!r}.")
    axes = sorted(coordinate)
    high, low = divmod(_encode({axis: coordinate[axis] for axis in axes}), LOW + 1)
    # "%x", since Python limits the length of ints in decimal digits
    key = json.dumps([f"{number:x}", name, axes]).encode()
    return _scatter(hashlib.blake2b(key, digest_size=32).digest(), high, low)


def select_coordinate(layout: Layout, rank: int, vary: object) -> dict[str, int]:
    """Return the indices of a rank along some axes."""
    axes = resolve_axes("vary", vary, layout.axes)
    if axes:
        check_member(layout, rank)
    coordinate = layout.coordinate(rank) if axes else {}
    return {axis: coordinate.get(axis, 0) for axis in axes}


def stream_key(name: str, coordinate: Mapping[str, int]) -> str:
    """Return the key of a stream in a state: ``"dropout dp=1 tp=0"``, axes by their names."""
    return f"{name} {format_sizes(dict(sorted(coordinate.items())))}".rstrip()


def parse_stream_key(key: object) -> tuple[str, dict[str, int]] | None:
    """Return the name and the coordinate of a stream; None if the key has another form."""
    if not isinstance(key, str) or not key.split():
        return None
    name, *parts = key.split()
    pairs = [part.partition("=") for part in parts]
    if not all(axis and index.isdecimal() for axis, _, index in pairs):
        return None
    return name, {axis: int(index) for axis, _, index in pairs}


def select_streams(
    saved: Mapping[str, Sequence[int]], coordinate: Mapping[str, int]
) -> tuple[str, ...]:
    """Return the keys of the saved streams that a rank goes on with.

    A stream that the states lack begins anew only if no rank of the saved mesh can have had it.

    Args:
        saved: key of each stream to the sizes of its axes when it was drawn from last, in the
            order of the key; empty if they are not known.
        coordinate: the coordinate of the rank, with all axes of its mesh; empty on a rank outside.

    Raises:
        SpecError: if another rank of the saved mesh had a stream of this coordinate.
    """
    parsed = ((key, parse_stream_key(key)) for key in saved)
    families = group_by(((p[0], (*p[1],)), key) for key, p in parsed if p)
    own = []
    for (name, axes), keys in families.items():
        if axes and not (coordinate and {*axes} <= {*coordinate, *STANDARD}):
            continue  # a stream that this rank cannot enter
        indices = {axis: coordinate.get(axis, 0) for axis in axes}
        key = stream_key(name, indices)
        if key in saved:
            own.append(key)
        elif any(_holds(saved[other], indices) for other in keys):
            sizes = next((saved[other] for other in keys if saved[other]), ())
            mesh = format_sizes(dict(zip(axes, sizes, strict=False))) or "unknown sizes"
            raise SpecError(
                f"the states lack the stream {key!r}, which another rank may have drawn from.",
                f"They hold {summarize(keys, repr)}, of a mesh with {mesh}.",
                fix="save the states of all ranks, and load them merged, as in {**a, **b}. To "
                f"begin {name!r} anew, leave out its states.",
            )
    return (*own,)


def _holds(sizes: Sequence[int], coordinate: Mapping[str, int]) -> bool:
    """Return whether a mesh with these sizes, if they are known, has a coordinate."""
    return not sizes or all(i < n for i, n in zip(coordinate.values(), sizes, strict=True))


def _encode(coordinate: Mapping[str, object]) -> int:
    """Return the code of the indices in the given order; distinct for each coordinate."""
    code = 1
    for axis, index in coordinate.items():
        number = check_integer(axis, index, axis=axis) + 1
        if number < 1:
            line, fix = "Indices start at 0.", f"{axis}=0."
            raise CoordinateError(f"{axis} is {index}.", line, fix=fix, axis=axis, index=index)
        code = code << 2 * number.bit_length() - 1 | number
    if code.bit_length() > CODE_BITS:
        summary = "the coordinate is too large for a distinct seed."
        line = f"Its code has {code.bit_length()} bits; the limit is {CODE_BITS}."
        raise CoordinateError(summary, line, fix="fewer axes, or smaller indices.")
    return code


def _scatter(key: bytes, high: int, low: int) -> int:
    """Return the 63-bit seed of a code of 31 and 32 bits, by a bijection for each key."""
    keys = _hash(key, high)
    low = _mix(_mix(low ^ keys & LOW) ^ keys >> 32)
    high ^= _hash(key, LOW + 1 + low) >> 33  # an argument beyond all high halves of the same key
    return high << 32 | low


def _hash(key: bytes, number: int) -> int:
    digest = hashlib.blake2b(number.to_bytes(8, "big"), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _mix(word: int) -> int:
    """Apply the finalizer of MurmurHash3 (A. Appleby, public domain), a bijection of 32 bits."""
    word = (word ^ word >> 16) * 0x85EBCA6B & LOW
    word = (word ^ word >> 13) * 0xC2B2AE35 & LOW
    return word ^ word >> 16
