"""The launcher: `streamlit run app.py` serves the pages, keeps runs going and answers /health."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import streamlit as st
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from engine.jobs import ensure_scheduler
from engine.settings import Settings
from engine.store import Store, open_store
from engine.store.model import ACTIVE, State

log = logging.getLogger(__name__)


@asynccontextmanager
async def lifespan(_app: st.App) -> AsyncIterator[None]:
    """Start a scheduler with the server, and replace one that dies while runs wait or go.

    An idle scheduler may leave; `submit` starts the next. Runs and scheduler outlive the server.
    """
    settings = Settings()
    store = open_store(settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_keep_scheduler, settings, store)
        yield
        tasks.cancel_scope.cancel()
    store.close()


async def _keep_scheduler(settings: Settings, store: Store) -> None:
    wanted = True
    while True:
        try:
            if wanted:
                await anyio.to_thread.run_sync(ensure_scheduler, settings)
        except Exception:
            log.exception("no scheduler could be started")
        await anyio.sleep(settings.lease_s)
        wanted = bool(await anyio.to_thread.run_sync(lambda: store.runs(states=(State.QUEUED, *ACTIVE), limit=1)))


async def health(_request: Request) -> JSONResponse:
    """For monitors: the server answers."""
    return JSONResponse({"status": "ok"})


app = st.App("pages/frame.py", lifespan=lifespan, routes=[Route("/health", health)])
