"""Browser tests of timings on the pages Vision and Recurrent, with real worker processes: form, charts, downloads."""

import csv
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from engine.results import BenchmarkRow
from engine.store import State, Store
from tests.support.browser import DRAWN, LONG_S, Server, downloaded, serve, wait

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

MODELS = ("test_vit", "test_resnet")
RUNNERS = ["aten", "py"]
SMALL_LAYERS = (
    "recurrent_seq_length=5&recurrent_input_size=16&recurrent_hidden_size=16&recurrent_mini_batch=4&recurrent_threads=1"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tasks = "timm,engine.tasks.benchmark,engine.tasks.recurrent"
    with serve(tmp_path_factory.mktemp("served"), preload=tasks) as server:
        yield server


def open_form(server: Server, page: Page, *models: str, **fields: str) -> None:
    """Open the Vision page with a form filled by its address."""
    query = "&".join(
        [*(f"benchmark_models=timm:{name}" for name in models), *(f"benchmark_{k}={v}" for k, v in fields.items())]
    )
    page.goto(f"{server.url}/vision?{query}")
    expect(page.get_by_role("heading", name="Vision speed", exact=True)).to_be_visible()


def start(page: Page) -> int:
    """Click the button Time, and return the number of the new run."""
    before = re.search(r"&run=\d+|$", page.url)[0]  # type: ignore[index]
    page.get_by_role("button", name="Time", exact=True).click()
    page.wait_for_url(lambda url: "run=" in url and (not before or not url.endswith(before)))
    return int(re.search(r"[?&]run=(\d+)", page.url)[1])  # type: ignore[index]


def state_and_rows(store: Store, run_id: int) -> tuple[State, list[BenchmarkRow]]:
    return store.run(run_id).state, [row for row in store.rows(run_id) if isinstance(row, BenchmarkRow)]


def test_variants_are_timed_and_drawn(page: Page, server: Server, store: Store) -> None:
    """Time one model of two with three variants, of which one fails. Compilation is tested with the engine."""
    open_form(server, page, *MODELS, min_seconds="0.1", replicates="1", threads="1")
    page.get_by_role("button", name="Compile or not?").click()
    expect(page.get_by_text(re.compile("^Times 2 models .2 variants interleaved"))).to_be_visible()
    page.get_by_role("button", name="Timing", exact=True).click()
    page.get_by_label("Processes", exact=True).fill("1")
    page.get_by_label("Processes", exact=True).press("Enter")
    expect(page.get_by_text("in 1 fresh process per model,")).to_be_visible()
    page.get_by_role("button", name=re.compile(f"^Remove .*{MODELS[1]}")).click()
    expect(page.get_by_text(re.compile("^Times 1 model"))).to_be_visible()
    page.get_by_role("button", name="Remove compile").click()
    for variant in ("eager+channels_last", "eager+reparameterized"):
        page.get_by_role("combobox", name=re.compile("Variants")).fill(variant)
        page.keyboard.press("Enter")
    page.keyboard.press("Escape")  # an open list covers the other elements
    expect(
        page.locator(".verbatim").filter(has_text="eager,eager+channels_last,eager+reparameterized ")
    ).to_be_visible()
    expect(page.get_by_text(re.compile("^Times 1 model .3 variants"))).to_be_visible()
    run_id = start(page)
    wait(page, lambda: store.run(run_id).state.ended)
    page.goto(f"{server.url}/vision?run={run_id}")
    expect(page.get_by_text("1 of 1 process done; 1 of 3 rows failed; the run took")).to_be_visible()
    expect(page.get_by_text("1 of 3 rows failed. See the columns")).to_be_visible()
    state, rows = state_and_rows(store, run_id)
    assert state is State.FINISHED
    statuses = {"eager": "ok", "eager+channels_last": "ok", "eager+reparameterized": "error"}
    assert {(row.model, row.variant, row.status) for row in rows} == {
        (MODELS[0], variant, status) for variant, status in statuses.items()
    }
    for row in rows:
        assert row.latency_ms or row.error
        assert row.variant != "eager+channels_last" or (row.speedup and row.verdict)

    expect(page.get_by_role("figure", name=re.compile("^Median latency"))).to_be_visible()
    for tab in ("Speed-up", "Samples", "Published"):
        page.get_by_role("tab", name=tab, exact=True).click()
        expect(page.get_by_role("tab", name=tab, exact=True)).to_have_attribute("aria-selected", "true")
        # a second click before the answer to the first would be undone; the answer fills the tab
        expect(page.get_by_role("tabpanel", name=tab, exact=True)).to_have_text(re.compile(r"\w"))
        page.wait_for_function(DRAWN)
    with downloaded(page, "CSV as PyTorch's dynamo", "Download").open(newline="") as file:
        assert {line["name"].partition(" ")[0] for line in csv.DictReader(file)} == {MODELS[0]}


def test_runners_are_timed_drawn_and_downloaded(page: Page, server: Server, store: Store) -> None:
    # two runners, because scripting is slow; tests of the engine run all
    runners = "&".join(f"recurrent_runners={name}" for name in RUNNERS)
    page.goto(f"{server.url}/recurrent?{SMALL_LAYERS}&{runners}")
    expect(page.get_by_text(re.compile("^Times 2 runners"))).to_be_visible()
    page.get_by_role("button", name="Timing", exact=True).click()  # the link has opened the group Processes
    for label, value in (("Processes", "1"), ("Minimum sampled time (s)", "0.1")):
        page.get_by_label(label, exact=True).fill(value)
        page.get_by_label(label, exact=True).press("Enter")
    expect(page.get_by_text("in 1 fresh process,")).to_be_visible()
    run_id = start(page)
    expect(page.get_by_text("1 of 1 process done; the run took")).to_be_visible(timeout=LONG_S * 1000)
    rows = {row.model: row for row in store.rows(run_id)}
    assert store.run(run_id).state is State.FINISHED
    assert {name: row.status for name, row in rows.items()} == dict.fromkeys(RUNNERS, "ok")

    expect(page.get_by_role("figure", name=re.compile("^Median time forward and backward"))).to_be_visible()
    page.get_by_role("tab", name="Speed-up", exact=True).click()
    expect(page.get_by_role("figure", name=re.compile("^Speed-up over aten .both."))).to_be_visible()
    page.get_by_role("radio", name="forward", exact=True).click()
    expect(page.get_by_role("figure", name=re.compile("^Speed-up over aten .forward."))).to_be_visible()
    page.get_by_role("tab", name="Samples", exact=True).click()
    expect(page.get_by_role("figure", name=re.compile("^Every sample over its round"))).to_be_visible()

    lines = list(csv.DictReader(downloaded(page, "CSV", "Download").read_text().splitlines()))
    assert {line["model"]: float(line["forward_ms"]) for line in lines} == {
        name: row.forward_ms for name, row in rows.items()
    }
    means = json.loads(downloaded(page, "JSON as fastrnns (oss)", "Download").read_text())
    assert means["lstm-backward"] == {name: row.backward_mean_ms for name, row in rows.items()}
    table = [line.split() for line in downloaded(page, "Table as fastrnns", "Download").read_text().splitlines()]
    assert [line[0] for line in table] == ["name", *RUNNERS]
    samples = downloaded(page, "JSON as fastrnns (pep)", "Download").read_text().splitlines()
    assert len(samples) == 2 * sum(row.samples for row in rows.values())
