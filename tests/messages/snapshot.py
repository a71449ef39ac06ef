"""Read, compare and write the snapshot of error texts, ``messages.txt``.

An entry is a line ``# NAME`` and the text below it, which begins with the class of the error.
``python -m pytest tests/messages --update-messages -n 0`` writes the file anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from meshkit import MeshkitError

FILE = Path(__file__).parent / "messages.txt"
MARK = "# "

Case = Callable[[], object]


def unique(*cases: tuple[str, Case]) -> dict[str, Case]:
    """Return the cases by name.

    Raises:
        ValueError: if two cases have the same name.
    """
    names = [name for name, _ in cases]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"two cases have the same name: {', '.join(repeated)}")
    return dict(cases)


def merge(groups: Iterable[Mapping[str, Case]]) -> dict[str, Case]:
    """Return the cases of all groups. Raises ValueError if two have the same name."""
    return unique(*(case for group in groups for case in group.items()))


def error_of(case: Case) -> MeshkitError:
    """Return the error that a case raises."""
    try:
        case()
    except MeshkitError as error:
        return error
    raise AssertionError("the case raises no error")


def text_of(case: Case) -> str:
    """Return the entry of a case: the class of its error and the text."""
    error = error_of(case)
    return f"{type(error).__name__}: {error}"


def parse(text: str) -> dict[str, str]:
    """Return the entries of a snapshot by name.

    Raises:
        ValueError: if a name occurs twice.
    """
    entries: dict[str, str] = {}
    for block in f"\n{text}".split(f"\n{MARK}")[1:]:
        name, _, body = block.partition("\n")
        if name in entries:
            raise ValueError(f"two entries have the same name: {name}")
        entries[name] = body.rstrip("\n")
    return entries


def render(entries: Mapping[str, str]) -> str:
    """Return the text of a snapshot, the inverse of :func:`parse`."""
    return "\n\n".join(f"{MARK}{name}\n{text}" for name, text in entries.items()) + "\n"


def read() -> dict[str, str]:
    """Return the entries of the snapshot file, or none if there is no file."""
    return parse(FILE.read_text()) if FILE.exists() else {}


def update(cases: Mapping[str, Case]) -> list[str]:
    """Write the texts of all cases, and return a line for each case that has none.

    An entry stays as it is if its case fails in any other way than with a MeshkitError.
    """
    entries, failures, before = {}, [], read()
    for name, case in cases.items():
        try:
            entries[name] = text_of(case)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            entries.update({name: before[name]} if name in before else {})
    FILE.write_text(render(entries))
    return failures
