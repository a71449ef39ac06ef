"""``meshkit doctor``: check the requirements of a job on this machine, each OK or FAILED."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict

from ...core.draw.table import MIN_CELL, wrap_lines
from ...core.text import count_noun
from ...launch.doctor.finding import Finding
from .. import terminal
from ..command import Command, Result
from ..options.numbers import read_seconds

DEADLINE = 6.0  # equals launch/doctor/interfaces.DEADLINE, whose import would slow other commands


def run(args: Namespace) -> Result:
    """Check the environment. Local; imports torch, joins nothing."""
    from ...launch.doctor.checkup import checkup

    findings = checkup(deadline=args.timeout)
    write = as_json if args.json else as_text
    return Result(write(findings), all(finding.ok for finding in findings))


def as_text(findings: Sequence[Finding]) -> str:
    """Return findings as text, one or more lines each. A fix is one line, which can be copied."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [line for finding in findings for line in _lines(finding, width)]
    failed = [finding.name for finding in findings if not finding.ok]
    last = f"All {count_noun(len(findings), 'check')} OK."
    if failed:
        last = f"{len(failed)} of {count_noun(len(findings), 'check')} failed: {', '.join(failed)}."
    return "\n".join([*lines, "", last])


def _lines(finding: Finding, width: int) -> list[str]:
    """Return the lines of one finding, aligned below the text of the first."""
    head = f"{'OK' if finding.ok else 'FAILED':6}  {finding.name:{width}}  "
    columns = max(terminal.get_width() - len(head), MIN_CELL)
    texts = [part for line in finding.found.split("\n") for part in wrap_lines(line, columns)]
    first, *rest = texts or [""]
    fix = [f"Fix: {finding.advice}"] if finding.advice else []
    return [head + first, *(" " * len(head) + line for line in rest + fix)]


def as_json(findings: Sequence[Finding]) -> str:
    """Return findings as JSON in one line."""
    ok = all(finding.ok for finding in findings)
    return json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]})


def _add_options(parser: ArgumentParser) -> None:
    help = f"limit of one name lookup (default {DEADLINE:g})"
    parser.add_argument(
        "--timeout", type=read_seconds, default=DEADLINE, metavar="SECONDS", help=help
    )


DOCTOR = Command(
    "doctor",
    "check this machine and its launcher before a job",
    _add_options,
    run,
    ("", "--json --timeout 2"),
)
