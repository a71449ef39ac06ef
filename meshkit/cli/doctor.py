"""``meshkit doctor``: what a job needs of this machine, each with OK or LOOK HERE."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict

from ..core.words import count_noun
from ..launch.finding import Finding
from . import Answer, Command, seconds

DEADLINE = 6.0  # that of launch/network, without which the other commands start faster


def run(asked: Namespace) -> Answer:
    """Check the environment. Local; imports torch, joins nothing.

    Args:
        asked: ``json`` and ``timeout``, the seconds that one lookup of a name may take.
    """
    from ..launch.checkup import checkup

    findings = checkup(deadline=asked.timeout)
    write = as_json if asked.json else as_text
    return Answer(write(findings), all(finding.ok for finding in findings))


def as_text(findings: Sequence[Finding]) -> str:
    """Findings as a person reads them, a line or a few each.

    Example:
        >>> print(as_text([Finding("python", True, "3.12"), Finding("torch", False, "1.0", "pip")]))
        OK         python  3.12
        LOOK HERE  torch   1.0
                           Fix: pip
        <BLANKLINE>
        1 of 2 findings to look at: torch.
    """
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [line for finding in findings for line in _lines(finding, width)]
    wrong = [finding.name for finding in findings if not finding.ok]
    last = f"All {count_noun(len(findings), 'finding')} OK."
    if wrong:
        last = f"{len(wrong)} of {count_noun(len(findings), 'finding')} to look at: {', '.join(wrong)}."
    return "\n".join([*lines, "", last])


def _lines(finding: Finding, width: int) -> list[str]:
    """The lines of one finding; all but the first start below the words of the first."""
    first, *rest = finding.found.split("\n")
    fix = [f"Fix: {finding.advice}"] if finding.advice else []
    head = f"{'OK' if finding.ok else 'LOOK HERE':9}  {finding.name:{width}}  "
    return [head + first, *(" " * len(head) + line for line in rest + fix)]


def as_json(findings: Sequence[Finding]) -> str:
    """Findings for a program, in one line.

    Example:
        >>> as_json([Finding("python", True, "3.12")])
        '{"ok": true, "findings": [{"name": "python", "ok": true, "found": "3.12", "advice": ""}]}'
    """
    ok = all(finding.ok for finding in findings)
    return json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]})


def _add(parser: ArgumentParser) -> None:
    text = f"how long one lookup of a name may take (default {DEADLINE:g})"
    parser.add_argument("--timeout", type=seconds, default=DEADLINE, metavar="SECONDS", help=text)


DOCTOR = Command("doctor", "check what a job needs of this machine and its launcher", _add, run)
