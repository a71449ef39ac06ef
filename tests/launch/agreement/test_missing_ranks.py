"""The list of missing ranks in an error."""

from __future__ import annotations

from meshkit.launch.agreement.missing_ranks import first_few


def test_a_long_list_is_cut_after_eight_names() -> None:
    assert first_few(list("abcdefgh")) == list("abcdefgh")
    assert first_few(list("abcdefghij")) == [*"abcdefgh", "and 2 more"]
