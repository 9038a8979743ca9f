"""Rules of the code layout that a program can check. CONTRIBUTING.md describes them."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import pytest

from engine import results, specs
from engine.__main__ import Engine, Submit
from engine.cli.output import SHOWN
from engine.settings import ROOT, Settings
from pages.shared.kinds import KINDS, form_page

HEAVY = {"torch", "torchvision", "timm", "open_clip", "transformers", "fvcore", "sklearn"}
for package in (specs, results):  # importing a module registers its classes by kind
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
SPECS = {spec.kind: spec for spec in specs.Spec.__subclasses__()}


@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_of_run_has_all_its_parts(kind: str) -> None:
    row = results.kinds().get(kind)
    assert row, "engine/results/ has no row of this kind"
    for package, class_ in ((specs, SPECS[kind]), (results, row)):
        assert hasattr(package, class_.__name__), f"the package {package.__name__} does not import {class_.__name__}"
    assert find_spec(f"engine.tasks.{kind}"), f"engine/tasks/{kind}.py is missing"
    assert hasattr(import_module("engine.report.frames"), kind), f"engine/report/frames.py has no {kind}()"
    assert kind in Engine.model_fields, f"python -m engine has no command {kind}"
    assert kind in Submit.model_fields, f"python -m engine submit has no command {kind}"
    assert kind in SHOWN, "engine/cli/output.py: SHOWN names no columns for a terminal"
    assert kind in KINDS, "pages/shared/kinds.py names no page for this kind"
    folder = KINDS[kind].folder
    results_view = ROOT / "pages" / folder / "results.py"
    assert "def draw(run: Run, " in results_view.read_text(), (
        f"{results_view} has no function draw() for the results of this kind"
    )
    assert f"engine.tasks.{kind}" in Settings().preload, "engine/settings.py: the warm process preloads every task"
    page = form_page(SPECS[kind])
    assert f"build({SPECS[kind].__name__}," in (ROOT / "pages" / page).read_text(), f"pages/{page} builds no such spec"
    frame = (ROOT / "pages" / "frame.py").read_text()
    assert f'entry("{folder}", KINDS["{kind}"].title, ' in frame, f"pages/frame.py does not list {page}"
    assert f'"{folder}": "' in frame, f"pages/frame.py has no help text for {page}, so the navigation hides it"


def test_pages_are_in_folders() -> None:
    """Streamlit treats every pages/*.py as a page, so only frame.py may be there."""
    assert {path.name for path in (ROOT / "pages").glob("*.py")} == {"__init__.py", "frame.py"}


@pytest.mark.parametrize("page", sorted((ROOT / "pages").glob("*/page.py")))
def test_pages_have_no_bare_expressions(page: Path) -> None:
    """Streamlit shows the value of every bare expression in a page, even the docstring of a constant."""
    bare_expressions = [node for node in ast.parse(page.read_text()).body[1:] if isinstance(node, ast.Expr)]
    assert not [ast.unparse(node) for node in bare_expressions if not isinstance(node.value, ast.Call)]


@pytest.mark.slow
def test_import_contracts_hold() -> None:
    linter = subprocess.run([Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True)
    assert linter.returncode == 0, linter.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("app", HEAVY),
        ("engine.report.figures", HEAVY),
        ("engine.__main__, engine.jobs.scheduler", HEAVY | {"numpy", "pandas", "plotly", "alembic"}),
    ],
)
def test_light_modules_do_not_import_heavy_libraries(modules: str, absent: set[str]) -> None:
    """import-linter does not see imports in functions that run at import, or imports of libraries."""
    code = f"import sys, {modules}; print(*{absent!r} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.slow
def test_warm_process_does_not_preload_sklearn_or_pandas() -> None:
    """sklearn loads a second OpenMP runtime, and every worker would use memory for it and for pandas."""
    modules = Settings.model_fields["preload"].default
    code = f"import sys, importlib as i; [i.import_module(m) for m in {modules!r}.split(',')]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "torch" in loaded.stdout.split()
    assert {"sklearn", "pandas"}.isdisjoint(loaded.stdout.split())


def test_modules_stay_small() -> None:
    sources = [path for folder in ("engine", "pages") for path in (ROOT / folder).rglob("*.py")]
    long_modules = {
        str(path.relative_to(ROOT)): n for path in sources if (n := len(path.read_text().splitlines())) > 350
    }
    assert not long_modules, "these modules have more than 350 lines: split them"


def test_folders_stay_small() -> None:
    folders = {path.parent for folder in ("engine", "pages") for path in (ROOT / folder).rglob("*.py")}
    full = {str(folder.relative_to(ROOT)): n for folder in folders if (n := len(list(folder.glob("*.py")))) > 14}
    assert not full, "these folders have more than 14 modules: give a subject in them its own folder"


def test_tests_named_in_reliability_md_exist() -> None:
    test_names = re.findall(r"`([\w/]+\.py)::(?:\w+::)?(\w+)`", (ROOT / "docs" / "reliability.md").read_text())
    assert len(test_names) > 30
    missing = [
        f"{path}::{name}" for path, name in test_names if f"def {name}(" not in (ROOT / "tests" / path).read_text()
    ]
    assert missing == []


def test_files_named_in_contributing_md_exist() -> None:
    """In a row of the table, a name without a folder is in the folder of the path before it."""
    table = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is it?")[2].partition("## Who may import whom")[0]
    )
    missing = []
    for line in table.splitlines():
        folder = ROOT
        for name in re.findall(r"`([\w<>/]+(?:\.py|/))`", line):
            path = folder / name if "/" not in name else ROOT / name
            found = list(ROOT.glob(re.sub(r"<\w+>", "*", str(path.relative_to(ROOT)))))
            missing += [] if found else [name]
            folder = path.parent
    assert missing == []
    assert table.count("| ") > 20


def test_files_and_make_targets_named_in_the_documents_exist() -> None:
    text = "".join(path.read_text() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
    folders = "benchmarks|data|deploy|docs|engine|frontend|pages|scripts|tests"
    files = set(re.findall(rf"`((?:{folders})/[\w./-]+)", text))
    # made when the app runs; a folder of the past; files of PyTorch
    absent = {"data/runs", "pages/components", "benchmarks/dynamo/timm_models.py", "benchmarks/dynamo/common.py"}
    found = {name for name in files for folder in (ROOT, ROOT / "tests") if (folder / name).exists()}
    assert files - found <= absent
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", text)) <= targets


def test_readme_lists_every_page() -> None:
    frame = (ROOT / "pages" / "frame.py").read_text()
    entries = re.findall(r'entry\("\w+", (?:KINDS\["(\w+)"\]\.title|"(\w+)")', frame)
    titles = [KINDS[kind].title if kind else title for kind, title in entries]
    table = (ROOT / "README.md").read_text().partition("## Pages")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| \*\*(.+?)\*\*", table, re.MULTILINE)
    assert sorted(listed) == sorted(titles), "the table below `## Pages` has a line for each entry of pages/frame.py"


def test_percentages_are_written_with_a_space() -> None:
    """Python's, plotly's and Streamlit's formats for shares write 5%, the texts of this program 5 %."""
    without_space = re.compile(r':\.?\d*%}|%{\w:[^}]*%}|format="percent"|tickformat": "[^"]*%"')
    files = [path for folder in ("engine", "pages") for path in (ROOT / folder).rglob("*.py")]
    assert [f"{path}: {found[0]}" for path in files if (found := without_space.search(path.read_text()))] == []
