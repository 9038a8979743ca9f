"""The server as other programs meet it: headers of its responses, foreign origins, what it warns of at its start."""

import asyncio
import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Message
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app import SecurityHeaders, failed
from engine.settings import ROOT
from tests.support.browser import PATIENCE_S, Server, serve

pytestmark = pytest.mark.slow

HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
RECORDER = """
import os, sys
to = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def record(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        os.write(to, f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}\\n".encode())
sys.addaudithook(record)
"""
"""A `sitecustomize` that writes down all addresses that Python connects to, and all names that it looks up."""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Have all processes that tests start from now on write down whom they call."""
    folder = tmp_path_factory.mktemp("recorder")
    (folder / "sitecustomize.py").write_text(RECORDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORD", str(folder / "record"))
        patch.setenv("PYTHONPATH", str(folder))
        yield folder / "record"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, record: Path) -> Iterator[Server]:
    """A public server, which listens on the loopback address nevertheless, on a runs folder that others can read."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "runs").mkdir(mode=0o755)
    with serve(folder, preload="", public="1") as server:
        yield server


def called(record: Path) -> list[str]:
    """Return whom processes have called, beside this machine."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [line for line in lines if "127.0.0.1" not in line and "localhost" not in line]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/", 200), ("/train", 200), ("/health", 200), ("/_stcore/health", 200), ("/_stcore/host-config", 200)),
        *(("/app/static/plotly.min.js", 200), ("/media/none", 404), ("/..%2f", 400)),
    ],
)
def test_every_response_forbids_foreign_frames(server: Server, path: str, status: int) -> None:
    try:
        with urlopen(server.url + path, timeout=PATIENCE_S) as response:
            found, headers = response.status, response.headers
    except HTTPError as error:
        with error:
            found, headers = error.code, error.headers
    assert found == status
    assert {name: headers.get_all(name) for name in HEADERS} == {name: [value] for name, value in HEADERS.items()}


def test_headers_leave_compression_and_parts_of_files_alone(server: Server) -> None:
    whole = (ROOT / "pages" / "static" / "plotly.min.js").read_bytes()
    asked = Request(f"{server.url}/app/static/plotly.min.js", headers={"Range": "bytes=0-9"})
    with urlopen(asked, timeout=PATIENCE_S) as response:
        assert "javascript" in response.headers["Content-Type"]
        assert (response.status, response.read()) == (206, whole[:10])
    asked = Request(f"{server.url}/app/static/plotly.min.js", headers={"Accept-Encoding": "gzip"})
    with urlopen(asked, timeout=PATIENCE_S) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(response.read()) == whole


def test_a_request_that_fails_has_them_too() -> None:
    async def broken(_request: object) -> None:
        raise RuntimeError("broken")

    app = Starlette(
        routes=[Route("/", broken)],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={Exception: failed},
    )
    sent: list[Message] = []

    async def ask() -> None:
        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        await app(scope, lambda: asyncio.sleep(0), send)

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(ask())
    assert sent[0]["status"] == 500
    assert dict(sent[0]["headers"]).items() >= {(k.lower().encode(), v.encode()) for k, v in HEADERS.items()}


def test_a_page_of_this_server_gets_its_messages(server: Server) -> None:
    host = urlsplit(server.url).netloc
    with connect(f"ws://{host}/_stcore/stream", origin=f"http://{host}", subprotocols=["streamlit"]) as socket:
        assert socket.subprotocol == "streamlit"


def test_a_foreign_page_gets_none_and_no_address_is_looked_up(server: Server, record: Path) -> None:
    host = urlsplit(server.url).netloc
    for origin in ("http://example.org", "https://198.51.100.7:8501"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"ws://{host}/_stcore/stream", origin=origin)
    assert "Rejecting WebSocket connection" in server.log.read_text()
    assert called(record) == []


def test_a_start_on_all_interfaces_looks_no_address_up(record: Path) -> None:
    start = "import socket; socket.getaddrinfo('localhost', 8501);"
    start += "from streamlit.web import bootstrap as b; b.load_config_options({'server.address': '0.0.0.0'});"
    shown = subprocess.run(
        [sys.executable, "-c", f"{start} b._print_url(False)"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "http://127.0.0.1:8501" in shown.stdout
    assert "localhost" in record.read_text(), "look-ups are written down"
    assert called(record) == []


def test_a_public_server_and_a_shared_folder_are_warned_of(server: Server) -> None:
    log = server.log.read_text()
    assert "sign-in is not configured: whoever reaches this server can run models" in log
    assert "VITALS_DATA_ROOTS is empty, so these include the whole home folder" in log
    assert f"Other users of this machine have access to the runs folder {server.settings.runs_dir} (mode 755)" in log
