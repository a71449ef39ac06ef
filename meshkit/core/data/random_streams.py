"""Which random stream each coordinate draws from: a seed out of coordinates, never out of ranks.

A coordinate becomes a code that knows no sizes, so that no stream moves when an axis grows. Each
index, plus one, is written as its binary digits after as many zeros as there are further digits
(P. Elias' gamma code, IEEE Trans. Inf. Theory 21, 1975), axis by axis, behind a leading one::

    dp=2 tp=0     1  011  1   = 23        tp=0 dp=2: the same
    dp=0 tp=2     1  1  011   = 27

One reads it back in one way only. A keyed one-to-one map then scatters the codes over 63 bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ..call import public
from ..errors import Change, CoordinateError, SpecError
from ..grid.axis_names import resolve_axes
from ..grid.layout import Layout
from ..grid.position import check_member
from ..text import article
from ..validate import check_integer, parse_integer

CODE_BITS = 63  # seeds fit into int64, where tensors and checkpoints hold them
LOW = 0xFFFFFFFF


@public("stream_seed")
def stream_seed(base: int, name: str = "", /, **coordinate: int) -> int:
    """The seed of a stream: the same for equal arguments, on every rank and in every job. Pure.

    Streams of different coordinates along the same axes, of one base and name, are distinct:

    * Their seeds differ, always. A coordinate that has no code of 63 bits is refused; with ``n``
      axes every one of fewer than ``2**((62 - n) // 2 + 1)`` ranks has one (2**29 with six axes).
    * Their low 32 bits, which are all that torch's CPU generator takes (Philox on CUDA takes 64),
      differ where both codes are below 2**32. With ``n`` axes they are for fewer than
      ``2**((31 - n) // 2 + 1)`` ranks: 2**16 with one axis, 2**15 with two, 2**13 with six. Beyond
      that two streams share them by chance, 1 in 2**32 for a pair.

    Between different bases, names or sets of axes seeds are equal by chance: 1 in 2**63 for a
    pair, 1 in 2**32 on the CPU. The names of the axes count: ``pp=1, ep=0`` and ``pp=0, ep=1`` are
    two streams, and so are ``dp=0`` and nothing. The order in which they are written does not.
    Sizes do not either: a stream stays as it is when any axis grows. Costs some microseconds.

    Args:
        base: the seed of the job, any int.
        name: what is drawn: ``"dropout"``, ``"layer.weight"``.
        **coordinate: axis name to index, 0 or more, for the axes along which streams differ. It
            need not be an axis of a mesh: ``block=3`` and ``epoch=1`` are coordinates too.

    Returns:
        An int from 0 to 2**63 - 1, which every generator of torch takes.

    Raises:
        SpecError: for a base that is no int, or a name that is no str.
        CoordinateError: for an index that is no int or negative, or a coordinate too far out.

    Example:
        >>> stream_seed(0), stream_seed(0, "dropout", dp=2, tp=0)
        (2630070831674974442, 2083744102578743801)
    """
    return seed_of(base, name, coordinate)


def seed_of(base: object, name: object, coordinate: Mapping[str, object]) -> int:
    """:func:`stream_seed` for a call of another name, which its errors then quote."""
    number = parse_integer(base)
    if number is None:
        raise SpecError(
            f"the base is {base!r}, {article(type(base).__name__)}.",
            "A base is any int, the same on all ranks.",
            fix="the int that seeds the job.",
        )
    if not isinstance(name, str):
        line = f"the name is {name!r}, {article(type(name).__name__)}."
        raise SpecError(line, fix=f"a str, such as {str(name)!r}.")
    axes = sorted(coordinate)
    high, low = divmod(_code({axis: coordinate[axis] for axis in axes}), LOW + 1)
    # "%x", as Python refuses to write out long ints in decimal digits
    said = json.dumps([f"{number:x}", name, axes]).encode()
    return _scattered(hashlib.blake2b(said, digest_size=32).digest(), high, low)


def varied(layout: Layout, rank: int, vary: object) -> dict[str, int]:
    """A rank's coordinate along some axes: ``"dp tp"`` or ``("dp", "tp")``; none is ``()``.

    Raises:
        SpecError: where ``vary`` is neither, or names an axis twice.
        UnknownAxisError: for an axis the layout does not have.
        CoordinateError: for a rank outside the layout, where an axis is named.
    """
    axes = resolve_axes("vary", vary, layout.axes)
    if axes:
        check_member(layout, rank)
    coordinate = layout.coordinate(rank) if axes else {}
    return {axis: coordinate[axis] for axis in axes}


def _code(coordinate: Mapping[str, object]) -> int:
    """The indices as one int, in the order given; no two coordinates of these axes share it."""
    code = 1
    for axis, index in coordinate.items():
        number = check_integer(axis, index, axis=axis) + 1
        if number < 1:
            line = f"{axis} is {index}."
            raise CoordinateError(
                line,
                "An index counts from 0.",
                fix=(Change(**{axis: 0}), "."),
                axis=axis,
                index=index,
            )
        code = code << 2 * number.bit_length() - 1 | number
    if code.bit_length() > CODE_BITS:
        raise CoordinateError(
            "the coordinate is too far out for a seed of its own.",
            f"Its code has {code.bit_length()} bits, and {CODE_BITS} fit.",
            fix="fewer axes, or smaller indices.",
        )
    return code


def _scattered(key: bytes, high: int, low: int) -> int:
    """A code of 31 and 32 bits, one to one, to a seed of 63, each half by the other in turn.

    For one ``high`` the low half of the seed is one to one with ``low`` by itself.
    """
    keys = _hashed(key, high)
    low = _mixed(_mixed(low ^ keys & LOW) ^ keys >> 32)
    high ^= _hashed(key, LOW + 1 + low) >> 33  # beyond all high halves, hashed by the same key
    return high << 32 | low


def _hashed(key: bytes, number: int) -> int:
    """64 bits of a number, by a key."""
    digest = hashlib.blake2b(number.to_bytes(8, "big"), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big")


def _mixed(word: int) -> int:
    """32 bits to 32 bits, one to one: the finalizer of MurmurHash3 (A. Appleby, public domain)."""
    word = (word ^ word >> 16) * 0x85EBCA6B & LOW
    word = (word ^ word >> 13) * 0xC2B2AE35 & LOW
    return word ^ word >> 16
