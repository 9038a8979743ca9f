"""Tests of the running server: response headers, foreign origins, outgoing connections and warnings in its log."""

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Message
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.web.server.starlette.starlette_app_utils import create_signed_value
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
SECRET = "secret-of-the-cookies-27c4-5b0e9d-81"
RECORDER = """
import os, sys
to = os.open(os.environ["RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def record(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        os.write(to, f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}\\n".encode())
sys.addaudithook(record)
"""
"""A `sitecustomize` that records all addresses that Python connects to, and all names that it looks up."""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make all processes started later record their connections and lookups, and return the path of the record."""
    folder = tmp_path_factory.mktemp("recorder")
    (folder / "sitecustomize.py").write_text(RECORDER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORD", str(folder / "record"))
        patch.setenv("PYTHONPATH", str(folder))
        yield folder / "record"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, record: Path) -> Iterator[Server]:
    """Run a server with VITALS_PUBLIC on the loopback address, with a runs folder that other users can read."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "runs").mkdir(mode=0o755)
    with serve(folder, preload="", public="1") as server:
        yield server


@pytest.fixture(scope="module")
def signed_in_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server with sign-in. Its cookies are signed with SECRET."""
    folder = tmp_path_factory.mktemp("signed_in")
    provider = "http://127.0.0.1:1/.well-known/openid-configuration"
    secrets = folder / "secrets.toml"
    secrets.write_text(
        f'[auth]\nredirect_uri = "http://127.0.0.1/oauth2callback"\ncookie_secret = "{SECRET}"\n'
        f'client_id = "vitals"\nclient_secret = "secret"\nserver_metadata_url = "{provider}"\n'
    )
    with serve(folder, preload="", secrets=secrets, viewers="eve@x.org", data_roots=str(folder / "runs")) as server:
        yield server


def external_calls(record: Path) -> list[str]:
    """Return the recorded connections and lookups to other machines."""
    lines = record.read_text().splitlines() if record.exists() else []
    return [line for line in lines if "127.0.0.1" not in line and "localhost" not in line]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/", 200), ("/train", 200), ("/health", 200), ("/_stcore/health", 200), ("/_stcore/host-config", 200)),
        *(("/app/static/plotly.min.js", 200), ("/media/none", 404), ("/..%2f", 400)),
    ],
)
def test_every_response_has_the_security_headers(server: Server, path: str, status: int) -> None:
    try:
        with urlopen(server.url + path, timeout=PATIENCE_S) as response:
            found_status, headers = response.status, response.headers
    except HTTPError as error:
        with error:
            found_status, headers = error.code, error.headers
    assert found_status == status
    assert {name: headers.get_all(name) for name in HEADERS} == {name: [value] for name, value in HEADERS.items()}


def test_security_headers_keep_compression_and_range_requests(server: Server) -> None:
    whole = (ROOT / "pages" / "static" / "plotly.min.js").read_bytes()
    request = Request(f"{server.url}/app/static/plotly.min.js", headers={"Range": "bytes=0-9"})
    with urlopen(request, timeout=PATIENCE_S) as response:
        assert "javascript" in response.headers["Content-Type"]
        assert (response.status, response.read()) == (206, whole[:10])
    request = Request(f"{server.url}/app/static/plotly.min.js", headers={"Accept-Encoding": "gzip"})
    with urlopen(request, timeout=PATIENCE_S) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(response.read()) == whole


def test_failed_request_has_the_security_headers() -> None:
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


def test_same_origin_websocket_is_accepted(server: Server) -> None:
    host = urlsplit(server.url).netloc
    with connect(f"ws://{host}/_stcore/stream", origin=f"http://{host}", subprotocols=["streamlit"]) as socket:
        assert socket.subprotocol == "streamlit"


def test_foreign_websocket_is_rejected_without_address_lookups(server: Server, record: Path) -> None:
    host = urlsplit(server.url).netloc
    for origin in ("http://example.org", "https://198.51.100.7:8501"):
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"ws://{host}/_stcore/stream", origin=origin)
    assert "Rejecting WebSocket connection" in server.log.read_text()
    assert external_calls(record) == []


@pytest.mark.parametrize(("host", "status"), [("localhost", 101), ("example.org", 403), ("127.0.0.1.example.org", 403)])
def test_websocket_of_a_foreign_host_is_rejected(server: Server, host: str, status: int) -> None:
    """DNS rebinding: the browser takes the server for a part of the other site, so Origin and Host agree."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE_S)
    connection.putrequest("GET", "/_stcore/stream", skip_host=True)
    opening = {"Host": host, "Origin": f"http://{host}", "Connection": "Upgrade", "Upgrade": "websocket"}
    opening |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version": "13"}
    for name, value in opening.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == status
    connection.close()


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_upload_of_another_site_is_refused(server: Server, method: str) -> None:
    """A page of another site can send a form here, but knows neither the cookie nor its token."""
    headers = {"Origin": "http://example.org", "Content-Type": "multipart/form-data; boundary=x"}
    with pytest.raises(HTTPError, match="403") as refusal:
        urlopen(Request(f"{server.url}/_stcore/upload_file/session/file", b"", headers, method=method), timeout=60)
    assert refusal.value.headers["Access-Control-Allow-Origin"] != "http://example.org"
    refusal.value.close()


@pytest.mark.parametrize(("emails", "status"), [((), 403), (("mallory@x.org",), 403), (("eve@x.org",), 204)])
def test_uploads_need_a_role(signed_in_server: Server, emails: tuple[str, ...], status: int) -> None:
    """Streamlit keeps uploads in memory, also those for which no page has a field."""
    host = urlsplit(signed_in_server.url).netloc
    with urlopen(f"{signed_in_server.url}/_stcore/health") as response:
        cookies = [response.headers["Set-Cookie"].partition(";")[0]]
    token = cookies[0].partition("=")[2]
    for email in emails:
        claims = {"origin": signed_in_server.url, "is_logged_in": True, "email": email, "email_verified": True}
        cookies.append(f"_streamlit_user={create_signed_value(SECRET, '_streamlit_user', json.dumps(claims)).decode()}")
    cookie = {"Cookie": "; ".join(cookies)}
    options = {"origin": signed_in_server.url, "subprotocols": ["streamlit", token], "additional_headers": cookie}
    with connect(f"ws://{host}/_stcore/stream", **options) as socket:  # type: ignore[call-overload]
        socket.send(BackMsg(rerun_script=ClientState()).SerializeToString())
        message = ForwardMsg()
        while message.WhichOneof("type") != "new_session":
            message.ParseFromString(socket.recv(PATIENCE_S))
        session_id = message.new_session.initialize.session_id
        body = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n1\r\n--x--\r\n'
        connection = HTTPConnection(host, timeout=PATIENCE_S)
        headers = {**cookie, "X-Xsrftoken": token, "Content-Type": "multipart/form-data; boundary=x"}
        connection.request("PUT", f"/_stcore/upload_file/{session_id}/file", body, headers)
        assert connection.getresponse().status == status
        connection.close()


def test_settings_of_the_server_are_the_safe_ones() -> None:
    found = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    server, client = found["server"], found["client"]
    assert (server["address"], server["maxUploadSize"], server["fileWatcherType"]) == ("127.0.0.1", 200, "none")
    assert server["enableCORS"] is server["enableXsrfProtection"] is True
    assert (client["showErrorDetails"], client["showErrorLinks"]) == ("none", False)
    assert client["disableDataExport"], "Streamlit's own export does not guard against formulas"
    assert found["browser"]["gatherUsageStats"] is False


def test_server_on_an_occupied_port_does_not_start(tmp_path: Path) -> None:
    """By default, Streamlit takes the next free port, and a proxy in front then shows the other program."""
    command = [sys.executable, "-m", "streamlit", "run", "app.py"]
    variables = os.environ | {"VITALS_RUNS_DIR": str(tmp_path), "VITALS_IDLE_EXIT_S": "1"}
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # another program of this machine listens there
            other.bind(("127.0.0.1", 8501))
            other.listen()
        ended = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, "Port 8501 is not available" in ended.stderr) == (1, True)


def test_start_on_all_interfaces_makes_no_external_lookups(record: Path) -> None:
    start = "import socket; socket.getaddrinfo('localhost', 8501);"
    start += "from streamlit.web import bootstrap as b; b.load_config_options({'server.address': '0.0.0.0'});"
    done = subprocess.run(
        [sys.executable, "-c", f"{start} b._print_url(False)"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "http://127.0.0.1:8501" in done.stdout
    assert "localhost" in record.read_text(), "the recorder works"
    assert external_calls(record) == []


def test_server_log_warns_of_public_access_and_shared_folder(server: Server) -> None:
    log = server.log.read_text()
    assert "sign-in is not configured: whoever reaches this server can run models" in log
    assert "VITALS_DATA_ROOTS is empty, so these include the whole home folder" in log
    assert f"Other users of this machine have access to the runs folder {server.settings.runs_dir} (mode 755)" in log
