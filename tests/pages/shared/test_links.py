"""Tests of addresses of pages: none raises an exception or takes much memory, and bad values get a message."""

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from engine.report.quantities import title
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, DeviceSpec, EvaluateSpec, ProfileSpec, RecurrentSpec, Spec, TrainSpec
from engine.store import Store
from pages.shared import links
from pages.shared.form.labels import default_hint
from pages.shared.form.link import split
from pages.shared.kinds import form_page
from pages.shared.links import LEFT_OUT
from tests.support.page import FOLDERS, benchmark_row, finish, open_page, profile_row, queue, queue_benchmark, texts

pytestmark = [
    pytest.mark.usefixtures("own_world"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

PAGES = [f"{folder}/page.py" for folder in FOLDERS]
FORMS = {form_page(spec): spec for spec in Spec.__subclasses__()}
READ = {
    "model/page.py": ("name",),
    "run/page.py": ("run",),
    "compare/page.py": ("compare_runs", "compare_models", "compare_what"),
}
"""Parameters that a page reads without a field. Pages with a form also read `run` and `listed` (a long list)."""
BAD = (
    *(
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-0",
        "-1",
        "0",
        "1.5",
        "1e-400",
        "1_000",
        "0x10",
        "²",
        "٣",
        "9" * 30,
        "9" * 5000,
    ),
    *(
        "",
        " ",
        "true",
        "word",
        "None",
        "[]",
        "{}",
        "\0",
        "a\0b",
        "\r\n\t\x1b[31m",
        "\u202e",
        "\U0001f600",
        "x" * 20_000,
    ),
    *("../../etc/passwd", "/" + "a/" * 2500, "~no_such_user/x", "a,b::c", "1,2," * 500, "{" * 50, "{a,{b,c}}" * 9),
    *("*" * 300, "[", "[!", "(", "a{1000000000}", "(?:(?:a{1000}){1000}){1000}", "(?=a)", r"(a)\1", "a " * 3000),
    *("{0.__class__}", "{!r}", "{:>1000000000}", "{{}}", "{classname}", "%s%n%(x)s", "<b>$x$</b>:red[a]", "a*," * 400),
)


def plain_text(app: AppTest) -> str:
    return texts(app).replace("\\", "").replace("  \n", "\n")


def bound_parameters(app: AppTest) -> set[str]:
    """Return the parameters that Streamlit binds to fields of the page."""
    drawn = [getattr(node, "proto", None) for block in (app.main, app.sidebar) for node in block]
    return {name for proto in drawn if (name := getattr(proto, "query_param_key", ""))}


def all_parameters(page: str, app: AppTest) -> list[str]:
    """Return all parameters that a page reads from its address, also those of hidden form fields."""
    names = bound_parameters(app) | set(READ.get(page, ()))
    if spec := FORMS.get(page):
        names |= {f"{spec.kind}_{field}" for field in (*spec.model_fields, "listed")} | {"run"}
    return sorted(names)


@pytest.fixture
def stored_runs(store: Store) -> None:
    """Store a profile and two benchmarks, for pages that show runs."""
    finish(store, queue(store, "resnet18"), [profile_row("resnet18")])
    for _ in range(2):
        finish(store, queue_benchmark(store, "resnet18"), [benchmark_row("resnet18")])


BASE_QUERY = {"model/page.py": {"name": "timm:resnet18"}, "compare/page.py": {"compare_runs": "2,3"}}
"""Parameters without which a page draws few fields."""
VALUES = st.one_of(
    st.sampled_from(BAD), st.none(), st.text(max_size=30), st.lists(st.sampled_from(BAD), min_size=2, max_size=3)
)


@pytest.fixture
def values(page: str, stored_runs: None) -> Any:
    """Return a strategy for addresses of a page: a value or None for each parameter."""
    base = BASE_QUERY.get(page, {})
    names = all_parameters(page, open_page(page, **base))
    return st.fixed_dictionaries({name: st.just(base[name]) | VALUES if name in base else VALUES for name in names})


def assert_opens(page: str, query: dict[str, Any]) -> None:
    assert not open_page(page, **{name: value for name, value in query.items() if value is not None}).exception


FUZZ: dict[str, Any] = {"suppress_health_check": list(HealthCheck)}
"""All examples of a test share one store on purpose, so the health checks are off."""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@hypothesis_settings(max_examples=2, derandomize=True, **FUZZ)
@given(data=st.data())
def test_any_address_opens_without_an_exception(page: str, values: Any, data: st.DataObject) -> None:
    assert_opens(page, data.draw(values))


@pytest.mark.soak
@pytest.mark.parametrize("page", PAGES)
@hypothesis_settings(max_examples=40, derandomize=True, print_blob=True, **FUZZ)  # an example takes 1 s
@given(data=st.data())
def test_many_addresses_open_without_an_exception(page: str, values: Any, data: st.DataObject) -> None:
    assert_opens(page, data.draw(values))


REJECTED: dict[str, list[tuple[str, str | list[str], str]]] = {
    "profile/page.py": [
        ("profile_batch_size", "1e400", "Batch sizes: must be a whole number"),
        ("profile_num_classes", "1e400", "Classes '1e400': must be a whole number"),
        ("profile_context_length", "99999", "must be at most 8,192 (given: 99,999)"),
        ("profile_detail", "maybe", "Table of modules 'maybe': must be true or false"),
        ("profile_precision", "int8", "Precision 'int8': must be 'float32'"),
        ("profile_device", "tpu", "Device 'tpu': device 'tpu' is not one of meta, cpu"),
        ("profile_models", "resnet18", ""),
        ("run", "\x1b" * 100, "There is no run '" + "x1b" * 60 + "'... (100 characters)"),
    ],
    "vision/page.py": [
        ("benchmark_seed", "-1e400", "Seed '-1e400': must be a whole number"),
        ("benchmark_threads", "many", "Threads 'many': must be a whole number"),
        ("benchmark_replicates", ["2", "4"], "benchmark_replicates '2': only the last of several values is used"),
        (
            "benchmark_min_samples",
            "1.5",
            "Minimum samples: must be a whole number",
        ),
        ("benchmark_min_seconds", "nan", "Minimum sampled time (s) 'nan': must be a finite number"),
        ("benchmark_models", "resnet18", ""),
        ("models", "resnet18", "'models': no such field here; did you mean benchmark_models?"),
        ("benchmark_mdoe", "training", "'benchmark_mdoe': no such field here; did you mean benchmark_mode?"),
        ("bnechmark_seed", "3", "'bnechmark_seed': no such field here; did you mean benchmark_seed?"),
        ("train_lr", "1", "'train_lr': no such field here"),
        ("benchmark_variants", "x" * 9000, "too many characters, at most 200 (given: 'xxx"),
        ("benchmark_device", "x" * 9000, "xxx ... xxx"),
    ],
    "recurrent/page.py": [
        ("recurrent_loops", "-1e400", "Minimum samples '-1e400': must be a whole number"),
        ("recurrent_seed", "9" * 5000, "Seed '" + "9" * 60),
        ("recurrent_hidden_size", "8", ""),
    ],
    "train/page.py": [
        ("train_model", "*" * 300, "Model: has too many characters, at most 200 (given: '***"),
        ("train_lr", "inf", "Learning rate 'inf': must be a finite number"),
        ("train_steps", "1e400", "Steps '1e400': must be a whole number"),
        ("train_wd", "-0.5", "must be at least 0 (given: -0.5)"),
        ("train_data", "\0" + "x" * 5000, "Data: has too many characters, at most 4,000"),
        ("train_templates", "{!r}\n{0.__class__}", "a template has {} where the class name goes, unlike '{!r}'"),
    ],
    "evaluate/page.py": [
        ("evaluate_model", "a\0b", "Model: must be the name of a model"),
        ("evaluate_samples", "9" * 5000, "Maximum pairs '" + "9" * 60 + "'... (5,000 characters): has too many digits"),
        ("evaluate_classes", "%s {0}\n{!r}", "%s {0}. as it is"),
        ("evaluate_templates", "{0.__class__} {}. as it is", "{0.__class__} %s {0}. as it is"),
    ],
    "catalog/page.py": [
        ("catalog_max_gmacs", "1e400", "catalog_max_gmacs '1e400': not available here"),
        ("catalog_library", "keras", "catalog_library 'keras': not available here"),
        ("catalog_families", ["clip_vit", "a", "b"], "catalog_families 'a': not available here (and 1 more)"),
        ("catalog_log_x", "yes", "catalog_log_x 'yes': not available here"),
        ("catalog_x", "beauty", "catalog_x 'beauty': not available here"),
        ("catalog_serch", "vit", "'catalog_serch': no such field here; did you mean catalog_search?"),
        ("catalog_search", "a," * 600, "a search has at most 1,000 characters, this one 1,200"),
    ],
    "model/page.py": [
        ("name", "timm:resnet18", "resnet18"),
        ("model_part", "Attic", "model_part 'Attic': not available here"),
    ],
    "history/page.py": [
        ("runs_states", ["failed", "lost"], "runs_states 'lost': not available here"),
        ("runs_text", "a " * 3000, "a search has at most 200 characters, this one 5,999"),
    ],
    "compare/page.py": [
        ("compare_what", "cats", "The link asks to compare 'cats': compare_what must be runs or models."),
        ("compare_runs", "2,x,²," + "9" * 50, "Not found, maybe deleted: runs x, ², 9999"),
    ],
    "run/page.py": [("run", "²", "There is no run '²'")],
}


@pytest.mark.slow
@pytest.mark.parametrize("page", REJECTED)
@pytest.mark.usefixtures("stored_runs")
def test_rejected_parameters_are_named(page: str) -> None:
    query = {name: value for name, value, _ in REJECTED[page]}
    app = open_page("" if page == "catalog/page.py" else page, **query)  # "" opens it as the default page
    assert not app.exception
    assert [message for _, _, message in REJECTED[page] if message not in plain_text(app)] == [], plain_text(app)
    assert "default factory" not in plain_text(app), "a default that depends on an invalid value is no second problem"


@pytest.mark.slow
def test_rejected_page_numbers_of_the_list_are_named(stored_runs: None) -> None:
    app = open_page("history/page.py", runs_page="1e400", runs_size="7")
    assert "runs_page '1e400': not available here\nruns_size '7': not available here" in plain_text(app)
    assert "has a character that no text of a run has" in plain_text(open_page("history/page.py", runs_model="a\0"))


@pytest.mark.slow
def test_reset_fields_are_not_reported_as_rejected() -> None:
    app = open_page(catalog_x=title("mparams"), catalog_max_gmacs="5", catalog_log_y="false")
    assert app.selectbox(key="catalog_x").value == "mparams"
    app.button(key="catalog_preset_Cost").click().run()
    app.button(key="catalog_reset").click().run()
    assert app.selectbox(key="catalog_x").value == "gmacs"
    assert "does not accept" not in plain_text(app)


@pytest.mark.slow
def test_message_on_a_rejected_value_stays_until_its_field_changes() -> None:
    app = open_page("profile/page.py", profile_num_classes="1e400", profile_models="resnet18")
    for _ in range(2):
        assert "Classes '1e400'" in plain_text(app)
        assert "profile_num_classes" not in app.query_params
        app.run()
    app.number_input(key="profile_num_classes").set_value(8).run()
    assert "1e400" not in plain_text(app)
    app.session_state[LEFT_OUT] = {("vision", "profile_num_classes"): (None, "a message of another page")}
    app.number_input(key="profile_num_classes").set_value(None).run()
    assert "1e400" not in plain_text(app)
    assert "another page" not in plain_text(app)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        ProfileSpec(
            models=("resnet18",), batch_size=(8, 16), image_size="160x192,224", training=True, precision="float16"
        ),
        BenchmarkSpec(models=("timm:*",), batch_size="sweep", filter="^res", min_seconds=0.5, seed=2**31, threads=1),
        RecurrentSpec(groups=(), runners=("aten", "cudnn"), sweep="hidden_size", sweep_values=(8, 16), warmup=0),
        DeviceSpec(dtypes=("float32",), seconds=2.5),
        TrainSpec(
            steps=100_000_000, lr=1e-5, beta1=0.9, beta2=0.95, wd=0, warmup="200", lock_image=True, data_weights=()
        ),
        EvaluateSpec(
            model="ViT-B-32", classes=("a {0}", "%s"), templates=("{} {!r}",), samples=100, tasks=("zeroshot",)
        ),
    ],
    ids=lambda spec: spec.kind,
)
def test_generated_links_are_accepted_completely(spec: Spec) -> None:
    app = open_page(form_page(type(spec)), **split(spec)[0])
    assert not app.exception
    assert all(app.get_by_key(name) for name in split(spec)[0]), "fields of further settings are drawn, too"
    assert "does not accept" not in plain_text(app)


def test_link_has_what_an_address_can_hold_and_the_session_has_the_rest() -> None:
    names = tuple(f"m{number}" for number in range(41))
    configs = {"mine": {"embed_dim": 16}}
    spec = ProfileSpec(models=("m", "config:mine"), configs=configs, training=True, batch_size=(8, 16))
    query = {"profile_models": ["m"], "profile_training": "true", "profile_batch_size": "8,16"}
    assert split(spec) == (query, {"profile_configs": configs})
    assert split(ProfileSpec(models=names[1:])) == ({"profile_models": list(names[1:])}, {})
    assert split(ProfileSpec(models=names)) == ({"profile_listed": "41"}, {"profile_listed": names})
    assert split(EvaluateSpec(classes=("a", "b"), tasks=("zeroshot",))) == (
        {"evaluate_classes": "a\nb", "evaluate_tasks": ["zeroshot"]},
        {},
    )
    assert len(split(TrainSpec())[0]) == 1, "without any field, the page would fill in its preset for the first visit"


@pytest.mark.slow
@pytest.mark.usefixtures("stored_runs")
def test_parameters_of_hidden_fields_are_not_reported_as_unknown() -> None:
    queries = {
        "vision/page.py": {"run": "2", "charts_2": "Latency", "benchmark_seed": "3", "filled_from": "2"},
        "model/page.py": {"name": "timm:resnet18", "model_way": "training", "model_speed_size": "224"},
        "history/page.py": {"runs_page": "1", "runs_selected": "1", "runs_text": "no such run"},
        "compare/page.py": {"compare_runs": "1", "compare_smooth": "5", "compare_accuracy": "x"},
        "device/page.py": {"device_where": "cpu"},
        "run/page.py": {"run": "2", "charts_3": "Samples"},
        "": {"catalog_rows": "timm:resnet18 224", "embed": "true", "embed_options": "dark_theme"},
    }
    for page, query in queries.items():
        assert "no such field" not in plain_text(open_page(page, **query)), page


@pytest.mark.slow
@pytest.mark.usefixtures("stored_runs")
@pytest.mark.parametrize(
    ("page", "name", "meant"),
    [
        ("model/page.py", "model_prt", "model_part"),
        ("history/page.py", "runs_state", "runs_states"),
        ("compare/page.py", "compare_run", "compare_runs"),
        ("device/page.py", "device_wher", "device_where"),
    ],
)
def test_misspelled_parameters_are_named_with_the_field_that_was_meant(page: str, name: str, meant: str) -> None:
    assert f"'{name}': no such field here; did you mean {meant}?" in plain_text(open_page(page, **{name: "x"}))


def test_parameters_of_pages_are_those_of_their_fields() -> None:
    """A field of these pages that is missing from the list would be called unknown while it is hidden."""
    for page, folders in {"model": ["model"], "compare": ["compare", "shared/runs"]}.items():
        sources = "".join(path.read_text() for folder in folders for path in (ROOT / "pages" / folder).glob("*.py"))
        bound = re.findall(rf'"({page}_\w+)",\s+(?:"bind": |bind=)"query-params"', sources)
        assert len(bound) >= 5
        assert set(bound) <= set(links.PARAMETERS[page])


@pytest.mark.slow
def test_kind_of_run_without_a_page_breaks_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests add such a kind to the process."""
    specs = [SimpleNamespace(kind="no page"), *Spec.__subclasses__()]
    monkeypatch.setattr(Spec, "__subclasses__", lambda: specs)
    message = plain_text(open_page("compare/page.py", **{f"x{n}": "1" for n in range(12)}))
    assert "'x9': no such field here" in message
    assert "\nand 2 more" in message, message


@pytest.mark.slow
def test_links_may_contain_default_values() -> None:
    """Streamlit removes default values from the address, like invalid values. Only the latter get a message."""
    numbers = {
        name: info.default for name, info in TrainSpec.model_fields.items() if isinstance(info.default, int | float)
    }
    assert len(numbers) > 20
    query = {f"train_{name}": str(value).lower() for name, value in numbers.items()}
    app = open_page("train/page.py", train_loss="clip", train_warmup="10%", train_resume="", **query)
    assert not app.exception
    assert "does not accept" not in plain_text(app)


@pytest.mark.slow
def test_names_are_not_used_as_format_strings(store: Store) -> None:
    name = "{0.__class__} {!r} {:>1000000000} {{}} {name} %s %n %(x)s $x$ :red[a]"
    for _ in range(2):
        run_id = store.enqueue(BenchmarkSpec(models=("resnet18",)), name=name)
        store.set_notes(run_id, name)
        store.change_tags([run_id], add=["{0.__class__}%s"])
        finish(store, run_id, [benchmark_row("resnet18")])
    for page, query in (("run/page.py", {"run": "1"}), ("compare/page.py", {"compare_runs": "1,2"})):
        app = open_page(page, **query)
        assert not app.exception
        assert name in plain_text(app)
    app = open_page("history/page.py", runs_text="{0.__class__} %s {!r}")
    assert not app.exception
    assert "1 to 2 of 2 runs" in plain_text(app)


MEMORY_SCRIPT = """
import resource
from engine.names import select
from engine.specs import BenchmarkSpec
from engine.shipped import families
from engine.settings import Settings
from tests.support.page import open_page, texts

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # unbounded memory fails this process, not the machine


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def link(**query):
    app = open_page("vision/page.py", **{"benchmark_models": "timm:*", **query})
    assert not app.exception
    return texts(app).replace(chr(92), "")


def spec(expression):
    try:
        select(BenchmarkSpec(models=("timm:*",), filter=expression), families(Settings().catalog_dir))
    except ValueError as refusal:
        return str(refusal)
    return ""


assert "Times" in link(benchmark_filter="^res") and not spec("^res")
link(benchmark_filter="(")
before = peak_mb()
long, nested = "a{1000000000}", "(?:(?:a{1000}){1000}){1000}"
message = link(benchmark_filter=long, benchmark_exclude=nested)
assert "a count in braces is at most 1,000" in message and "invalid repetition size" in message, message
assert "at most 1,000" in spec(long) and "invalid repetition size" in spec(nested)
spec("(.?){1000}z")
assert "more than 3,000 patterns" in link(benchmark_models="{a,b," * 20 + "c" + "}" * 20)
print(peak_mb() - before)
"""


@pytest.mark.slow
def test_patterns_in_links_use_little_memory() -> None:
    """20 MB leave room for what a page allocates anyway. Python's regex engines took 2.7 GB and more."""
    done = subprocess.run([sys.executable, "-c", MEMORY_SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20


def test_every_empty_number_field_shows_its_default() -> None:
    fields = [(spec, name) for spec in Spec.__subclasses__() for name in spec.model_fields]
    optional = [(spec, name) for spec, name in fields if spec.model_fields[name].default is None]
    assert len(optional) > 20
    assert [f"{spec.kind}.{name}" for spec, name in optional if default_hint(spec, name) is None] == []


@pytest.mark.parametrize("spec", Spec.__subclasses__(), ids=lambda spec: spec.kind)
def test_every_field_of_a_request_is_on_its_form(spec: type[Spec]) -> None:
    app = open_page(form_page(spec))
    drawn_otherwise = {"configs", "nodes"}  # uploaded files; with a cluster only
    missing = {name for name in spec.model_fields if f"{spec.kind}_{name}" not in app.session_state} - drawn_otherwise
    assert not missing, f"pages/{form_page(spec)} draws no field for these: add them to one of its groups"
