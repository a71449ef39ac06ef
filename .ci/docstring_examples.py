"""Let mkdocstrings read the section Example of a docstring as it reads Examples."""

from __future__ import annotations

from typing import Any

import griffe


class OneExample(griffe.Extension):
    """Rename the section, and leave out the marks of reStructuredText."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object once it is loaded."""
        if obj.docstring:
            text = obj.docstring.value.replace("Example:\n", "Examples:\n")
            obj.docstring.value = text
