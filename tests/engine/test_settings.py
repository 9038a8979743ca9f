"""The settings and what the documents say about them."""

from engine.settings import ROOT, Settings


def test_the_documents_list_every_setting_with_its_default() -> None:
    lines = []
    for name, field in Settings.model_fields.items():
        default = str(field.default).replace(f"{ROOT}/", "")
        shown = f"`{default}`" if default else "empty"
        lines.append(f"| `VITALS_{name.upper()}` | {shown} | {field.description} |")
    table = (ROOT / "docs" / "deploy.md").read_text().partition("| variable | default | meaning |\n|---|---|---|\n")[2]
    assert table.splitlines() == lines
