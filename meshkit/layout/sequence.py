"""SequencePlan: divide the tokens of a sequence into parts of equal length.

With causal attention, a late token attends to more keys than an early one. Zigzag cuts the sequence
into two chunks a part. Part r holds chunks r and 2 * parts - 1 - r, an early and a late one::

    16 tokens in 4 parts     contiguous          pairs     zigzag             pairs

    part 0                   0  1  2  3             10     0  1  14 15           34
    part 1                   4  5  6  7             26     2  3  12 13           34
    part 2                   8  9 10 11             42     4  5  10 11           34
    part 3                  12 13 14 15             58     6  7   8  9           34

A pair is a query of the part and a key that is not later, the work of causal attention. Zigzag is
the order of Llama 3's context parallelism (arXiv:2407.21783, 3.3.2), of Megatron-core's
``get_batch_on_this_cp_rank`` and of torch's ``context_parallel``, which calls it head-tail. The
name is that of zhuzilin/ring-flash-attention. Striped Attention (arXiv:2311.09431) is another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..call import format_value, parse_integer, quotes_call
from ..errors import CoordinateError, SpecError
from ..text import Ints, article, plural
from .axes import CONTEXT, SEQUENCE
from .layout import Layout

Order = Literal["contiguous", "zigzag"]
ORDERS = ("contiguous", "zigzag")


@dataclass(frozen=True, init=False)
class SequencePlan:
    """The division of the tokens of a sequence into parts of equal length.

    With one part the plan is the identity, for every length and order. A part that is no part of
    the plan raises CoordinateError.

    Raises:
        SpecError: if a value is invalid. If ``pad`` is False and ``length`` is not a multiple of
            ``parts``, for zigzag of ``2 * parts``; with the nearest lengths that are.

    Example:
        >>> plan = SequencePlan(16, 4, "zigzag")
        >>> [plan.positions(part).tolist() for part in (0, 3)]
        [[0, 1, 14, 15], [6, 7, 8, 9]]
        >>> print(SequencePlan(10, 4, "zigzag", pad=True))
        length 10 + padding 6 = tokens 4 x parts 4, zigzag
    """

    length: int  # tokens in the sequence
    parts: int
    order: Order = "contiguous"  # one run of tokens a part; zigzag: an early and a late chunk
    pad: bool = False  # whether a length that does not divide is padded at its end

    @quotes_call("SequencePlan")
    def __init__(
        self, length: int, parts: int, order: Order = "contiguous", pad: bool = False
    ) -> None:
        if order not in ORDERS:
            line = f"The orders of tokens are {' and '.join(ORDERS)}."
            fix = "order='contiguous', or order='zigzag'."
            raise SpecError(f"order is {order!r}.", line, fix=fix)
        if not isinstance(pad, bool | np.bool_):
            raise SpecError(f"pad is {pad!r}.", fix="pad=True, or pad=False.")
        num_parts = _parse_number("parts", parts, 1)
        unit = _length_unit(num_parts, order)
        num_tokens = _parse_number("length", length, unit)
        if num_tokens % unit and not pad:
            raise _indivisible_error(num_tokens, unit, f"parts {num_parts}", order)
        vars(self).update(length=num_tokens, parts=num_parts, order=order, pad=bool(pad))

    @property
    def padded(self) -> int:
        """Tokens of all parts together, with padding."""
        unit = _length_unit(self.parts, self.order)
        return -(-self.length // unit) * unit

    @property
    def tokens(self) -> int:
        """Tokens of one part, with padding; equal for all parts."""
        return self.padded // self.parts

    @quotes_call("plan.ranges")
    def ranges(self, part: int) -> tuple[range, ...]:
        """Return the runs of positions that a part holds, in ascending order. O(1).

        A part has one run, with zigzag two, and the last part one, since its chunks are adjacent.

        Example:
            >>> SequencePlan(16, 4, "zigzag").ranges(1)
            (range(2, 4), range(12, 14))
        """
        number = self._parse_part(part)
        chunk = self.tokens // 2
        early, late = number * chunk, (2 * self.parts - 1 - number) * chunk
        if self.order == "contiguous":
            early = number * self.tokens
        elif number < self.parts - 1:  # the chunks of the last part are adjacent
            return range(early, early + chunk), range(late, late + chunk)
        return (range(early, early + self.tokens),)

    @quotes_call("plan.positions")
    def positions(self, part: int) -> Ints:
        """Return the positions of the sequence that a part holds: its position ids.

        A query attends to the keys of all parts whose positions are not greater than its own.
        Positions of padding continue from ``length``, so no token attends to padding. The result
        is int64 (tokens,), ascending. Cost: O(tokens).

        Example:
            >>> SequencePlan(16, 4, "zigzag").positions(0).tolist()
            [0, 1, 14, 15]
        """
        runs = [np.arange(run.start, run.stop, dtype=np.int64) for run in self.ranges(part)]
        return np.concatenate(runs)

    @quotes_call("plan.is_token")
    def is_token(self, part: int) -> npt.NDArray[np.bool_]:
        """Return True for each token of a part, and False for padding: bool (tokens,)."""
        return self.positions(part) < self.length

    @quotes_call("plan.num_tokens")
    def num_tokens(self, part: int) -> int:
        """Return the number of tokens of a part without padding, from 0. O(1).

        A loss summed over the tokens of a part, times ``parts / length``, is on average over the
        parts the mean over the sequence.
        """
        ranges = self.ranges(part)
        return sum(min(run.stop, self.length) - min(run.start, self.length) for run in ranges)

    def inverse(self) -> Ints:
        """Return the index of each position in the concatenation of all parts.

        ``concatenation[plan.inverse()]`` is the sequence in order, with its padding at the end:
        int64 (padded,). Cost: O(padded).

        Example:
            >>> SequencePlan(8, 2, "zigzag").inverse().tolist()
            [0, 1, 4, 5, 6, 7, 2, 3]
        """
        indices = np.empty(self.padded, dtype=np.int64)
        indices[np.concatenate([*map(self.positions, range(self.parts))])] = np.arange(self.padded)
        return indices

    def _parse_part(self, part: object) -> int:
        number = parse_integer(part)
        if number is None or not 0 <= number < self.parts:
            raise CoordinateError(
                f"the plan has no part {part!r}.",
                f"It has {self.parts}, numbered from 0.",
                fix=f"a part from 0 to {self.parts - 1}.",
                index=part,
                size=self.parts,
            )
        return number

    def __str__(self) -> str:
        padding = f" + padding {self.padded - self.length}" if self.padded > self.length else ""
        parts = f"tokens {self.tokens} x parts {self.parts}"
        return f"length {self.length}{padding} = {parts}, {self.order}"


def sequence_axes(layout: Layout) -> tuple[str, ...]:
    """Return the axes that divide a sequence by their names, those of cp before those of sp."""
    return tuple(axis for kind in (CONTEXT, SEQUENCE) for axis in layout.axes if axis in kind)


def plan_sequence(
    layout: Layout,
    axes: tuple[str, ...],
    length: int,
    *,
    order: Order = "contiguous",
    pad: bool = False,
) -> SequencePlan:
    """Return the plan of a sequence that is cut over some axes of a layout."""
    sizes = {axis: layout.size(axis) for axis in axes}
    parts = math.prod(sizes.values())
    try:
        return SequencePlan(length, parts, order, pad)
    except SpecError as error:
        if error.above is None:
            raise
        product = " x ".join(f"{axis} {sizes[axis]}" for axis in axes)
        raise _indivisible_error(length, _length_unit(parts, order), product, order) from None


def _parse_number(name: str, value: object, valid: int) -> int:
    number = parse_integer(value)
    if number is None or number < 1:
        line = "Lengths and parts are whole numbers of 1 or more."
        shown = format_value(value, article(type(value).__name__))
        fix = f"{name}={valid}, for example."
        fix = "x.shape[1], or another dim." if hasattr(value, "shape") else fix
        raise SpecError(f"{name} is {shown}.", line, fix=fix)
    return number


def _length_unit(parts: int, order: Order) -> int:
    """Return the number that must divide the length. One part holds all tokens in any order."""
    return 2 * parts if order == "zigzag" and parts > 1 else parts


def _indivisible_error(length: int, unit: int, product: str, order: Order) -> SpecError:
    """Return the error of a length that does not divide, with the nearest lengths that do."""
    above = -(-length // unit) * unit
    below = above - unit or None
    nearest = [str(n) for n in (below, above) if n]
    zigzag = order == "zigzag"
    factors = f"2 x {product}" if zigzag else product
    equals = f" = {unit}" if " x " in factors else ""
    return SpecError(
        f"{length} is not a multiple of {factors}{equals}.",
        *["Zigzag cuts the sequence into two chunks a part."] * zigzag,
        f"Nearest {plural('length', len(nearest))}: {' and '.join(nearest)}.",
        fix=f"length {' or '.join(nearest)}, or pad=True, which pads to {above}.",
        below=below,
        above=above,
    )
