"""Colors of a stream, from its kind and the environment."""

from __future__ import annotations

import io

import pytest

from meshkit.launch.output.console import is_terminal, shows_colors


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "colors"),
    [
        (Terminal(), {"TERM": "xterm-256color"}, 256),
        (Terminal(), {"TERM": "xterm", "COLORTERM": "truecolor"}, 256),
        (Terminal(), {"TERM": "dumb"}, 0),
        (Terminal(), {}, 0),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, 0),
        (io.StringIO(), {"TERM": "xterm"}, 0),
        (io.StringIO(), {"FORCE_COLOR": "1"}, 256),
        (Terminal(), {"FORCE_COLOR": "0", "TERM": "xterm"}, 256),
        (io.StringIO(), {"FORCE_COLOR": "0"}, 0),
        (None, {"TERM": "xterm"}, 0),
    ],
)
def test_colors(stream: io.StringIO | None, environ: dict[str, str], colors: int) -> None:
    assert shows_colors(stream, environ) is bool(colors)


def test_a_closed_stream_is_no_terminal() -> None:
    stream = Terminal()
    stream.close()
    assert not is_terminal(io.StringIO())
    assert is_terminal(Terminal())
