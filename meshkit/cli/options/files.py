"""A file that was named on the command line: its text, or a word on why not."""

from __future__ import annotations

import json

MOST = 2**26  # bytes: some four million lines of hosts


def text_of(path: str) -> str:
    """The text of a file, which may be a pipe.

    Args:
        path: as typed.

    Raises:
        ValueError: with the reason, where there is no such file, it is no text, or it holds more
            than 64 MiB.
    """
    if not path:
        raise ValueError("there is no name of a file")
    try:
        with open(path, "rb") as file:
            found = file.read(MOST + 1)
        if len(found) > MOST:
            raise ValueError(f"it holds more than {MOST} bytes")
        return found.decode()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError("it is no text") from error


def object_of(path: str) -> dict[str, object]:
    """The JSON object in a file.

    Args:
        path: as typed.

    Raises:
        ValueError: with the reason, in a sentence, where there is none.
    """
    try:
        found = json.loads(text_of(path))
    except RecursionError as error:
        raise ValueError("It is nested too deeply.") from error
    except ValueError as error:
        raise ValueError(f"{error}.") from error
    if not isinstance(found, dict):
        raise ValueError("It holds no JSON object.")
    return found
