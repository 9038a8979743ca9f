"""Open and poll a page without a browser, through Streamlit's WebSocket protocol."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

PATIENCE_S = 120
"""Wait at most this many seconds for a message. A loaded machine draws the largest page in this time."""


@dataclass
class Tab:
    """An open connection, which is one session of the server."""

    socket: ClientConnection
    address: str
    ticks: dict[str, float] = field(default_factory=dict)
    """Seconds between two runs of each fragment that has `run_every`."""
    waits_s: list[float] = field(default_factory=list)
    """Seconds until each answer to a tick."""
    fields: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The id of each text field and of its fragment, by label."""
    _script: str = ""
    """The hash of the page's script, once the server has sent it."""

    async def draw(self) -> None:
        """Run the page's script and wait until everything it draws has arrived. Errors: those of `_finished`."""
        await self._request()
        async with asyncio.timeout(PATIENCE_S):
            while await self._finished() != ForwardMsg.FINISHED_SUCCESSFULLY:
                pass  # a tick was running, or the script requested a rerun

    async def type(self, label: str, text: str) -> None:
        """Type into a text field and wait until its fragment has been drawn. Only for a page without ticks."""
        widget, fragment = self.fields[label]
        await self._request(fragment, {widget: text})
        async with asyncio.timeout(PATIENCE_S):
            await self._finished()

    async def tick(self, seconds: float) -> None:
        """Keep the page open for `seconds`, and request each fragment at its interval, even before the last answer.

        A browser does the same, and the server merges waiting requests for a fragment. Errors: TimeoutError when the
        last requests get no answer, and those of `_finished`.
        """
        end = time.monotonic() + seconds
        requested: list[float] = []
        answered = asyncio.Event()

        async def request(fragment: str, interval: float) -> None:
            while time.monotonic() + interval < end:
                await asyncio.sleep(interval)
                requested.append(time.monotonic())
                answered.clear()
                await self._request(fragment)

        async def read() -> None:
            while True:
                await self._finished()
                if requested:
                    self.waits_s.append(time.monotonic() - requested[0])
                    requested.clear()
                    answered.set()

        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            await asyncio.gather(*(tasks.create_task(request(*item)) for item in self.ticks.items()))
            if requested:
                await asyncio.wait_for(answered.wait(), PATIENCE_S)
            reading.cancel()

    async def _request(self, fragment: str = "", texts: Mapping[str, str] | None = None) -> None:
        """Request a run of the page or of one fragment, as the browser's timer does or with changed texts."""
        parts = urlsplit(self.address)
        message = BackMsg()
        run = message.rerun_script
        run.query_string = urlencode(parse_qsl(parts.query))
        run.page_script_hash = self._script
        run.page_name = "" if self._script else parts.path.lstrip("/")
        run.fragment_id, run.is_auto_rerun = fragment, bool(fragment and not texts)
        for widget, text in (texts or {}).items():
            run.widget_states.widgets.add(id=widget, string_value=text)
        await self.socket.send(message.SerializeToString())

    async def _finished(self) -> int:
        """Read messages until a run ends, and return its ForwardMsg.ScriptFinishedStatus.

        If another tick waits, a tick ends as FINISHED_EARLY_FOR_RERUN, with everything drawn. Errors: RuntimeError when
        the page is missing or shows an exception.
        """
        while True:
            message = ForwardMsg.FromString(await self.socket.recv(decode=False))
            match message.WhichOneof("type"):
                case "new_session":
                    self._script = message.new_session.page_script_hash
                case "auto_rerun":
                    self.ticks[message.auto_rerun.fragment_id] = message.auto_rerun.interval
                case "page_not_found":
                    raise RuntimeError(f"there is no page {self.address}")
                case "delta" if message.delta.new_element.WhichOneof("type") == "exception":
                    raise RuntimeError(f"{self.address}: {message.delta.new_element.exception.message}")
                case "delta" if message.delta.new_element.WhichOneof("type") == "text_input":
                    element = message.delta.new_element.text_input
                    self.fields[element.label] = element.id, message.delta.fragment_id
                case "script_finished":
                    return int(message.script_finished)


@asynccontextmanager
async def open_tab(url: str, address: str) -> AsyncIterator[Tab]:
    """Open a session that shows the page at `address`, such as `/run?run=7`, and close it afterwards."""
    socket_url = f"{url.replace('http', 'ws', 1)}/_stcore/stream"
    # a browser sends no pings
    options = {"max_size": None, "max_queue": None, "compression": None, "ping_interval": None}
    async with connect(socket_url, subprotocols=["streamlit"], **options) as socket:
        tab = Tab(socket, address)
        await tab.draw()
        yield tab
