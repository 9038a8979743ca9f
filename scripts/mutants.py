"""Find seeded faults that the tests of a module miss: `python scripts/mutants.py [--seed 1] [--count 60]`.

Each mutant changes one operator, comparison, constant or condition of a core module, in a copy of the tree. The tests
of that module run against it. A mutant that no test notices survives. Prints a line per mutant and how many survived.
"""

import argparse
import ast
import copy
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTED_BY = {
    "engine/statistics.py": ["tests/engine/test_statistics.py"],
    "engine/names.py": ["tests/engine/test_names.py"],
    "engine/roots.py": ["tests/engine/test_roots.py"],
    "engine/specs/benchmark.py": ["tests/engine/specs/test_speed.py"],
    "engine/store/queue.py": ["tests/engine/store/test_store.py", "tests/engine/jobs/test_jobs.py"],
    "engine/store/find.py": ["tests/engine/store/test_find.py"],
    "engine/published/match.py": ["tests/engine/published"],
    "engine/report/timings/needs.py": ["tests/engine/report/test_speed.py"],
    "engine/report/catalog/catalog.py": ["tests/engine/report/test_catalog.py"],
    "engine/measure/timing.py": ["tests/engine/measure/test_timing.py"],
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
}


def mutate(node: ast.AST) -> bool:
    """Change a node in place. Return whether there was something to change."""
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS.get(type(node.ops[0]), ast.Eq)()  # type: ignore[assignment]
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPS:
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1  # type: ignore[operator]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        return False
    return True


def mutants(source: str) -> list[tuple[int, str]]:
    """Return the line and the source of every mutant of a module; annotations and docstrings are left alone."""
    tree = ast.parse(source)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    variants = []
    for place, node in enumerate(ast.walk(tree)):
        if id(node) in skipped or not hasattr(node, "lineno"):
            continue
        changed = copy.deepcopy(tree)
        twin = next(found for index, found in enumerate(ast.walk(changed)) if index == place)
        if mutate(twin):
            variants.append((node.lineno, ast.unparse(ast.fix_missing_locations(changed))))
    return variants


def passes(tests: list[str], folder: Path) -> bool:
    """Return whether these tests pass in the copy of the tree."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "120"]
    return not subprocess.run([*command, "-m", "not soak", *tests], cwd=folder, capture_output=True).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    arguments = parser.parse_args()
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        copied = Path(name)
        for part in ("engine", "pages", "tests", "data", "benchmarks", "scripts", "pyproject.toml", "app.py"):
            source = ROOT / part
            ignore = shutil.ignore_patterns("runs", "__pycache__")
            shutil.copytree(source, copied / part, ignore=ignore) if source.is_dir() else shutil.copy(source, copied)
        for module, tests in TESTED_BY.items():
            path = copied / module
            original = path.read_text()
            if not passes(tests, copied):
                raise SystemExit(f"{module}: its tests fail before any fault is seeded: {' '.join(tests)}")
            chosen = random.Random(f"{arguments.seed} {module}")
            for line, text in chosen.sample(mutants(original), arguments.count // len(TESTED_BY)):
                path.write_text(text)
                survived = passes(tests, copied)
                survivors += survived
                print(f"{'survived' if survived else 'noticed'} {module}:{line}", flush=True)
            path.write_text(original)
    print(f"{survivors} of {arguments.count} mutants survived")


if __name__ == "__main__":
    main()
