"""Chromium as a person runs it: no debugger in its tabs.

Playwright attaches a debugger to a tab. In such a tab Chromium compiled all scripts again even on a seventh visit, and
pages took 10 to 20 % longer. Here tabs are opened from outside. A content script checks on each frame whether the page
is drawn, and then writes the time into the tab's title.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from websockets.sync.client import connect

from tests.support.browser import DRAWN, FLAGS, executable, free_port, wait_for

PATIENCE_S = 180
TITLE = "drawn after "
SCRIPT = f"""
const drawn = {DRAWN};
let drawn_at;
const look = () => {{
  if (!drawn_at && drawn()) drawn_at = "{TITLE}" + performance.now();
  if (drawn_at) document.title = drawn_at; // again on every frame: a page that runs anew sets its own title
  requestAnimationFrame(look);
}};
look();
"""
MANIFEST = {
    "manifest_version": 3,
    "name": "When is a page drawn?",
    "version": "1",
    "content_scripts": [{"matches": ["http://127.0.0.1/*"], "js": ["drawn.js"], "run_at": "document_start"}],
}


@dataclass(frozen=True)
class OwnBrowser:
    """A running Chromium with its debugging port."""

    port: int

    def drawn_ms(self, url: str) -> float:
        """Open a page in a new tab. Return the ms from the start of its navigation until all of it is drawn.

        Errors: TimeoutError.
        """
        tab = self._ask(f"new?{quote(url, safe=':/?=&%')}", method="PUT")
        deadline = time.monotonic() + PATIENCE_S
        try:
            while not (title := self._title(tab["id"])).startswith(TITLE):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{url} was not drawn within {PATIENCE_S} s; its title is {title!r}")
                time.sleep(0.05)
            return float(title.removeprefix(TITLE))
        finally:
            self._ask(f"close/{tab['id']}")

    def forget(self) -> None:
        """Empty the cache of files and compiled scripts, so that the next visit is a first one."""
        tab = self._ask("new?about:blank", method="PUT")
        with connect(tab["webSocketDebuggerUrl"]) as debugger:
            debugger.send(json.dumps({"id": 1, "method": "Network.clearBrowserCache"}))
            assert "error" not in json.loads(debugger.recv(timeout=PATIENCE_S))
        self._ask(f"close/{tab['id']}")

    def _title(self, tab: str) -> str:
        return next((str(item["title"]) for item in self._ask("list") if item["id"] == tab), "")

    def _ask(self, what: str, method: str = "GET") -> Any:
        with urlopen(Request(f"http://127.0.0.1:{self.port}/json/{what}", method=method), timeout=PATIENCE_S) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith((b"[", b"{")) else None


@contextmanager
def own_browser() -> Iterator[OwnBrowser]:
    """Run a Chromium with a new profile and a window of 1440 x 1400 pixels; end it afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        extension = folder / "extension"
        extension.mkdir()
        (extension / "manifest.json").write_text(json.dumps(MANIFEST))
        (extension / "drawn.js").write_text(SCRIPT)
        options = {
            "user-data-dir": folder / "profile",
            "load-extension": extension,
            "disable-extensions-except": extension,
            "remote-debugging-port": port,
            "window-size": "1440,1400",
        }
        flags = [*FLAGS, "--headless=new", "--no-first-run", *(f"--{name}={value}" for name, value in options.items())]
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen([executable(), *flags, "about:blank"], stdout=out, stderr=out)
        try:
            wait_for(f"http://127.0.0.1:{port}/json/version", process, log)
            yield OwnBrowser(port)
        finally:
            process.terminate()
            process.wait(30)
