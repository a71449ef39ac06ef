"""A shuffled order that is computed where it is asked for: no array, and the same everywhere.

The bits of a position are cut in two halves, and each in turn is changed by a hash of the other: a
Feistel network. Each step can be undone, so no two positions meet. What lands beyond the last
sample goes through again until it does not (cycle walking)::

    high  --xor-------------- ... --  high
             |       |                        then, where that is no sample: again
           hash    hash
             |       |
    low   ---------xor------- ... --  low

Unequal halves and a hash a round are as in Mitchell, Stokes, Frank and Holmes, "Bandwidth-Optimal
Random Shuffling for GPUs" (arXiv:2106.06161); cycle walking is from Black and Rogaway, "Ciphers
with Arbitrary Finite Domains" (CT-RSA 2002); the hash is the finalizer of SplitMix64 (Steele, Lea
and Flood, OOPSLA 2014). For training, not for secrets.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from ..arrays import Ints
from ..call import public
from ..errors import CoordinateError

Words = NDArray[np.uint64]

LEAST_BITS = 6  # in halves of fewer than three bits there is too little to choose from
SHIFTS = np.array([30, 27, 31], dtype=np.uint64)
FACTORS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)


def shuffled(indices: Ints, length: int, seed: int, epoch: int) -> Ints:
    """What stands at some positions of the shuffled order of ``length`` samples.

    Over all positions it is a permutation. It depends on the four numbers alone, not on a version
    of numpy or torch. O(positions asked), a tenth of a microsecond each where many are asked.

    Args:
        indices: positions in the order, each from 0 to ``length - 1``, in any shape.
        length: samples in all.
        seed: any int.
        epoch: any int; another epoch is another order.

    Returns:
        int64 in the shape of ``indices``, each from 0 to ``length - 1``.

    Raises:
        CoordinateError: for a position outside.

    Example:
        >>> shuffled(np.arange(8), 8, seed=0, epoch=0).tolist()
        [1, 4, 0, 2, 3, 7, 6, 5]
    """
    places = np.asarray(indices, dtype=np.int64)
    _check_inside(places, length)
    keys = np.frombuffer(hashlib.blake2b(f"{seed} {epoch} {length}".encode()).digest(), "<u8")
    found = _changed(places.ravel().astype(np.uint64), length, keys)
    while len(outside := np.flatnonzero(found >= length)):
        found[outside] = _changed(found[outside], length, keys)
    return found.astype(np.int64).reshape(places.shape)


def _changed(words: Words, length: int, keys: Words) -> Words:
    """Once through the network: a bijection of the smallest power of two that holds them all."""
    bits = max((length - 1).bit_length(), LEAST_BITS)
    width = np.uint64(bits // 2)  # of the low half; the high one has as many bits or one more
    masks = [np.uint64((1 << (bits - bits // 2)) - 1), np.uint64((1 << bits // 2) - 1)]
    halves = [words >> width, words & masks[1]]
    for number, key in enumerate(keys):
        here = number % 2
        halves[here] ^= _hashed(halves[1 - here] + key) & masks[here]
    mixed: Words = halves[0] << width | halves[1]
    return mixed


def _hashed(words: Words) -> Words:
    """The finalizer of SplitMix64: every bit of a word depends on all of it. Changes its input."""
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        words ^= words >> shift
        words *= factor
    words ^= words >> SHIFTS[-1]
    return words


@public("shuffled")
def _check_inside(places: Ints, length: int) -> None:
    wrong = places[(places < 0) | (places >= length)]
    if len(wrong):
        raise CoordinateError(
            f"there is no position {wrong[0]}.",
            f"They run from 0 to {length - 1}.",
            fix="positions inside the order.",
            index=int(wrong[0]),
            size=length,
        )
