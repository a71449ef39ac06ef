"""The words that may follow on a command line, for the completion of a shell."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable

from .command import Command
from .parser import AXIS_FLAGS, CommandParser


def complete_words(commands: Iterable[Command]) -> None:
    """Answer the shell that set _ARGCOMPLETE, and end this process."""
    import argcomplete

    argcomplete.autocomplete(create_parser(commands))


def create_parser(commands: Iterable[Command]) -> ArgumentParser:
    """Return the parser of all commands, with an option for each standard axis."""
    parser = ArgumentParser(prog="meshkit")
    parser.add_argument("-V", "--version", action="store_true")
    subparsers = parser.add_subparsers()
    words = [(command.name, CommandParser(command)) for command in commands]
    for name, command_parser in words:
        if any(action.dest == "words" for action in vars(command_parser)["_actions"]):
            for flag in AXIS_FLAGS:
                command_parser.add_argument(flag)
        subparsers.add_parser(name, parents=[command_parser], add_help=False)
    help = subparsers.add_parser("help")
    help.add_argument("command", choices=[name for name, _ in words])
    return parser
