"""What a rank has done in a generation it counts itself."""

from __future__ import annotations

import torch.distributed as dist

from meshkit.launch.store.client import Generation


def test_a_generation_counts_its_meetings_without_a_word_to_the_store() -> None:
    base = dist.HashStore()
    one, two = Generation(1, base), Generation(2, base)
    assert [one.next_meeting(""), one.next_meeting(""), one.next_meeting("mesh/1/")] == [1, 2, 1]
    assert two.next_meeting("") == 1
    assert base.num_keys() == 0
    one.set("a", "b")
    assert base.check(["meshkit/1/a"])
