"""The store of one generation of a job: the ranks that joined together, under keys of their own."""

from __future__ import annotations

from collections import Counter

import torch.distributed as dist


class Generation(dist.PrefixStore):
    """A store under the prefix of a generation, to which nobody has been before this process.

    So what this rank has done here it counts itself, without a word to the store.

    Args:
        number: of the generation.
        base: the store of the job.
    """

    def __init__(self, number: int, base: dist.Store) -> None:
        super().__init__(f"meshkit/{number}", base)
        self._meetings: Counter[str] = Counter()

    def next_meeting(self, keys: str) -> int:
        """The number of this rank's next meeting under some keys, from 1."""
        self._meetings[keys] += 1
        return self._meetings[keys]
