"""Let mkdocstrings read meshkit: its methods in other files, Example, Cost, and marks of Sphinx."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")  # :meth:`~meshkit.Mesh.view`
MODULE = re.compile(r":mod:`(meshkit\.[\w.]+)`")  # a text of the page on how the methods work
COST = re.compile(r"^Cost: (.+(?:\n.+)*)\n*", re.M)  # shown behind the parameters
LITERAL = re.compile(r"^(.*\S)?::$", re.M)  # the line before an indented block


class PlainDocstrings(griffe.Extension):
    """Rewrite each docstring once it is loaded, and show the methods of Mesh that are elsewhere."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Put the function into the class for each method like ``grad_norm = norm.grad_norm``."""
        mesh = pkg["mesh.mesh.Mesh"]
        for name, member in [*mesh.members.items()]:
            if member.is_attribute and isinstance(member.value, griffe.ExprAttribute):
                mesh.set_member(name, pkg[member.value.canonical_path.partition(".")[2]])

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rename the section, and replace the marks by those of Markdown."""
        if obj.docstring is None:
            return
        text = obj.docstring.value.replace("Example:\n", "Examples:\n")
        costs = "".join(f"\n\nCost:\n    {' '.join(m[1].split())}" for m in COST.finditer(text))
        text = COST.sub("", text).rstrip() + costs
        if obj.is_function:
            text = MODULE.sub(r"[`\1`](mechanisms.md#\1)", text)
        text = ROLE.sub(r"`\1`", text)
        obj.docstring.value = LITERAL.sub(lambda m: f"{m[1]}:" if m[1] else "", text)
