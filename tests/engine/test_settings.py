"""The settings and what the documents say about them."""

from pathlib import Path

import pytest

from engine.settings import ROOT, Settings
from engine.specs import Refused
from engine.store import open_store


def test_the_documents_list_every_setting_with_its_default() -> None:
    lines = []
    for name, field in Settings.model_fields.items():
        default = str(field.default).replace(f"{ROOT}/", "")
        shown = f"`{default}`" if default else "empty"
        lines.append(f"| `VITALS_{name.upper()}` | {shown} | {field.description} |")
    table = (ROOT / "docs" / "deploy.md").read_text().partition("| variable | default | meaning |\n|---|---|---|\n")[2]
    assert table.splitlines() == lines


def test_an_empty_folder_is_the_default_and_an_empty_preload_stays_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNS_DIR", "CATALOG_DIR", "PRELOAD"):
        monkeypatch.setenv(f"VITALS_{name}", "")
    settings = Settings()
    assert settings.runs_dir == ROOT / "data" / "runs"
    assert settings.catalog_dir == ROOT / "data" / "catalog"
    assert settings.preload == ""


def test_sqlite_is_refused_with_a_cluster(tmp_path: Path) -> None:
    settings = Settings(runs_dir=tmp_path, ray_address="http://127.0.0.1:8265")
    with pytest.raises(Refused, match=r"the store is SQLite.*Set VITALS_DATABASE_URL to a PostgreSQL database"):
        open_store(settings)
    assert list(tmp_path.iterdir()) == []
