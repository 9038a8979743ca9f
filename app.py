"""The launcher: `streamlit run app.py` serves the pages, keeps runs going and answers /health."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from ipaddress import ip_address
from threading import Lock

import anyio
import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import net_util

from engine.jobs import ensure_scheduler
from engine.jobs.lifecycle import Health, look_at_health
from engine.jobs.log import FailureLog
from engine.settings import Settings
from engine.specs import Refused
from engine.store import ACTIVE, Filter, State, open_store

log = logging.getLogger(__name__)

HEALTH_S = 4.0
"""Seconds after which /health answers whatever the store does: monitors commonly wait for five."""
SILENT = Health(well=False, store=f"the store does not answer within {HEALTH_S:g} s", scheduler="unknown")
one_look = Lock()
look_threads = anyio.CapacityLimiter(8)
"""Threads that may wait for `one_look`, apart from those that serve pages."""
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
"""Sent with every response: no other site shows the pages in a frame or learns their addresses."""


class SecurityHeaders:
    """Add HEADERS to every HTTP response as it starts. Its content and WebSockets pass through untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def failed(_request: Request, _error: Exception) -> PlainTextResponse:
    """Answer a request that raised; the trace is in the log. This response does not pass the middleware."""
    return PlainTextResponse("Internal Server Error", 500, HEADERS)


@asynccontextmanager
async def lifespan(_app: st.App) -> AsyncIterator[None]:
    """Start a scheduler with the server, and replace one that dies while runs wait or go.

    An idle scheduler may leave; `submit` starts the next. Runs and scheduler outlive the server.
    """
    settings = Settings()
    refuse_strangers(settings, st.get_option("server.address"))
    # To judge the origin of a WebSocket, Streamlit would ask the internet for this machine's address, and all pages
    # would wait. Only browser.serverAddress and server.corsAllowedOrigins name other addresses.
    net_util.get_internal_ip = net_util.get_external_ip = lambda: None
    for warning in filter(None, (settings.public_warning, settings.sharing_warning)):
        log.warning(warning)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_keep_scheduler, settings)
        yield
        tasks.cancel_scope.cancel()


def refuse_strangers(settings: Settings, address: str | None) -> None:
    """The pages have no login, so they are served to this machine alone. Errors: Refused."""
    if settings.public or address == "localhost":
        return
    try:
        local = ip_address(address or "0.0.0.0").is_loopback  # noqa: S104  no address means all of them
    except ValueError:
        local = False
    if not local:
        raise Refused(
            f"the address {address or 'of all interfaces'} can be reached from other machines, and these pages have no "
            "login: keep 127.0.0.1, or set VITALS_PUBLIC=1 behind a proxy that has one"
        )


async def _keep_scheduler(settings: Settings) -> None:
    """Start a scheduler at first, and later whenever runs need one. The server stays up whatever fails."""

    def look_after(wanted: bool) -> None:
        with closing(open_store(settings)) as store:
            if wanted or store.count(Filter(states=(State.QUEUED, *ACTIVE))):
                ensure_scheduler(settings, store)

    failures = FailureLog(log, "looking after the scheduler")
    known = False  # at first and after a failure nobody knows whether runs wait
    while True:
        wanted, known = not known, False
        with failures.catching():
            await anyio.to_thread.run_sync(look_after, wanted)
            known = True
        await anyio.sleep(settings.lease_s)


def _look() -> Health:
    """Look at the health, one request at a time: a store that hangs then holds one thread, however many ask."""
    if not one_look.acquire(timeout=HEALTH_S):
        return SILENT
    try:
        return look_at_health(Settings())
    finally:
        one_look.release()


async def health(_request: Request) -> JSONResponse:
    """Tell monitors how the store and the scheduler are: 200 if all is well, 503 with the cause if not."""
    found = SILENT
    with anyio.move_on_after(HEALTH_S):
        found = await anyio.to_thread.run_sync(_look, abandon_on_cancel=True, limiter=look_threads)
    status = "ok" if found.well else "unavailable"
    answer = {"status": status, "store": found.store, "scheduler": found.scheduler}
    return JSONResponse(answer, status_code=200 if found.well else 503)


app = st.App(
    "pages/frame.py",
    lifespan=lifespan,
    routes=[Route("/health", health)],
    middleware=[Middleware(SecurityHeaders)],
    exception_handlers={Exception: failed},
)
