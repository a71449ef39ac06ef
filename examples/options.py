"""The command line of the trainers: sizes of 1 or more, and the options that all of them have."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

Options = argparse.Namespace


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
