"""Every case raises the error that the snapshot has for it, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.messages import snapshot
from tests.messages.all_cases import CASES


@pytest.fixture(scope="session")
def entries(updates_messages: bool) -> dict[str, str]:
    """Return the entries of the snapshot, written anew if the option says so."""
    failures = snapshot.update(CASES) if updates_messages else []
    if failures:
        pytest.fail("\n".join(["cases without a MeshkitError:", *failures]))
    return snapshot.read()


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_the_one_of_the_snapshot(name: str, entries: dict[str, str]) -> None:
    assert name in entries, "no entry: python -m pytest tests/messages --update-messages -n 0"
    assert snapshot.text_of(CASES[name]) == entries[name]


def test_every_entry_has_a_case(entries: dict[str, str]) -> None:
    assert [name for name in entries if name not in CASES] == []


@pytest.mark.parametrize("name", CASES)
def test_a_text_has_the_call_first_the_evidence_and_one_fix_last(name: str) -> None:
    first, *others = str(snapshot.error_of(CASES[name])).splitlines()
    assert first.strip()
    assert all(line.startswith("  ") and line[2] != " " for line in others)
    assert [line.startswith("  Fix: ") for line in others] == [False] * (len(others) - 1) + [True]
    commands = ("  Fix: torchrun ", "  Fix: srun ")  # to be copied, without a period
    assert all(line.endswith((".", "?")) or line.startswith(commands) for line in (first, *others))


def test_the_number_one_stands_before_a_singular() -> None:
    texts = [str(snapshot.error_of(case)) for case in CASES.values()]
    assert [text for text in texts if re.search(r"\b1 (ranks|positions|axes)\b", text)] == []


def test_two_cases_of_one_name_fail() -> None:
    with pytest.raises(ValueError, match="two cases have the same name: a"):
        snapshot.unique(("a", list), ("b", list), ("a", list))
    with pytest.raises(ValueError, match="two cases have the same name: a"):
        snapshot.merge([{"a": list}, {"a": list}])
    with pytest.raises(ValueError, match="two entries have the same name: a"):
        snapshot.parse("# a\nx\n\n# a\ny\n")


def test_a_snapshot_is_read_as_it_was_written() -> None:
    entries = {"a": "SpecError: f(): x.\n  Fix: y.", "b": "KeyError: z\n\n  w"}
    assert snapshot.parse(snapshot.render(entries)) == entries


def test_an_update_keeps_the_entry_of_a_case_that_fails_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "messages.txt"
    file.write_text("# broken\nSpecError: old.\n\n# gone\nSpecError: x.\n")
    monkeypatch.setattr(snapshot, "FILE", file)
    failures = snapshot.update({"broken": lambda: int("x"), "right": CASES["an axis of size 0"]})
    assert failures == ["broken: ValueError: invalid literal for int() with base 10: 'x'"]
    assert list(snapshot.read()) == ["broken", "right"]
    assert snapshot.read()["broken"] == "SpecError: old."
