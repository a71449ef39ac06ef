"""SequencePlan: which tokens of a sequence each part holds, so that all hold equally many.

With causal attention a late token sees more than an early one. Zigzag cuts the sequence into two
chunks a part and gives part r chunks r and 2 * parts - 1 - r, an early one and a late one::

    16 tokens in 4 parts     contiguous          pairs     zigzag             pairs

    part 0                   0  1  2  3             10     0  1  14 15           34
    part 1                   4  5  6  7             26     2  3  12 13           34
    part 2                   8  9 10 11             42     4  5  10 11           34
    part 3                  12 13 14 15             58     6  7   8  9           34

Pairs are those of a query here and a key no later than it: what causal attention computes. Zigzag
is the order of Llama 3's context parallelism (arXiv:2407.21783, 3.3.2), of Megatron-core's
``get_batch_on_this_cp_rank`` and of torch's ``context_parallel``, which calls it head-tail; the
name is that of zhuzilin/ring-flash-attention. Striped Attention (arXiv:2311.09431) is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arrays import Ints
from ..call import Call, public
from ..errors import Change, CoordinateError, SpecError
from ..text import plural
from ..validate import parse_integer

Order = Literal["contiguous", "zigzag"]
ORDERS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class SequencePlan:
    """How the tokens of a sequence are dealt to parts, the same number to each.

    With one part all is the identity, whatever the length and the order.

    Attributes:
        length: tokens in the sequence.
        parts: how many parts there are.
        order: ``"contiguous"``, a run of the sequence a part; or ``"zigzag"``, an early and a late
            chunk a part, so that causal attention is equal work for all.
        pad: whether a length that does not divide is filled up with padding at its end. False
            refuses it.

    Raises:
        SpecError: where ``length`` is no multiple of ``parts``, of ``2 * parts`` for zigzag, and
            ``pad`` is False, with the nearest lengths that are; for values that cannot be.

    Example:
        >>> plan = SequencePlan(16, 4, "zigzag")
        >>> [plan.positions(part).tolist() for part in (0, 3)]
        [[0, 1, 14, 15], [6, 7, 8, 9]]
        >>> print(SequencePlan(10, 4, "zigzag", pad=True))
        length 10 + padding 6 = tokens 4 x parts 4, zigzag
    """

    length: int
    parts: int
    order: Order = "contiguous"
    pad: bool = False

    @public("SequencePlan")
    def __post_init__(self) -> None:
        options = {"order": self.order, "pad": self.pad}
        fields = _checked({"length": self.length, "parts": self.parts, **options})
        for name, value in fields.items():
            object.__setattr__(self, name, value)  # as plain ints

    @property
    def padded(self) -> int:
        """Tokens of all parts together, padding included."""
        return _filled(self.length, _unit(self.parts, self.order))

    @property
    def tokens(self) -> int:
        """Tokens of one part, padding included: the same for all."""
        return self.padded // self.parts

    def ranges(self, part: int) -> tuple[range, ...]:
        """The runs of positions that a part holds, in ascending order: one, or zigzag's two. O(1).

        The last part of zigzag has one: its two chunks touch.

        Raises:
            CoordinateError: where there is no such part.

        Example:
            >>> SequencePlan(16, 4, "zigzag").ranges(1)
            (range(2, 4), range(12, 14))
        """
        return self._ranges(self._part("plan.ranges", part))

    def positions(self, part: int) -> Ints:
        """Which positions of the sequence a part holds: its position ids. O(tokens).

        A query sees the keys whose positions are no greater than its own, whichever parts they lie
        on. Those of padding run on from ``length``, so no token sees any of it.

        Returns:
            int64 (tokens,), ascending.

        Raises:
            CoordinateError: where there is no such part.
        """
        return self._positions(self._part("plan.positions", part))

    def is_token(self, part: int) -> npt.NDArray[np.bool_]:
        """Which of a part's places hold a token: False for padding, which comes last. O(tokens).

        Returns:
            bool (tokens,).

        Raises:
            CoordinateError: where there is no such part.

        Example:
            >>> SequencePlan(7, 2, pad=True).is_token(1).tolist()
            [True, True, True, False]
        """
        return self._positions(self._part("plan.is_token", part)) < self.length

    def num_tokens(self, part: int) -> int:
        """How many of a part's places hold a token, which may be none. O(1).

        A loss summed over a part's tokens, times ``parts / length``, is on average over the parts
        the mean over the sequence.

        Raises:
            CoordinateError: where there is no such part.
        """
        ranges = self._ranges(self._part("plan.num_tokens", part))
        return sum(min(run.stop, self.length) - min(run.start, self.length) for run in ranges)

    def inverse(self) -> Ints:
        """Where each position lies in the concatenation of all parts' tokens. O(padded).

        ``concatenation[plan.inverse()]`` is the sequence in order, its padding at the end.

        Returns:
            int64 (padded,).

        Example:
            >>> SequencePlan(8, 2, "zigzag").inverse().tolist()
            [0, 1, 4, 5, 6, 7, 2, 3]
        """
        found = np.empty(self.padded, dtype=np.int64)
        for part in range(self.parts):
            first = part * self.tokens
            found[self._positions(part)] = np.arange(first, first + self.tokens)
        return found

    def _part(self, method: str, part: object) -> int:
        number = parse_integer(part)
        if number is None or not 0 <= number < self.parts:
            raise CoordinateError(
                f"{Call(method, (part,))}: there is no part {part!r}.",
                f"There are {self.parts}, counted from 0.",
                fix=f"a part from 0 to {self.parts - 1}.",
                index=part,
                size=self.parts,
            )
        return number

    def _ranges(self, part: int) -> tuple[range, ...]:
        chunk = self.tokens // 2
        early, late = part * chunk, (2 * self.parts - 1 - part) * chunk
        if self.order == "contiguous":
            early = part * self.tokens
        elif part < self.parts - 1:  # the chunks of the last part touch
            return range(early, early + chunk), range(late, late + chunk)
        return (range(early, early + self.tokens),)

    def _positions(self, part: int) -> Ints:
        runs = [np.arange(run.start, run.stop, dtype=np.int64) for run in self._ranges(part)]
        return np.concatenate(runs)

    def __str__(self) -> str:
        padding = f" + padding {self.padded - self.length}" if self.padded > self.length else ""
        parts = f"tokens {self.tokens} x parts {self.parts}"
        return f"length {self.length}{padding} = {parts}, {self.order}"


def sequence_plan(length: int, parts: int, order: Order, pad: bool, cut: str) -> SequencePlan:
    """A plan for a call of another name, which its errors then quote.

    Args:
        length: as in :class:`SequencePlan`, like the next three.
        parts: likewise.
        order: likewise.
        pad: likewise.
        cut: where the parts come from, for the errors: ``"cp 2 x sp 4"``.
    """
    asked = {"length": length, "parts": parts, "order": order, "pad": pad}
    _checked(asked, cut)
    return SequencePlan(length, parts, order, pad)


def changed(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are not at their default, as a caller would write them.

    Example:
        >>> changed({"order": "zigzag", "pad": False})
        {'order': 'zigzag'}
    """
    defaults = {"order": "contiguous", "pad": False}
    return {name: value for name, value in options.items() if repr(value) != repr(defaults[name])}


def _checked(asked: Mapping[str, Any], cut: str = "") -> dict[str, object]:
    """The fields, the numbers as plain ints."""
    if asked["order"] not in ORDERS:
        raise SpecError(
            f"order is {asked['order']!r}.",
            f"The orders of tokens are {' and '.join(ORDERS)}.",
            fix="order='contiguous', or order='zigzag'.",
        )
    if not isinstance(asked["pad"], bool | np.bool_):
        raise SpecError(f"pad is {asked['pad']!r}.", fix="pad=True, or pad=False.")
    parts = _number("parts", asked["parts"], 1)
    unit = _unit(parts, asked["order"])
    length = _number("length", asked["length"], unit)
    if length % unit and not asked["pad"]:
        zigzag = asked["order"] == "zigzag"
        raise _indivisible(length, unit, cut or f"parts {parts}", zigzag=zigzag)
    return {"length": length, "parts": parts, "order": asked["order"], "pad": bool(asked["pad"])}


def _number(name: str, value: object, works: int) -> int:
    number = parse_integer(value)
    if number is None or number < 1:
        raise SpecError(
            f"{name} is {value!r}.",
            "Lengths and parts are whole numbers of 1 or more.",
            fix=f"{name} {works}, say.",
        )
    return number


def _unit(parts: int, order: Order) -> int:
    """What the length must be a multiple of. One part holds all, so its chunks may be uneven."""
    return 2 * parts if order == "zigzag" and parts > 1 else parts


def _filled(length: int, unit: int) -> int:
    return -(-length // unit) * unit


def _indivisible(length: int, unit: int, cut: str, *, zigzag: bool) -> SpecError:
    """The length that does not divide, with the nearest that do."""
    above = _filled(length, unit)
    below = above - unit or None
    near = [str(n) for n in (below, above) if n]
    product = f"2 x {cut}" if zigzag else cut
    equals = f" = {unit}" if " x " in product else ""
    return SpecError(
        f"{length} is not a multiple of {product}{equals}.",
        *["Zigzag cuts the sequence into two chunks a part."] * zigzag,
        f"Nearest {plural('length', 1 + bool(below))}: {' and '.join(near)}.",
        fix=(f"length {' or '.join(near)}, or ", Change(pad=True), f", which fills up to {above}."),
        below=below,
        above=above,
    )
