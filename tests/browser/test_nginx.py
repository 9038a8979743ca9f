"""The app behind Debian's nginx with deploy/nginx.conf: TLS, sign-in, WebSocket, an upload, and foreign requests."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app import HEADERS
from tests.support.browser import FLAGS, PATIENCE_S, executable, free_port, serve
from tests.support.nginx import NAME, Proxy, proxy
from tests.support.oidc import provide

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

EMAIL = "ann@x.org"
LARGEST = 200 * 10**6
"""Bytes of the largest file that the browser sends: server.maxUploadSize in .streamlit/config.toml."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("behind")


@pytest.fixture(scope="module")
def front(folder: Path) -> Iterator[Proxy]:
    """The app as docs/deploy.md has it behind nginx: on loopback, with sign-in, and with its public name."""
    port, plain_port = free_port(), free_port()
    secrets = folder / "secrets.toml"
    with pytest.MonkeyPatch.context() as patched, provide("client-secret") as provider:
        patched.setenv("STREAMLIT_SERVER_ALLOWED_HOSTS", NAME)
        text = provider.secrets_toml.replace("http://127.0.0.1:{port}/oauth2", f"https://{NAME}:{port}/oauth2")
        secrets.write_text(f'{text}cookie_secret = "{"c" * 64}"\n')
        runs = folder / "served"
        runs.mkdir()
        with (
            serve(runs, preload="", secrets=secrets, runners=EMAIL, data_roots=str(runs)) as server,
            proxy(folder, urlsplit(server.url).netloc, port, plain_port) as running,
        ):
            yield running


def test_plain_http_leads_to_tls(front: Proxy) -> None:
    answer = front.ask("/runs?run=4", tls=False)
    assert (answer.status_code, answer.headers["Location"]) == (308, f"https://{NAME}:{front.port}/runs?run=4")


@pytest.mark.parametrize("path", ["/", "/health", "/runs", "/app/static/plotly.min.js", "/not/there.js"])
def test_every_answer_has_each_security_header_once(front: Proxy, path: str) -> None:
    answer = front.ask(path)
    expected = HEADERS | {"Strict-Transport-Security": "max-age=31536000"}
    assert {name: answer.headers.get_list(name) for name in expected} == {n: [value] for n, value in expected.items()}


def test_health_answers_through_it(front: Proxy) -> None:
    answer = front.ask("/health")
    assert (answer.status_code, answer.json()["store"]) == (200, "ok")


def test_requests_for_another_host_never_reach_the_app(front: Proxy) -> None:
    for tls in (True, False):
        assert front.ask("/health", tls=tls, name="evil.example.org").status_code == 421
    context = ssl.create_default_context(cafile=front.certificate)
    with httpx.Client(verify=context, trust_env=False) as client, pytest.raises(httpx.ConnectError, match="name"):
        client.get(f"https://127.0.0.1:{front.port}/health")


def test_a_foreign_page_gets_no_websocket(front: Proxy) -> None:
    context = ssl.create_default_context(cafile=front.certificate)
    address, own = f"wss://{NAME}:{front.port}/_stcore/stream", f"https://{NAME}:{front.port}"
    options = {"address": ("127.0.0.1", front.port), "ssl": context, "subprotocols": ["streamlit"], "proxy": None}
    with connect(address, origin=own, **options) as socket:
        assert socket.subprotocol == "streamlit"
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, origin="https://evil.example.org", **options)


def test_a_larger_upload_is_refused(front: Proxy) -> None:
    body = (bytes(2**20) for _ in range(202))
    headers = {"Content-Length": str(202 * 2**20)}
    answer = front.ask("/_stcore/upload_file/a/b", method="PUT", headers=headers, content=body)
    assert answer.status_code == 413


def test_somebody_signs_in_clicks_and_uploads_the_largest_file(front: Proxy, folder: Path) -> None:
    bundle = folder / "largest.zip"
    with bundle.open("wb") as file:
        file.truncate(LARGEST)
    rules = [f"--host-resolver-rules=MAP {NAME} 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(shell=True), args=[*FLAGS, *rules])
        context = browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto(f"http://{NAME}:{front.plain_port}/runs")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("E-mail").fill(EMAIL)
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_text(f"{EMAIL} (runner)")).to_be_visible(timeout=PATIENCE_S * 1000)
        assert page.url.startswith(f"https://{NAME}:{front.port}/")
        cookies = context.cookies(f"https://{NAME}")
        assert len(cookies) > 1
        assert all(cookie["secure"] for cookie in cookies)
        page.get_by_role("link", name="Runs", exact=True).click()
        page.get_by_text("Import a run from another machine").click()
        page.locator("input[type=file]").set_input_files(bundle)
        page.get_by_role("button", name="Import", exact=True).click()
        expect(page.get_by_text("largest.zip is not a run bundle")).to_be_visible(timeout=PATIENCE_S * 1000)
        browser.close()
