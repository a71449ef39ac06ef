"""Compute a fingerprint of a tensor on its own device, without a copy to the host."""

from __future__ import annotations

import hashlib

import torch

CHUNK = 2**20  # elements that are widened to int64 at once
WORDS = {1: torch.uint8, 2: torch.int16}  # bytes of an element to the integers that replace it


def fingerprint(tensor: torch.Tensor) -> str:
    """Return 16 hexadecimal digits that depend on every byte of a tensor, and not on its device.

    Each chunk gives the sum of its elements times fixed odd factors, modulo 2**64. Sums of integers
    are exact, so their order does not matter. The sums are hashed on the host.

    Cost: one pass over the tensor, 8 MiB of memory twice, and one copy of 8 bytes per MiB.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    # the factors lose the highest bit of an int64, so that wide elements become int32
    words = plain.view(WORDS.get(plain.element_size(), torch.int32))
    factors = _odd_factors(min(CHUNK, len(words)), words.device)
    sums = [
        (chunk * factors[: len(chunk)]).sum() for chunk in torch.split(words, CHUNK) if len(chunk)
    ]
    content = torch.stack(sums).cpu().numpy().tobytes() if sums else b""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _odd_factors(count: int, device: torch.device) -> torch.Tensor:
    """Return distinct odd numbers without a pattern: int64 (count,), by the mix of splitmix64."""
    mixed = torch.arange(1, count + 1, device=device) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    mixed = (mixed ^ (mixed >> 27)) * -7723592293110705685
    return (mixed ^ (mixed >> 31)) | 1
