"""Files that are named on the command line, as text or as JSON."""

from __future__ import annotations

import json

MAX_BYTES = 2**26  # about four million lines of hosts


def read_text(path: str) -> str:
    """Read the text of a file or a pipe."""
    if not path:
        raise ValueError("the file name is empty")
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error


def read_json_object(path: str) -> dict[str, object]:
    """Read the JSON object in a file."""
    try:
        value = json.loads(read_text(path))
    except RecursionError as error:
        raise ValueError("The JSON is nested too deeply.") from error
    except ValueError as error:
        raise ValueError(f"{error}.") from error
    if not isinstance(value, dict):
        raise ValueError("The file has no JSON object.")
    return value
