"""The command line of the trainers: sizes of 1 or more, and the options that all of them have."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

Options = argparse.Namespace
Parser = argparse.ArgumentParser


def positive(text: str) -> int:
    """Return the value of an option as an int of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def make_parser(description: str, sizes: Mapping[str, int]) -> argparse.ArgumentParser:
    """Return a parser with an option for each size, and seed, learning rate, dtype and device."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=positive, default=default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--device", help="cpu or cuda; default: the accelerator, if there is one")
    parser.add_argument("--text", type=Path, help="a file to train on")
    return parser


def trainer_parser(attentions: Iterable[str]) -> Parser:
    """Return the parser of ``train.py``, to which ``survive.py`` adds its own options."""
    sizes = {"dp": -1, "sp": 1, "tp": 1, "seq": 128, "dim": 64, "layers": 2, "heads": 8}
    sizes |= {"global-batch": 32, "micro-batch": 4, "steps": 60, "log-every": 10}
    parser = make_parser("Train a byte-level GPT over a mesh.", sizes)
    parser.add_argument("--uneven", action="store_true", help="for a dp that does not divide")
    parser.add_argument("--attention", choices=list(attentions), default="ulysses")
    return parser
