"""Tests of the app behind Debian's nginx with deploy/nginx.conf: TLS, sign-in, WebSocket, uploads, other hosts."""

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
from tests.support.servers.nginx import NAME, Proxy, proxy
from tests.support.servers.oidc import provide

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

EMAIL = "ann@x.org"
LARGEST = 200 * 10**6
"""Bytes of the largest file that the browser sends: server.maxUploadSize in .streamlit/config.toml."""


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("behind")


@pytest.fixture(scope="module")
def nginx(site_folder: Path) -> Iterator[Proxy]:
    """Run the app behind nginx as docs/deploy.md describes it: on loopback, with sign-in, and with its public name."""
    port, plain_port = free_port(), free_port()
    secrets = site_folder / "secrets.toml"
    with pytest.MonkeyPatch.context() as patched, provide("client-secret") as provider:
        patched.setenv("STREAMLIT_SERVER_ALLOWED_HOSTS", NAME)
        text = provider.secrets_toml.replace("http://127.0.0.1:{port}/oauth2", f"https://{NAME}:{port}/oauth2")
        secrets.write_text(f'{text}cookie_secret = "{"c" * 64}"\n')
        runs = site_folder / "served"
        runs.mkdir()
        with (
            serve(runs, preload="", secrets=secrets, runners=EMAIL, data_roots=str(runs)) as server,
            proxy(site_folder, urlsplit(server.url).netloc, port, plain_port) as running,
        ):
            yield running


def test_plain_http_redirects_to_https(nginx: Proxy) -> None:
    answer = nginx.ask("/runs?run=4", tls=False)
    assert (answer.status_code, answer.headers["Location"]) == (308, f"https://{NAME}:{nginx.port}/runs?run=4")
    assert nginx.ask("/.well-known/acme-challenge/no-such-token", tls=False).status_code == 404


@pytest.mark.parametrize("path", ["/", "/health", "/runs", "/app/static/plotly.min.js", "/not/there.js"])
def test_every_response_has_each_security_header_once(nginx: Proxy, path: str) -> None:
    answer = nginx.ask(path)
    expected = HEADERS | {"Strict-Transport-Security": "max-age=31536000"}
    assert {name: answer.headers.get_list(name) for name in expected} == {n: [value] for n, value in expected.items()}


def test_health_check_works_through_nginx(nginx: Proxy) -> None:
    answer = nginx.ask("/health")
    assert (answer.status_code, answer.json()["store"]) == (200, "ok")


def test_requests_for_another_host_never_reach_the_app(nginx: Proxy) -> None:
    for tls in (True, False):
        assert nginx.ask("/health", tls=tls, name="evil.example.org").status_code == 421
    context = ssl.create_default_context(cafile=nginx.certificate)
    with httpx.Client(verify=context, trust_env=False) as client, pytest.raises(httpx.ConnectError, match="name"):
        client.get(f"https://127.0.0.1:{nginx.port}/health")


def test_foreign_origin_gets_no_websocket(nginx: Proxy) -> None:
    context = ssl.create_default_context(cafile=nginx.certificate)
    address, origin = f"wss://{NAME}:{nginx.port}/_stcore/stream", f"https://{NAME}:{nginx.port}"
    options = {"address": ("127.0.0.1", nginx.port), "ssl": context, "subprotocols": ["streamlit"], "proxy": None}
    options |= {"open_timeout": PATIENCE_S}
    with connect(address, origin=origin, **options) as socket:
        assert socket.subprotocol == "streamlit"
    with pytest.raises(InvalidStatus, match="403"):
        connect(address, origin="https://evil.example.org", **options)


def test_upload_above_the_limit_is_refused(nginx: Proxy) -> None:
    body = (bytes(2**20) for _ in range(202))
    headers = {"Content-Length": str(202 * 2**20)}
    answer = nginx.ask("/_stcore/upload_file/a/b", method="PUT", headers=headers, content=body)
    assert answer.status_code == 413


def test_user_signs_in_and_uploads_the_largest_file(nginx: Proxy, site_folder: Path) -> None:
    bundle = site_folder / "largest.zip"
    with bundle.open("wb") as file:
        file.truncate(LARGEST)
    rules = [f"--host-resolver-rules=MAP {NAME} 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(shell=True), args=[*FLAGS, *rules])
        context = browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto(f"http://{NAME}:{nginx.plain_port}/runs")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("E-mail").fill(EMAIL)
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_text(f"{EMAIL} (runner)")).to_be_visible(timeout=PATIENCE_S * 1000)
        assert page.url.startswith(f"https://{NAME}:{nginx.port}/")
        cookies = context.cookies(f"https://{NAME}")
        assert len(cookies) > 1
        assert all(cookie["secure"] for cookie in cookies)
        page.get_by_role("link", name="Runs", exact=True).click()
        page.get_by_text("Import a run from another machine").click()
        page.locator("input[type=file]").set_input_files(bundle)
        page.get_by_role("button", name="Import", exact=True).click()
        expect(page.get_by_text("largest.zip is not a run bundle")).to_be_visible(timeout=PATIENCE_S * 1000)
        browser.close()
