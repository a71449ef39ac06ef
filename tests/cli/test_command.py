"""Text that any terminal can show."""

from __future__ import annotations

from meshkit.cli.main import to_ascii


def test_characters_that_the_terminal_can_show_are_kept() -> None:
    assert to_ascii("─ │ \u2713", "─│") == "─ │ \\u2713"
    assert to_ascii("─") == "\\u2500"
    assert to_ascii("h\u00f4te") == "h\\xf4te"


def test_ascii_text_is_kept() -> None:
    assert to_ascii("a\n  b") == "a\n  b"
    assert to_ascii("\udc80").isascii()  # os.fsdecode returns it for undecodable host names
