"""Tests of pages with sign-in, where tests set the user. In tests/browser, a browser signs in at a provider."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit import config
from streamlit.runtime.secrets import Secrets
from streamlit.testing.v1 import AppTest

from engine.datasets.uploads import kept
from engine.settings import ROOT, Settings
from engine.specs import ProfileSpec, Refused
from engine.store import Role, State, Store, User
from engine.store.files import RunFiles
from pages.shared import backend, sign_in
from pages.shared.runs import actions
from tests.support.clip import queue_train, record, train_row, write_checkpoints
from tests.support.page import (
    PATIENCE_S,
    benchmark_row,
    finish,
    open_page,
    profile_row,
    queue_benchmark,
    store_machine,
    texts,
)

ANN = User("ann@x.org", Role.RUNNER)
RUN_PAGE = "run/page.py"


@pytest.fixture
def signed_in(monkeypatch: pytest.MonkeyPatch, own_world: None) -> None:
    monkeypatch.setattr(sign_in, "configured", lambda: True)
    for name, value in {"ADMINS": "root@x.org", "RUNNERS": "ann@x.org,bob@x.org", "VIEWERS": "eve@x.org"}.items():
        monkeypatch.setenv(f"VITALS_{name}", value)


def open_page_as(email: str, path: str, **query: str | list[str]) -> AppTest:
    """Open a page as a user who has signed in."""
    app = AppTest.from_file(str(ROOT / "pages" / "frame.py"), default_timeout=PATIENCE_S)
    app.user = {"is_logged_in": True, "email": email, "email_verified": True}
    app.run()
    app.switch_page(path)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception
    return app


def buttons(app: AppTest) -> set[str]:
    """Return the labels of enabled buttons and of download buttons."""
    return {button.label for button in app.button if not button.disabled} | {
        button.proto.label for button in app.get("download_button")
    }


@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
def test_users_without_a_role_see_no_content(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr(sign_in, "_providers", lambda: ["default"])
    run_id = finish_run(store)
    for user in ({}, {"is_logged_in": False, "email": "root@x.org", "email_verified": True}):
        app = AppTest.from_file(str(ROOT / "pages" / "frame.py"), default_timeout=PATIENCE_S)
        app.user, app.query_params["run"] = user, str(run_id)
        assert (texts(app.run()), buttons(app), len(app.dataframe)) == ("Model Vitals", {"Sign in"}, 0)
    app.user = {"is_logged_in": True, "email": "mallory@x.org", "email_verified": True}
    assert "mallory" in texts(app.run())
    assert (buttons(app), len(app.dataframe)) == ({"Sign out"}, 0)


def finish_run(store: Store) -> int:
    run_id = store.acting_as(ANN).enqueue(ProfileSpec(models=("resnet18",)))
    finish(store, run_id, [profile_row("resnet18")])
    return run_id


@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
@pytest.mark.parametrize("email", ["ann@x.org", "root@x.org", "bob@x.org", "eve@x.org"])
def test_only_owner_and_admin_get_run_actions(store: Store, email: str) -> None:
    ended, waiting = finish_run(store), store.acting_as(ANN).enqueue(ProfileSpec(models=("resnet50",)))
    allowed = email in ("ann@x.org", "root@x.org")
    app = open_page_as(email, RUN_PAGE, run=str(ended))
    assert "by ann@x.org" in texts(app)
    assert ({"Delete", "Export bundle"} & buttons(app) == {"Delete", "Export bundle"}) == allowed
    assert app.text_area[0].disabled != allowed
    assert ("Cancel" in buttons(open_page_as(email, RUN_PAGE, run=str(waiting)))) == allowed
    app = open_page_as(email, "profile/page.py", profile_models="resnet18")
    assert app.button(key="profile_go").disabled == (email == "eve@x.org")
    app = open_page_as(email, "history/page.py")
    assert app.dataframe[0].value["owner"].tolist() == ["ann@x.org", "ann@x.org"]


@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
@pytest.mark.parametrize("email", ["bob@x.org", "eve@x.org"])
def test_results_offer_new_runs_to_those_who_may_start_them(store: Store, email: str) -> None:
    counted, timed = finish_run(store), queue_benchmark(store, "resnet18", replicates=1)
    finish(store, timed, [benchmark_row("resnet18")])
    pages: list[tuple[str, dict[str, str | list[str]], str]] = [
        (RUN_PAGE, {"run": str(counted)}, "Count this model again"),
        (RUN_PAGE, {"run": str(timed)}, "Run in 3 processes"),
        ("model/page.py", {"name": "timm:resnet18", "model_part": "Modules"}, "Count modules"),
    ]
    for page, query, label in pages:
        assert (label in buttons(open_page_as(email, page, **query))) == (email == "bob@x.org"), label


@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
@pytest.mark.parametrize("email", ["bob@x.org", "eve@x.org"])
def test_viewers_can_neither_time_nor_calibrate_nor_repeat(
    store: Store, monkeypatch: pytest.MonkeyPatch, email: str
) -> None:
    viewer = email == "eve@x.org"
    store_machine(store)
    runs = [queue_benchmark(store, "resnet18", threads=threads) for threads in (1, 2)]
    for run_id in runs:
        row = benchmark_row("resnet18", batch_size=1, batch_size_requested="1", flags=("contended",), baseline="")
        finish(store, run_id, [row])
    app = open_page_as(email, "catalog/page.py", catalog_rows=["timm:resnet50 224", "timm:resnet18 224"])
    for key in ("catalog_measure", "catalog_again"):
        assert app.button(key=key).disabled == viewer, key
    app = open_page_as(email, "compare/page.py", compare_runs=",".join(map(str, runs)))
    assert app.button(key="compare_turns").disabled == viewer
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(ROOT / "data" / "catalog"))  # speeds are estimated from its operators
    app = open_page_as(email, "model/page.py", name="timm:resnet18", model_part="Speed")
    menus = {menu.proto.popover.label: menu.proto.popover.disabled for menu in app.get("popover")}
    assert menus["Calibrate this machine"] == viewer


@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
def test_only_owner_and_admin_get_checkpoints(store: Store, settings: Settings) -> None:
    run_id = queue_train(store.acting_as(ANN))
    record(store, run_id, [train_row(1, step=1, best=True)])
    write_checkpoints(RunFiles(settings.runs_dir, run_id).dir, "best.pt")
    for email in ("ann@x.org", "root@x.org", "bob@x.org", "eve@x.org"):
        app = open_page_as(email, RUN_PAGE, run=str(run_id))
        keys = {element.key for element in (*app.get("download_button"), *app.button)}
        weights = {f"checkpoint_file_{run_id}", f"export_{run_id}_best_step_1"}
        assert weights & keys == (weights if email in ("ann@x.org", "root@x.org") else set())
        assert f"rows_{run_id}_csv" in keys


@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
def test_deletion_without_the_button_is_refused_for_other_users(store: Store) -> None:
    run_id = finish_run(store)
    app = open_page_as("bob@x.org", RUN_PAGE, run=str(run_id))
    app.session_state[actions.REQUESTED] = [run_id]
    app.run()
    app.text_input(key="runs_delete_number").set_value(str(run_id)).run()
    app.button(key="runs_delete_sure").click().run()
    assert "belongs to ann" in app.toast[0].value.replace("\\", "")
    assert store.run(run_id).state is State.FINISHED


@pytest.mark.slow
@pytest.mark.usefixtures("signed_in")
def test_runs_and_uploads_belong_to_the_signed_in_user(store: Store, settings: Settings) -> None:
    app = open_page_as("bob@x.org", "profile/page.py", profile_models="resnet18")
    app.button(key="profile_go").click().run()
    assert store.runs()[0].owner == "bob@x.org"
    table = b"filepath,title\na.png,one\n"
    for email in ("ann@x.org", "bob@x.org"):
        app = open_page_as(email, "train/page.py")
        app.file_uploader(key="train_upload").upload("pairs.csv", table)
        app.run()
    uploads = {upload.owner: upload for upload in kept(settings.runs_dir / "uploads")}
    assert set(uploads) == {"ann@x.org", "bob@x.org"}
    app = open_page_as("bob@x.org", "train/page.py")
    app.session_state["train_uploads"] = True
    app.run()
    assert ", by ann@x.org" in texts(app).replace("\\", "")
    deletable = [button.key for button in app.button if button.label == "Delete"]
    assert deletable == [f"train_kept_{uploads['bob@x.org'].folder.name}_delete"]
    app.button(key=deletable[0]).click().run()
    app.user = {**app.user, "email": "ann@x.org"}  # signed in in another tab, while the dialog is open
    app.button(key="train_kept_sure").click().run()
    assert "belongs to bob" in texts(app).replace("\\", "")
    app.file_uploader(key="train_upload").upload("more.csv", table + b"b.png,two\n")
    app.user = {**app.user, "email": "eve@x.org"}
    app.run()
    assert {upload.folder for upload in kept(settings.runs_dir / "uploads")} == {
        upload.folder for upload in uploads.values()
    }
    assert not open_page_as("eve@x.org", "train/page.py").get("file_uploader"), "a viewer uploads nothing"


AUTH = """
[auth]
redirect_uri = "http://127.0.0.1:{port}/oauth2callback"
cookie_secret = "canary-cookie-0123456789abcdef0123"
client_id = "vitals"
client_secret = "canary-client"
server_metadata_url = "http://127.0.0.1:1/.well-known/openid-configuration"
"""


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Return a function that writes secrets.toml and makes Streamlit read it again."""
    path = tmp_path / "secrets" / "secrets.toml"
    path.parent.mkdir()
    before = config.get_option("secrets.files")
    config.set_option("secrets.files", [str(path)])

    def write(text: str) -> Path:
        path.write_text(text)
        monkeypatch.setattr(st, "secrets", Secrets())
        monkeypatch.setattr("streamlit.auth_util.secrets_singleton", st.secrets)
        sign_in.configured.cache_clear()
        return path

    yield write
    config.set_option("secrets.files", before)
    sign_in.configured.cache_clear()


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (AUTH, {}, "nobody has a role: name yourself in VITALS_ADMINS"),
        (AUTH, {"admins": "a@b.c", "data_roots": "{folder}"}, "runs may read the secrets in .* in a data folder"),
        (
            AUTH.replace("client_secret", "other"),
            {"admins": "a@b.c"},
            r"missing the following keys: \['client_secret'\]",
        ),
        (AUTH.replace("-0123456789abcdef0123", ""), {"admins": "a@b.c"}, "fewer than 32 characters"),
        ("[auth]\n", {"admins": "a@b.c"}, "redirect_uri"),
        ("[auth\ncanary", {"admins": "a@b.c"}, "Error parsing secrets file"),
    ],
)
def test_server_refuses_to_start_with_incomplete_sign_in(
    secrets: Callable[[str], Path], text: str, settings: dict[str, str], message: str
) -> None:
    folder = str(secrets(text).parent)
    values = {"data_roots": "/nowhere"} | {name: value.format(folder=folder) for name, value in settings.items()}
    with pytest.raises(Refused, match=message) as refused:
        sign_in.check(Settings.model_validate(values))
    assert "canary" not in str(refused.value)


def test_sign_in_stays_required_if_its_file_is_deleted(secrets: Callable[[str], Path]) -> None:
    path = secrets(AUTH)
    sign_in.check(Settings(admins="a@b.c", data_roots="/nowhere"))
    path.unlink()
    st.secrets._reset()
    assert backend.user() == sign_in.NOBODY
    assert not open_page().dataframe
