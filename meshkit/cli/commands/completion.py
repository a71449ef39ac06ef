"""``meshkit completion``: print the code that lets a shell complete the words of meshkit."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from ...core.errors import MeshkitError
from ..command import Command, Result

SHELLS = ("bash", "zsh", "fish")


def run(args: Namespace) -> Result:
    """Return the code for a shell, which argcomplete writes."""
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError as error:
        fix = "pip install argcomplete."
        raise MeshkitError("argcomplete is not installed.", fix=fix) from error
    code = shellcode(["meshkit"], shell=args.shell).strip()
    return Result(json.dumps({"shell": args.shell, "code": code}) if args.json else code)


def _add_options(parser: ArgumentParser) -> None:
    help = 'bash, zsh or fish: eval "$(meshkit completion bash)"; meshkit completion fish | source'
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=help)


COMPLETION = Command(
    "completion",
    "print the code that completes meshkit in bash, zsh or fish",
    _add_options,
    run,
    ("bash", "fish"),
)
