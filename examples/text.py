"""The text that the trainers read: a file of bytes, cut into windows.

By default it is the standard library's own source, which every machine with Python has.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

VOCABULARY = 256  # bytes


def read_text(path: Path | None) -> Tensor:
    """Return the bytes of a file; by default those of the standard library, sorted by name."""
    files = [path] if path else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    whole = bytearray(b"".join(file.read_bytes() for file in files))
    return torch.from_numpy(np.asarray(whole))


class Windows(Dataset[Tensor]):
    """A text cut into windows of ``seq`` bytes, each with the byte that follows."""

    def __init__(self, text: Tensor, seq: int) -> None:
        self.text, self.seq = text, seq

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.seq

    def __getitem__(self, samples: Any) -> Tensor:
        """One window, (seq + 1,), or those of an array of samples, (..., seq + 1)."""
        starts = torch.as_tensor(samples) % len(self) * self.seq
        return self.text[starts[..., None] + torch.arange(self.seq + 1)].long()
