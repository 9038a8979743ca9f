"""Browser test of timing recurrent layers: presets, form, charts and downloads."""

import csv
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from engine.store import State, open_store
from tests.support.browser import downloaded, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

RUNNERS = ["aten", "py"]
SMALL = (
    "recurrent_seq_length=5&recurrent_input_size=16&recurrent_hidden_size=16&recurrent_mini_batch=4&recurrent_threads=1"
)
LONG_S = 1500
"""Wait at most this many seconds for a run: checking the runners is slow on a loaded machine."""


def test_runners_are_timed_drawn_and_downloaded(page: Page, tmp_path: Path) -> None:
    with serve(tmp_path, preload="engine.tasks.recurrent") as server:
        page.goto(f"{server.url}/recurrent")
        expect(page.get_by_role("heading", name="Recurrent layers", exact=True)).to_be_visible()
        page.get_by_role("button", name="As fastrnns").click()
        expect(page.get_by_text(re.compile("^Times 11 runners"))).to_be_visible()
        expect(page.get_by_text("no cuDNN: cudnn")).to_be_visible()
        page.get_by_role("button", name="Small, for a CPU").click()
        expect(page.get_by_text(re.compile("^Times 7 runners"))).to_be_visible()
        # two of the seven, because scripting is slow; tests of the engine run all
        runners = "&".join(f"recurrent_runners={name}" for name in RUNNERS)
        page.goto(f"{server.url}/recurrent?{SMALL}&{runners}")
        expect(page.get_by_text(re.compile("^Times 2 runners"))).to_be_visible()
        page.get_by_role("button", name="Timing", exact=True).click()  # the link has opened the group Processes
        for label, value in (("Processes", "1"), ("Minimum sampled time (s)", "0.1")):
            page.get_by_label(label, exact=True).fill(value)
            page.get_by_label(label, exact=True).press("Enter")
        expect(page.get_by_text("in 1 fresh process,")).to_be_visible()
        page.get_by_role("button", name="Time", exact=True).click()
        expect(page.get_by_text("1 of 1 process done; the run took")).to_be_visible(timeout=LONG_S * 1000)
        run_id = int(re.search(r"[?&]run=(\d+)", page.url)[1])  # type: ignore[index]
        store = open_store(server.settings)
        state, rows = store.run(run_id).state, {row.model: row for row in store.rows(run_id)}
        store.close()
        assert state is State.FINISHED
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
