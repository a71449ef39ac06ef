"""docs/llms.txt: what a language model should know, written from docstrings, errors and Words.

``pytest tests/messages/test_llms.py --update-docs`` writes it anew.
"""

from __future__ import annotations

import inspect
import re
import textwrap

import meshkit
from meshkit import Mesh
from tests.messages.cases import CASES, error_of
from tests.pages import ROOT, read_blocks

PAGE = ROOT / "docs" / "llms.txt"
TRAINER = "## A trainer (torchrun --nproc-per-node 4 train.py)\n"
CALLS = (
    "init shutdown spawn detect build_mesh factor_world mesh.group mesh.gradient_group "
    "mesh.device_mesh mesh.view mesh.batch mesh.sampler mesh.loader mesh.sequence "
    "mesh.redistribute mesh.shift mesh.transfer mesh.clip_grad_norm mesh.guard mesh.recover"
)
ERRORS = (
    "sizes whose product is not the world size",
    "an axis of another library",
    "an unknown axis",
    "a batch that does not divide",
    "a sequence that does not divide",
    "a launcher variable that is not set",
    "init with a host and a port",
    "spawn of a function that expects a rank",
    "a gathered axis without a mark",
    "a rank does not arrive",
)


def call_of(name: str) -> str:
    """Return the first line of the docstring of a call, and its example."""
    owner, _, attribute = name.rpartition(".")
    function = vars(Mesh)[attribute] if owner else getattr(meshkit, name)
    documentation = inspect.getdoc(function) or ""
    example = textwrap.dedent(documentation.partition("Example:\n")[2]).split("\n\n")[0]
    shown = re.sub(r"``(.*?)``", r"\1", example).rstrip()
    parameters = list(inspect.signature(function).parameters.values())[bool(owner) :]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    title = name if owner else f"meshkit.{name}"
    summary = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", documentation.splitlines()[0])
    heading = f"### {title}{inspect.Signature(bare)}\n{summary.replace('``', '`')}"
    return f"{heading}\n```python\n{shown}\n```\n"


def write() -> str:
    """Return the text of the page."""
    words = (ROOT / "docs" / "start" / "words.md").read_text()
    rows = re.findall(r"^\| (?!word|---)(.+?) \| (.+?) \| (.+?) \|$", words, re.M)
    errors = [error_of(CASES[name]) for name in ERRORS]
    errors[-1].quote("build_mesh(dp=4)")  # its case calls a judge
    trainer = next(b.body for b in read_blocks((ROOT / "README.md").read_text()) if b.title)
    introduction = PAGE.read_text().partition(TRAINER)[0]  # the only part written by hand
    return introduction + "\n".join(
        [
            TRAINER,
            f"```python\n{trainer}```\n",
            "## The twenty calls\n",
            *map(call_of, CALLS.split()),
            "## The ten most frequent errors\n",
            *(f"```text\n{type(error).__name__}: {error}\n```\n" for error in errors),
            "## The words\n",
            *(f"- {word}: {meaning} ({code})" for word, meaning, code in rows),
            "",
        ]
    )


def test_the_page_is_written_from_the_code(updates_docs: bool) -> None:
    if updates_docs:
        PAGE.write_text(write())
    assert PAGE.read_text() == write()


def test_each_call_has_an_example() -> None:
    assert [name for name in CALLS.split() if "```python\n\n```" in call_of(name)] == []
    assert len({*CALLS.split()}) == 20
    assert len({*ERRORS}) == 10
