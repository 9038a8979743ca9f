"""Launch the dashboard with `streamlit run app.py`: serve the pages, keep a scheduler alive and answer /health."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import asdict
from functools import wraps
from ipaddress import ip_address
from secrets import token_hex
from threading import Lock

import anyio
import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import net_util, runtime
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.runtime import RuntimeState
from streamlit.runtime.app_session import AppSession

from engine.jobs import ensure_scheduler
from engine.jobs.lifecycle import Health, look_at_health
from engine.jobs.log import FailureLog
from engine.settings import Settings
from engine.specs import Refused
from engine.store import ACTIVE, Filter, Role, State, open_store
from pages.shared import sign_in

log = logging.getLogger(__name__)

RequestRerun = Callable[[AppSession, ClientState | None], None]
LOOK_S = 1.0
"""Seconds between checks for a connected browser. A check reads one variable."""
HEALTH_S = 4.0
"""Maximum seconds until /health answers, even if the store hangs. Monitors commonly wait 5 s."""
SILENT = Health(status="unavailable", store=f"the store does not answer within {HEALTH_S:g} s", scheduler="unknown")
health_lock = Lock()
health_threads = anyio.CapacityLimiter(8)
"""Threads that may wait for `health_lock`, separate from those that serve pages."""
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
"""Headers of every response. They stop other sites from showing the pages in a frame or learning their addresses."""


UNEXPECTED = "This page has an unexpected error:"
"""Beginning of the message on an error that no page expects; the error's id follows."""


class SecurityHeaders:
    """Middleware that adds HEADERS to every HTTP response. Contents and WebSockets are not changed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class UploadsOfUsers:
    """Middleware that refuses uploads by users without a role: Streamlit would keep them in memory."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, is_upload, rest = scope.get("path", "").partition("/_stcore/upload_file/")
        if is_upload and scope["method"] == "PUT" and not _has_role(rest.partition("/")[0]):
            await PlainTextResponse("Forbidden", 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _has_role(session_id: str) -> bool:
    """Return whether the user of a browser tab has a role."""
    session = runtime.get_instance().get_app_session(session_id)
    return sign_in.user(Settings(), session._user_info if session else {}).role > Role.NONE


def failed(_request: Request, _error: Exception) -> PlainTextResponse:
    """Return status 500 for a request whose handler raised an exception. The log has the traceback.

    HEADERS are added here, because this response does not pass through the middleware.
    """
    return PlainTextResponse("Internal Server Error", 500, HEADERS)


def show_id(error: Exception) -> bool:
    """Show an id of an unexpected error of a page, and log it below the traceback, which Streamlit has just logged.

    Return True, so that Streamlit shows no message of its own.
    """
    error_id = token_hex(4)
    log.error("error %s: %s", error_id, type(error).__name__)
    st.error(
        f"{UNEXPECTED} {error_id}. Reload the page. If the error comes back, look for this id in the server's log: the "
        "cause is above it.",
        icon=":material/error:",
    )
    return True


@asynccontextmanager
async def lifespan(_app: st.App) -> AsyncIterator[None]:
    """Start a scheduler with the server, and replace it if it dies while runs or browsers need one.

    Without runs and browsers, the scheduler exits when idle; `submit` or the next browser starts a new one. Runs and
    scheduler outlive the server.
    """
    settings = Settings()
    sign_in.check(settings)
    signed_in = sign_in.configured()
    for address in (st.get_option("server.address"), *(st.get_option("server.allowedHosts") or ["*"])):
        refuse_strangers(settings, address, signed_in=signed_in)
    if settings.refusal:
        raise Refused(settings.refusal)
    # To check the origin of a WebSocket, Streamlit would ask the internet for this machine's address and block all
    # pages meanwhile. Other addresses are allowed only by browser.serverAddress and server.corsAllowedOrigins.
    net_util.get_internal_ip = net_util.get_external_ip = lambda: None
    AppSession.request_rerun = without_late_timers(AppSession.request_rerun)  # type: ignore[method-assign, assignment]
    for warning in filter(None, ("" if signed_in else settings.public_warning, settings.sharing_warning)):
        log.warning(warning)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_keep_scheduler, settings)
        yield
        tasks.cancel_scope.cancel()


def without_late_timers(request_rerun: RequestRerun) -> RequestRerun:
    """Return Streamlit's `request_rerun` without requests of a page's timers after another page was opened.

    A browser sends them until it knows of the new page. Streamlit would run them after the new page's script, and then
    show an empty page or the old page again.
    """

    @wraps(request_rerun)
    def request(session: AppSession, client_state: ClientState | None) -> None:
        if client_state and client_state.is_auto_rerun and client_state.page_script_hash != session.page_script_hash:
            return
        if client_state and client_state.page_script_hash and not client_state.fragment_id:
            session._client_state.page_script_hash = client_state.page_script_hash  # Streamlit would do so later
        request_rerun(session, client_state)

    return request


def refuse_strangers(settings: Settings, address: str | None, *, signed_in: bool) -> None:
    """Refuse to serve an address that other machines can reach without sign-in. Errors: Refused.

    address: one to listen on, or one that a proxy in front answers to. signed_in: sign-in is configured.
    """
    if signed_in or settings.public or address == "localhost":
        return
    try:
        local = ip_address(address or "0.0.0.0").is_loopback  # noqa: S104  no address means all of them
    except ValueError:
        local = False
    if not local:
        raise Refused(
            f"the address {address or 'of all interfaces'} can be reached from other machines, and sign-in is not "
            "configured: configure it (docs/deploy.md), keep 127.0.0.1, or set VITALS_PUBLIC=1 behind a proxy that "
            "authenticates users"
        )


def browser_connected() -> bool:
    """Return whether any browser has a page of this server open."""
    return runtime.exists() and runtime.get_instance().state is RuntimeState.ONE_OR_MORE_SESSIONS_CONNECTED


async def _pause(seconds: float) -> None:
    """Wait for `seconds`, or until the first browser connects."""
    alone = not browser_connected()
    with anyio.move_on_after(seconds):
        while not (alone and browser_connected()):
            await anyio.sleep(min(seconds, LOOK_S))


async def _keep_scheduler(settings: Settings) -> None:
    """Start a scheduler with the server, and again whenever runs or browsers need one. Failures do not stop the server.

    The scheduler owns the warm process, which needs about 10 s to import PyTorch. While a browser is connected, the
    server wakes the scheduler before it counts as idle, so that runs start at once.
    """

    def ensure_if_needed(always: bool) -> None:
        with closing(open_store(settings)) as store:
            if always or store.count(Filter(states=(State.QUEUED, *ACTIVE))):
                ensure_scheduler(settings, store)

    failures = FailureLog(log, "keeping the scheduler alive")
    checked = False  # at the start and after a failed check, start a scheduler without looking for runs first
    while True:
        always, checked = not checked, False
        with failures.catching():
            await anyio.to_thread.run_sync(ensure_if_needed, always or browser_connected())
            checked = True
        await _pause(min(settings.lease_s, settings.idle_exit_s / 2))


def _check_health() -> Health:
    """Check the health, one request at a time, so that a store that hangs blocks one thread and not many."""
    if not health_lock.acquire(timeout=HEALTH_S):
        return SILENT
    try:
        return look_at_health(Settings())
    finally:
        health_lock.release()


async def health(_request: Request) -> JSONResponse:
    """Return the fields of Health for monitors: status 200 if healthy, else 503 with the cause."""
    result = SILENT
    with anyio.move_on_after(HEALTH_S):
        result = await anyio.to_thread.run_sync(_check_health, abandon_on_cancel=True, limiter=health_threads)
    return JSONResponse(asdict(result), status_code=200 if result.status == "ok" else 503)


app = st.App(
    "pages/frame.py",
    lifespan=lifespan,
    routes=[Route("/health", health)],
    middleware=[Middleware(SecurityHeaders), Middleware(UploadsOfUsers)],
    exception_handlers={Exception: failed},
    on_script_error=show_id,
)
