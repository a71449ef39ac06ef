"""The command that shows the ranks of a running job from outside."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..text import count_noun, format_table, wrap_lines
from .main import Command, Result
from .options import read_seconds

if TYPE_CHECKING:
    from ..launch.outside import JobView

TIMEOUT = 10.0  # seconds
HEADER = ("rank", "coordinate", "host", "pid", "state", "since s", "where")
NOT_ASKED = "The ranks of a job with a file as its store cannot be asked where they are."
NO_GUARD = "A rank says where it is inside mesh.guard(timeout=...) alone."


def show_status(args: Namespace) -> Result:
    """Show the ranks of the job whose store is at an address."""
    from ..launch.detect import check_url
    from ..launch.outside import look_at_job

    job = look_at_job(check_url(args.store, "--store"), args.timeout)
    return Result(lambda: as_dict(job), lambda *, width, ascii: draw(job, width, ascii))


def as_dict(job: JobView) -> Mapping[str, Any]:
    """Return the job in JSON types."""
    ranks = [rank.as_dict() for rank in job.ranks]
    return {"ok": True, "world_size": len(ranks), "ranks": ranks, "waits": [*job.waits]}


def draw(job: JobView, width: int, ascii: bool) -> str:
    """Return a table of the ranks, and the rounds in which some wait."""
    rows = []
    for rank in job.ranks:
        host, pid = (rank.process.host, str(rank.process.pid)) if rank.process else ("", "")
        since = "" if rank.seconds is None else f"{rank.seconds:.1f}"
        rows.append([str(rank.rank), rank.coordinate, host, pid, rank.state, since, rank.where])
    table = format_table(rows, HEADER, width=width, ascii=ascii)
    notes = [*job.waits]
    if not all(rank.where for rank in job.ranks):
        notes.append(NO_GUARD if job.is_asked else NOT_ASKED)
    lines = [part for note in notes for part in wrap_lines(note, width)]
    return "\n".join([count_noun(len(rows), "rank"), table, *lines])


def _add_options(parser: ArgumentParser) -> None:
    help = "the address of the job's store: tcp://HOST:PORT, store://HOST:PORT/NAME or file:///PATH"
    parser.add_argument("--store", required=True, metavar="URL", help=help)
    help = f"limit of all waits (default {TIMEOUT:g})"
    parser.add_argument(
        "--timeout", type=read_seconds, default=TIMEOUT, metavar="SECONDS", help=help
    )


STATUS = Command(
    "status",
    "show where each rank of a running job is, from outside",
    _add_options,
    show_status,
    ("--store tcp://node1:29500", "--store store://node1:29400/job-1 --json"),
)
