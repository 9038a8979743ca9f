"""The launcher and its settings, beside what the tests of the server and the browser see of them."""

import os
import stat
from collections.abc import Callable, Iterator

import pytest

from app import refuse_strangers
from engine.__main__ import main
from engine.settings import Settings
from engine.specs import Refused
from engine.store import open_store


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_is_served(address: str) -> None:
    refuse_strangers(Settings(), address)


@pytest.mark.parametrize("address", [None, "", "0.0.0.0", "::", "192.168.0.7", "8.8.8.8", "example.org"])
def test_other_machines_are_not_unless_something_in_front_asks_who_is_there(address: str | None) -> None:
    with pytest.raises(Refused, match="these pages have no login"):
        refuse_strangers(Settings(), address)
    refuse_strangers(Settings(public=True), address)


def test_a_public_server_is_warned_of() -> None:
    assert Settings().public_warning == ""
    warning = Settings(public=True, data_roots="/data").public_warning
    assert "no sign-in of its own" in warning
    assert "home folder" not in warning
    for roots in ("", os.pathsep):
        assert "the whole home folder" in Settings(public=True, data_roots=roots).public_warning


@pytest.fixture
def lenient() -> Iterator[None]:
    """Let other users read new files, as most systems do."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(
    "use",
    [
        lambda settings: open_store(settings).close(),
        lambda settings: main(["published-import", os.devnull]),
        lambda settings: main(["runs", "list"]),
    ],
)
def test_a_new_runs_folder_is_its_owners_alone(settings: Settings, use: Callable[[Settings], object]) -> None:
    use(settings)
    assert stat.S_IMODE(settings.runs_dir.stat().st_mode) == 0o700
    assert settings.sharing_warning == ""


@pytest.mark.usefixtures("lenient")
def test_a_runs_folder_that_is_shared_stays_so_and_is_warned_of(settings: Settings) -> None:
    settings.runs_dir.mkdir()
    open_store(settings).close()
    assert stat.S_IMODE(settings.runs_dir.stat().st_mode) == 0o755
    assert f"runs folder {settings.runs_dir} (mode 755)" in settings.sharing_warning
    assert settings.sharing_warning.endswith(f"chmod 700 {settings.runs_dir}")
