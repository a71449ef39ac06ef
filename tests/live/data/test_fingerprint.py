"""Fingerprints of tensors: equal for equal bytes, different for every change of a few elements."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from meshkit.live.data import fingerprint as module
from meshkit.live.data.checks import fingerprint

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex128]


def numbers(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(40, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_flip_of_bits_changes_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 16)  # several chunks, and a part of one
    whole = numbers(dtype)
    seen = {fingerprint(whole)}
    changes = 0
    for mask in (1, 128):  # the lowest bit, and the sign
        size = whole.element_size()
        for places in [*combinations(range(12), 1), *combinations(range(12), 2), (0, 1, 2, 3)]:
            changed = whole.clone()
            content = changed.view(torch.uint8)
            for place in places:
                content[place * size + (size - 1 if mask == 128 else 0)] ^= mask
            seen.add(fingerprint(changed))
            changes += 1
    assert len(seen) == changes + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_bytes_matter(dtype: torch.dtype) -> None:
    whole = numbers(dtype).view(4, 10)
    assert fingerprint(whole.T.contiguous().T) == fingerprint(whole)
    assert fingerprint(whole[:, ::2]) == fingerprint(whole[:, ::2].clone())
    assert fingerprint(whole.requires_grad_(dtype.is_floating_point)) == fingerprint(whole)


def test_an_empty_shard_and_a_number() -> None:
    assert fingerprint(torch.empty(0, 3)) == fingerprint(torch.empty(0))
    assert fingerprint(torch.tensor(1.0)) != fingerprint(torch.tensor(2.0))
    assert fingerprint(torch.tensor(0.0)) != fingerprint(torch.tensor(-0.0))
    nan = torch.tensor(float("nan"))
    assert fingerprint(nan) == fingerprint(nan.clone())
