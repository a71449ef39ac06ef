"""``meshkit store``: host the store of jobs, so that it outlives every rank."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from ..command import Command, Result
from ..options.numbers import read_integer

MAX_PORT = 65535


def run(args: Namespace) -> Result:
    """Host a store until a signal ends the process."""
    from ...launch.open_store import serve_store

    def announce(address: str) -> None:
        text = f'The store is at {address}, for init(init_method="{address}/<name of the job>").'
        print(json.dumps({"address": address}) if args.json else text, flush=True)

    serve_store(args.port, announce)
    return Result()


def read_port(text: str) -> int:
    """Read a port, from 0 to 65535."""
    port = read_integer(text, least=0)
    if port > MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to {MAX_PORT}")
    return port


def _add_options(parser: ArgumentParser) -> None:
    help = "port at which the store answers; 0 takes a free one"
    parser.add_argument("--port", type=read_port, required=True, help=help)


STORE = Command(
    "store",
    "host the store of jobs, until Ctrl-C",
    _add_options,
    run,
    ("--port 29400", "--port 0 --json"),
)
