"""Browser test of sign-in at a provider, with users of different roles."""

from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from engine.settings import Settings
from engine.store import State, open_store
from engine.store.bundles.bundle import export_bundle
from tests.support.browser import PATIENCE_S, WINDOW, Server, serve
from tests.support.servers.oidc import provide

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

CANARIES = ["canary-of-the-client-8d1f", "canary-of-the-cookies-27c4-5b0e9d"]


def sign_in(page: Page, email: str, user: str) -> None:
    """Sign in on a page that shows nothing else, and wait for the text that names the user."""
    expect(page.get_by_test_id("stSidebarNav")).to_have_count(0)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("E-mail").fill(email)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text(user)).to_be_visible()


def sign_out(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def open_run(page: Page, server: Server, run_id: int) -> None:
    page.goto(f"{server.url}/run?run={run_id}")
    expect(page.get_by_role("heading", name=f"Run {run_id}")).to_be_visible()
    expect(page.get_by_text("by ann@x.org")).to_be_visible()


def test_runners_cannot_change_other_runs_and_no_secret_is_written(browser: Browser, tmp_path: Path) -> None:
    """Four users share two browser profiles, because a page of a new profile takes 2 CPU-seconds more."""
    folder = tmp_path / "served"
    folder.mkdir()
    roles = {"admins": "root@x.org", "runners": "ann@x.org,bob@x.org", "data_roots": str(folder)}
    with provide(CANARIES[0]) as provider:
        secrets = tmp_path / "secrets.toml"
        secrets.write_text(f'{provider.secrets_toml}cookie_secret = "{CANARIES[1]}"\n')
        with serve(folder, preload="", secrets=secrets, **roles) as server:
            store = open_store(Settings(runs_dir=folder / "runs"))
            one, other = (browser.new_context(**WINDOW).new_page() for _ in range(2))
            for page, address in ((one, f"{server.url}/profile?profile_models=timm:*"), (other, server.url)):
                page.set_default_timeout(PATIENCE_S * 1000)
                page.goto(address)
            sign_in(one, "Ann@X.org", "ann@x.org (runner)")
            one.get_by_role("button", name="Count", exact=True).click()
            expect(one.get_by_role("button", name="Cancel")).to_be_visible()
            assert [(run.id, run.owner) for run in store.runs()] == [(1, "ann@x.org")]

            sign_out(one)

            sign_in(other, "bob@x.org", "bob@x.org (runner)")
            open_run(other, server, 1)
            expect(other.get_by_role("link", name="Edit a copy")).to_be_visible()
            expect(other.get_by_role("button", name="Cancel")).to_have_count(0)

            sign_in(one, "root@x.org", "root@x.org (admin)")
            open_run(one, server, 1)
            one.get_by_role("button", name="Cancel").click()
            expect(one.get_by_text("stopped on request")).to_be_visible()
            assert store.run(1).state is State.CANCELLED

            expect(other.get_by_text("stopped on request")).to_be_visible()
            for name in ("Delete", "Restart", "Export bundle"):
                expect(other.get_by_role("button", name=name)).to_have_count(0)
            sign_out(other)

            sign_in(other, "mallory@evil-x.org", "has no role here")
            replayed = f"{server.url}/oauth2callback?code={provider.issued[0]}&state=forged"
            assert other.request.get(replayed).status == 200  # redirected to the page with the button Sign in

            exported = export_bundle(store, server.settings, 1) + urlopen(f"{server.url}/health").read()
            (folder / "exported").write_bytes(exported)
            store.close()
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert {"server.log", "scheduler.log", "vitals.sqlite", "exported"} <= {path.name for path in files}
        hidden = [secret.encode() for secret in (*CANARIES, *provider.issued)]
        assert len(hidden) == 2 + 4 * 3
        assert [path for path in files if any(secret in path.read_bytes() for secret in hidden)] == []
