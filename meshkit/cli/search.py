"""``meshkit search``: the layouts that fit a model and a world, ranked by predicted step time."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ..core.cost import Job, check_job
from ..core.errors import SpecError, told
from ..core.links import LINKS, Links
from ..core.model import ModelShape
from ..core.ranking import PROMISE, ranking
from ..core.search import search
from . import Answer, Command, terminal
from .file import object_of
from .grid import number
from .typed import typed

USUAL, TOP = "h100", 10  # links and how many layouts, where nothing is said of them


def run(asked: Namespace) -> Answer:
    """Rank the layouts that fit. Local, without torch; a second at most for 16,384 ranks.

    Args:
        asked: ``world``, ``nodes``, ``model``, ``global_batch``, ``seq``, ``links``, ``memory`` (or
            None), ``top`` and ``json``.

    Returns:
        The best, the terms that decide and what was excluded; not ok where none fits.

    Raises:
        SpecError: where a file cannot be read, or what was asked for cannot be.
    """
    model = ModelShape.of(_read("model", asked.model))
    links = LINKS.get(asked.links or USUAL) or _measured(asked.links)
    links = links.but({"memory": asked.memory}) if asked.memory else links
    job = _job(asked, links)
    found = search(model, job, asked.top or TOP)
    if asked.json:
        said = {"model": asdict(model), "parameters": model.parameters, "job": asdict(job)}
        text = json.dumps({"ok": bool(found.best), **said, **asdict(found), "note": PROMISE})
        return Answer(text, bool(found.best))
    title = f"{Path(asked.model).name}: {model.parameters / 1e9:.2f} billion weights"
    text = ranking(found, job, title, terminal.width())
    return Answer(text, bool(found.best))


def _measured(path: str) -> Links:
    """The usual links, with the figures of a file in their place.

    Args:
        path: of figures, or of what ``meshkit bench --json`` printed.

    Raises:
        SpecError: where there are none.
    """
    said, usual = _read("links", path), LINKS[USUAL]
    if "fits" not in said:
        return usual.but(said)
    found = said.get("links")
    if not isinstance(found, dict) or not found:
        line = f"--links {path}: no line of all_reduce, all_gather or reduce_scatter was measured."
        fix = "meshkit bench dp=2 -n 2 --sizes 1K:1M --json, say, which measures two sizes or more."
        raise SpecError(told(line, fix=fix))
    return usual.but({**found, "source": f"{found.get('source')}; the others: {usual.source}"})


def _job(asked: Namespace, links: Links) -> Job:
    """What was asked for. Raises as :class:`Job`, in the words of the command."""
    numbers = asked.world, asked.nodes, asked.global_batch, asked.seq
    check_job(typed(asked), *numbers)
    return Job(*numbers, links)


def _read(option: str, path: str) -> Mapping[str, object]:
    """A JSON object in a file.

    Raises:
        SpecError: where there is none.
    """
    try:
        return object_of(path)
    except ValueError as error:
        models, links = "the config.json of a model.", f"{', '.join(LINKS)}, or a JSON file."
        fix = models if option == "model" else links
        line = f"--{option} {path} cannot be read."
        raise SpecError(told(line, str(error), fix=fix)) from error


def _gigabytes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if 0 < found < 1e6:
        return found
    raise ArgumentTypeError(f"{text!r} is not a number of GB above zero")


def _add(parser: ArgumentParser) -> None:
    numbers = {
        "world": "ranks",
        "nodes": "equal nodes that they lie on, in blocks",
        "global-batch": "samples in one optimizer step",
        "seq": "tokens of a sample",
    }
    for name, text in numbers.items():
        parser.add_argument(f"--{name}", type=number, required=True, metavar="N", help=text)
    text = "the config.json of the model, as the Hugging Face Hub has it"
    parser.add_argument("--model", required=True, metavar="FILE", help=text)
    text = f"{', '.join(LINKS)}, or a JSON file of measured figures, such as meshkit bench --json "
    text += f"prints (default {USUAL})"
    parser.add_argument("--links", metavar="NAME", help=text)
    text = "1e9 bytes of one device that a job may fill (default: the device's)"
    parser.add_argument("--memory", type=_gigabytes, metavar="GB", help=text)
    parser.add_argument("--top", type=number, metavar="N", help=f"how many to show (default {TOP})")


SEARCH = Command("search", "rank the layouts that fit a model", _add, run)
