"""Settings: documentation, defaults, folders and refused values."""

import pwd
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from engine.jobs.lifecycle import Health
from engine.settings import ROOT, Settings
from engine.specs import Refused
from engine.store import open_store
from engine.store.backup import restore, transfer


def test_deploy_md_lists_every_setting_with_its_default() -> None:
    lines = []
    for name, field in Settings.model_fields.items():
        default = str(field.default).replace(f"{ROOT}/", "")
        default_cell = f"`{default}`" if default else "empty"
        lines.append(f"| `VITALS_{name.upper()}` | {default_cell} | {field.description} |")
    table = (ROOT / "docs" / "deploy.md").read_text().partition("| variable | default | meaning |\n|---|---|---|\n")[2]
    assert table.splitlines() == lines


def test_container_image_has_the_files_that_commands_read(tmp_path: Path) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in (ROOT / name for name in kept if name != "data"):
        if path.is_dir():
            shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, tmp_path)
    subprocess.run([sys.executable, "-m", "engine", "--version"], cwd=tmp_path, check=True)


def test_deploy_md_lists_every_field_of_the_health_check() -> None:
    table = (
        (ROOT / "docs" / "deploy.md").read_text().partition("| field | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    )
    names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert names == [field.name for field in fields(Health)]


def test_empty_folder_means_the_default_and_empty_preload_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNS_DIR", "CATALOG_DIR", "PRELOAD"):
        monkeypatch.setenv(f"VITALS_{name}", "")
    settings = Settings()
    assert settings.runs_dir == ROOT / "data" / "runs"
    assert settings.catalog_dir == ROOT / "data" / "catalog"
    assert settings.preload == ""


@pytest.mark.parametrize("name", ["LEASE_S", "STOP_GRACE_S"])
def test_limit_that_is_not_finite_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"VITALS_{name}", "inf")
    with pytest.raises(Refused, match=rf"^VITALS_{name}: must be a finite number \(given: 'inf'\)$"):
        Settings()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("RAY_ADDRESS", "http://head:8265", "Set VITALS_DATABASE_URL to a PostgreSQL database"),
        ("ARTIFACTS_URL", "s3://key:secret@bucket", "holds a password, keys or options"),
        ("ARTIFACTS_URL", "s3://bucket?key=secret", "holds a password, keys or options"),
        ("ARTIFACTS_URL", "copies", "neither a URL such as s3://BUCKET/PREFIX nor the absolute path"),
    ],
)
def test_no_store_is_opened_with_refused_settings(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"VITALS_{name}", value)
    with pytest.raises(Refused, match=reason) as error:
        open_store(Settings())
    assert "secret" not in str(error.value)


def test_folders_of_settings_expand_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNS_DIR", "CATALOG_DIR", "ARTIFACTS_URL", "DATA_ROOTS"):
        monkeypatch.setenv(f"VITALS_{name}", f"~/{name}")
    settings, home = Settings(), Path.home()
    assert (settings.runs_dir, settings.catalog_dir) == (home / "RUNS_DIR", home / "CATALOG_DIR")
    assert (settings.artifacts_url, settings.refusal) == (str(home / "ARTIFACTS_URL"), "")
    assert (home / "DATA_ROOTS").resolve() in settings.roots
    unknown_home = Path("~no-such-user-here/x")
    monkeypatch.setenv("VITALS_RUNS_DIR", str(unknown_home))
    monkeypatch.setenv("VITALS_DATA_ROOTS", str(unknown_home))
    assert (Settings().runs_dir, Settings().roots[0]) == (unknown_home.absolute(), unknown_home.resolve())


def test_relative_folders_stay_where_they_are_when_the_current_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITALS_RUNS_DIR", "runs of today")
    settings = Settings()
    monkeypatch.chdir(tmp_path.parent)
    assert settings.runs_dir.absolute() == tmp_path / "runs of today"


def test_user_without_a_home_folder_has_no_default_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id that the system does not know, as in a container, has no home folder unless HOME names one."""

    def refuse(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("VITALS_DATA_ROOTS", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", refuse)
    assert not Settings().roots[0].exists()
    monkeypatch.setenv("VITALS_ARTIFACTS_URL", "s3://bucket/~/runs")
    assert Settings().artifacts_url == "s3://bucket/~/runs"


def test_store_is_in_the_runs_folder_whatever_its_name(tmp_path: Path) -> None:
    settings = Settings(runs_dir=tmp_path / "50%41 #1?a=b & 'ü 模' \udcff")
    open_store(settings).close()
    restore.restore(settings)
    transfer.back_up(settings, settings.runs_dir / "a copy?")
    names = {path.name.partition("-damaged")[0] for path in settings.runs_dir.iterdir()}
    assert names == {"vitals.sqlite", "vitals", "a copy?"}
    assert list(tmp_path.iterdir()) == [settings.runs_dir]


def test_sqlite_is_refused_with_a_cluster(tmp_path: Path) -> None:
    for url in ("", f"sqlite:///{tmp_path / 'a.sqlite'}"):
        settings = Settings(runs_dir=tmp_path, database_url=url, ray_address="http://127.0.0.1:8265")
        with pytest.raises(Refused, match=r"the store is SQLite.*Set VITALS_DATABASE_URL to a PostgreSQL database"):
            open_store(settings)
    assert list(tmp_path.iterdir()) == []
