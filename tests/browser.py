"""A headless Chromium, driven over two pipes: what a page shows, and what a pointer does there."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chrome-headless-shell")
LIMIT = 60.0  # seconds for the answer to a command
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. Pipes carry JSON messages that end in a zero byte (DevTools protocol)."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int) -> None:
        self.process, self.commands, self.answers = process, commands, answers
        self.unread = b""  # the begin of the next answer
        self.number, self.session = 0, ""
        self.requests: list[str] = []  # addresses that the page asked for
        self.errors: list[str] = []  # exceptions of its scripts

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events are noted on the way."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT
        while True:
            answer = self._read(end)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.unread:
            left = max(0.0, end - time.monotonic())
            assert select.select([self.answers], [], [], left)[0], "Chromium does not answer"
            part = os.read(self.answers, 1 << 16)
            assert part, "Chromium ended"
            self.unread += part
        text, _, self.unread = self.unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(message["params"]["exceptionDetails"]))
        return message

    def open(self, path: Path, *, width: int, height: int = 800, dark: bool = False) -> None:
        """Open a file in a window of that size, and wait for its first frame."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Page.navigate", url=path.as_uri())
        look = "performance.getEntriesByName('drawn').length ? done() : setTimeout(look, 5)"
        self.run(f"new Promise(done => {{ const look = () => {look}; look(); }})")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer there, and click if asked; then wait for two frames."""
        kinds = ["mouseMoved", *["mousePressed", "mouseReleased"] * click]
        for kind in kinds:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with its files in a folder, and end it.

    Its pages must run without an exception, and ask no server for anything.
    """
    assert CHROMIUM is not None
    (read_commands, commands), (answers, write_answers) = os.pipe(), os.pipe()
    line = (
        f'exec "$0" --headless --no-sandbox --disable-gpu --remote-debugging-pipe '
        f'--user-data-dir="$1" 3<&{read_commands} 4>&{write_answers}'
    )
    process = subprocess.Popen(
        ["bash", "-c", line, CHROMIUM, str(folder)],
        pass_fds=(read_commands, write_answers),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(read_commands)
    os.close(write_answers)
    browser = Browser(process, commands, answers)
    try:
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        browser.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            browser.call(f"{domain}.enable")
        yield browser
        assert not browser.errors
        assert all(url.startswith("file:") for url in browser.requests)  # no other server
    finally:
        browser.session = ""
        try:
            browser.call("Browser.close")  # its children end too
            process.wait(30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
            os.close(commands)
            os.close(answers)
