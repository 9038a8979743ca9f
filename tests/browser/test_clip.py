"""CLIP as people train it: digits from the form to curves, stopped, resumed, evaluated, taken away."""

import csv
import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg

from engine.datasets import open_pairs
from engine.results import EvaluateRow, TrainRow
from engine.store import State, open_store
from engine.store.model import Run
from pages.clip.form import TICK_S
from tests.support.browser import DRAWN, PATIENCE_S, Server, downloaded, serve
from tests.support.clip import write_csv, write_images

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]

LONG_S = 900


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests of the form, which start no run."""
    with serve(tmp_path_factory.mktemp("served"), preload="") as server:
        yield server


def start(page: Page, label: str) -> int:
    page.get_by_role("button", name=label, exact=True).click()
    page.wait_for_url(re.compile(r"[?&]run=\d+"), timeout=PATIENCE_S * 1000)
    return int(re.search(r"[?&]run=(\d+)", page.url)[1])  # type: ignore[index]


def stored(server: Server, run_id: int) -> tuple[Run, list[object]]:
    store = open_store(server.settings)
    try:
        return store.run(run_id), list(store.rows(run_id))
    finally:
        store.close()


def wait(until: Callable[[], bool], seconds: float = LONG_S) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_ten_example_images_fill_one_row_or_two(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/train")
    images = page.get_by_role("img", name=re.compile("^a photo of the digit"))
    expect(images).to_have_count(10)
    tops = "images => images.map(image => Math.round(image.getBoundingClientRect().top))"
    for width, expected in {1440: [10], 1366: [5, 5], 1100: [5, 5], 420: [5, 5]}.items():
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)  # until the page has its new width
        assert list(Counter(images.evaluate_all(tops)).values()) == expected


def test_digits_trained_stopped_resumed_and_evaluated(page: Page, tmp_path: Path) -> None:
    """CLIP learns the digits in three epochs, validated four times."""
    with serve(tmp_path) as server:
        page.goto(f"{server.url}/train?train_epochs=3&train_threads=1")
        expect(page.get_by_text("1,438 pairs to train on, 359 held out")).to_be_visible()
        expect(page.get_by_text("66 steps of 64 pairs")).to_be_visible()
        run_id = start(page, "Train")
        wait(lambda: stored(server, run_id)[0].done > 22)
        page.reload()
        expect(page.get_by_role("figure", name=re.compile("^Loss")).first).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        wait(lambda: stored(server, run_id)[0].state.ended)
        run, _ = stored(server, run_id)
        assert run.state is State.CANCELLED
        before = run.done
        assert 22 < before < 66

        page.get_by_role("button", name="Resume", exact=True).click()
        wait(lambda: stored(server, run_id)[0].state is State.FINISHED)
        run, rows = stored(server, run_id)
        epochs = [row for row in rows if isinstance(row, TrainRow)]
        assert [row.epoch for row in epochs] == list(range(4)), "epoch 0 is the initial weights"
        assert epochs[-1].zeroshot_top1 > 0.5  # type: ignore[operator]  # ten classes: chance is 0.1
        assert any("continued from" in note for note in epochs[-1].notes)

        expect(page.get_by_text("66 of 66 steps done; the run took")).to_be_visible()
        page.wait_for_function(DRAWN)  # what is taken away below is drawn after that line
        with downloaded(page, "CSV", "Download epochs").open() as file:
            losses = [line["train_loss"] for line in csv.DictReader(file)]
        assert losses[0] == ""
        assert [float(loss) for loss in losses[1:]] == [row.train_loss for row in epochs[1:]]
        best = server.settings.runs_dir / str(run_id) / "checkpoints" / "best.pt"
        assert downloaded(page, re.compile(r"^best\.pt \(")).read_bytes() == best.read_bytes()

        page.goto(f"{server.url}/evaluate?evaluate_model={run_id}&evaluate_threads=1")
        expect(page.get_by_text(re.compile("a photo of the digit zero")).first).to_be_visible()
        evaluated = start(page, "Evaluate")
        wait(lambda: stored(server, evaluated)[0].state.ended)
        run, rows = stored(server, evaluated)
        assert run.state is State.FINISHED, run.error
        found = {row.task: row for row in rows if isinstance(row, EvaluateRow)}
        assert found["zeroshot"].acc1 == [row for row in epochs if row.best][-1].zeroshot_top1
        expect(page.get_by_role("figure", name=re.compile("[Cc]onfusion")).first).to_be_visible()
        search(page)


def test_captions_and_classes_from_a_sweep_to_a_folder_for_open_clip(page: Page, tmp_path: Path) -> None:
    """Pairs from a CSV, zero-shot on class folders, two learning rates, a row before the first step, an early stop."""
    digits = open_pairs("digits")
    lines: list[list[object]] = [["filename", "caption"]]
    (tmp_path / "pictures").mkdir()
    for index in range(120):
        name = digits.classes[digits.label(index) or 0]
        folder = tmp_path / ("pictures" if index < 80 else f"classes/{name}")
        folder.mkdir(parents=True, exist_ok=True)
        digits.image(index).save(folder / f"{index}.png")
        if index < 80:
            lines.append([f"pictures/{index}.png", f"a photo of the digit {name}"])
    data = {"data": write_csv(tmp_path / "pairs.csv", lines), "zeroshot_data": tmp_path / "classes"}
    fields = data | {"epochs": 60, "patience": 1, "batch_size": 16, "keep_last": 1, "threads": 1}
    with serve(tmp_path, data_roots=str(tmp_path)) as server:
        page.goto(f"{server.url}/train?" + urlencode({f"train_{name}": value for name, value in fields.items()}))
        page.get_by_text("Sweep", exact=True).click()
        page.get_by_role("textbox", name="Learning rates").fill("1e-3, 1e-4")
        page.get_by_role("textbox", name="Learning rates").press("Enter")
        page.get_by_role("button", name="Train 2 runs").click()
        page.wait_for_url(re.compile(r"/compare\?"), timeout=PATIENCE_S * 1000)
        wait(lambda: all(stored(server, number)[0].state.ended for number in (1, 2)))
        for number, lr in ((1, 1e-3), (2, 1e-4)):
            run, rows = stored(server, number)
            epochs = [row for row in rows if isinstance(row, TrainRow)]
            assert (run.state, run.spec.lr) == (State.FINISHED, lr)  # type: ignore[attr-defined]
            assert epochs[0].step == 0
            assert epochs[0].zeroshot_top1 is not None
            # each epoch but the last must classify one more of 40 images, so 60 are never reached
            assert len(epochs) < 50
            assert epochs[-1].image_to_text_r1 is not None
        page.goto(f"{server.url}/train?run=1")
        page.get_by_role("button", name=re.compile("^Export")).first.click()
        code = page.locator(".verbatim").filter(has_text="local-dir:")
        expect(code).to_be_visible()
        exported = re.search(r'local-dir:[^"]+', code.inner_text())
        assert exported
        import open_clip  # only here, because it takes seconds

        open_clip.create_model_and_transforms(exported[0])


def search(page: Page) -> None:
    """The evaluated digits by a prompt: most of the first hits are what it asks for."""
    page.get_by_role("tab", name="Search").click()
    page.get_by_role("textbox", name="Search your images by text").fill("a photo of the digit seven")
    page.get_by_role("textbox", name="Search your images by text").press("Enter")
    pictures = page.get_by_role("img", name=re.compile(r"^digits:\d+, "))
    expect(pictures).to_have_count(12, timeout=LONG_S * 1000)
    shown = [picture.get_attribute("alt") or "" for picture in pictures.all()]
    assert sum(alt.endswith(", seven") for alt in shown) > 8, shown
    with downloaded(page, "CSV", "Download").open() as file:
        lines = list(csv.DictReader(file))
    assert [f"{line['source']}, {line['label']}" for line in lines] == shown


def test_a_zip_that_leads_outside_is_refused(page: Page, tmp_path: Path, server: Server) -> None:
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        archive.writestr("../outside.csv", "filepath,title\n")
    page.goto(f"{server.url}/train")
    expect(page.get_by_text("1,438 pairs to train on")).to_be_visible()
    page.locator("input[type=file]").first.set_input_files(str(tmp_path / "pairs.zip"))
    expect(page.get_by_text(re.compile(r"outside\.csv")).first).to_be_visible()
    assert not list(server.settings.runs_dir.parent.rglob("outside.csv"))


def test_images_that_cannot_be_read_are_told_before_the_start(page: Page, tmp_path: Path, server: Server) -> None:
    """A CSV of 40 images, two of which are broken, uploaded with them."""
    names = [*(f"{number}.png" for number in range(38)), "a-cut.png", "b-cut.png"]
    write_images(tmp_path / "pictures", *names)
    for name in names[-2:]:
        path = tmp_path / "pictures" / name
        path.write_bytes(path.read_bytes()[:60])  # begins as a PNG does, and so gets in
    table = write_csv(tmp_path / "pairs.csv", [["filepath", "title"], *([name, f"picture {name}"] for name in names)])
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        for path in (table, *(tmp_path / "pictures" / name for name in names)):
            archive.write(path, path.name)
    page.goto(f"{server.url}/train")
    expect(page.get_by_text("1,438 pairs to train on")).to_be_visible()
    page.locator("input[type=file]").first.set_input_files(str(tmp_path / "pairs.zip"))
    warning = re.compile(
        r"2 of 40 images opened cannot be read: \S+a-cut\.png .*, \S+b-cut\.png .*\. They are left out"
    )
    expect(page.get_by_text(warning).first).to_be_visible()
    page.get_by_text("2 of 40 images opened cannot be read", exact=True).click()
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible()
    assert not stored_runs(server)


def test_an_upload_that_a_tick_brings_first_becomes_the_data(page: Page, tmp_path: Path, server: Server) -> None:
    """The browser's next tick tells of an upload, too, and may be there before the form's own message."""
    ticking: list[str] = []

    def hear(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            back_message = BackMsg.FromString(message) if isinstance(message, bytes) else BackMsg()
            rerun = back_message.rerun_script
            if rerun.is_auto_rerun:
                ticking.append(rerun.fragment_id)
            elif any(state.file_uploader_state_value.uploaded_file_info for state in rerun.widget_states.widgets):
                tick = BackMsg.FromString(back_message.SerializeToString())
                tick.rerun_script.fragment_id, tick.rerun_script.is_auto_rerun = ticking[-1], True
                server.send(tick.SerializeToString())
                late.append(message)
                return
            server.send(message)

        late: list[str | bytes] = []
        socket.on_message(pass_on)
        sent.append(lambda: [server.send(message) for message in late])

    sent: list[Callable[[], object]] = []
    names = [f"{number}.png" for number in range(9)]
    table = write_csv(tmp_path / "pairs.csv", [["filepath", "title"], *([name, f"picture {name}"] for name in names)])
    write_images(tmp_path, *names)
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        for path in (table, *(tmp_path / name for name in names)):
            archive.write(path, path.name)
    page.route_web_socket(re.compile("_stcore/stream"), hear)
    page.goto(f"{server.url}/train?train_batch_size=60")  # its memory is not known yet, so the page ticks
    expect(page.get_by_text("1,438 pairs to train on")).to_be_visible()
    while not ticking:
        page.wait_for_timeout(TICK_S * 1000)
    page.locator("input[type=file]").first.set_input_files(str(tmp_path / "pairs.zip"))
    page.wait_for_timeout(4 * TICK_S * 1000)
    for send in sent:
        send()
    expect(page.get_by_text("9 pairs; 9 captions, all distinct")).to_be_visible()
    expect(page.get_by_role("combobox", name="Data", exact=True)).to_have_value(re.compile(r"pairs-\w+/pairs.csv"))


@pytest.mark.parametrize(("asked_before", "batch_size"), [(False, 61), (True, 62)])
def test_a_preset_stays_in_a_browser_that_hears_late(
    browser: Browser, server: Server, asked_before: bool, batch_size: int
) -> None:
    """While memory is being looked up the page asks on and on, and brings the values of before until it hears.

    asked_before: what the preset needs is known, so nothing ticks any more but what was sent before. batch_size: one
    whose memory no other test has looked up.
    """
    kept: list[Callable[[], None]] = []
    holds = heard = False

    def hear(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda message: later(message, lambda: socket.send(message)))

    def later(message: str | bytes, send: Callable[[], None]) -> None:
        """Holds the answer, however soon it comes, and all that follows it."""
        nonlocal holds
        holds = holds or (not heard and b"gradients and optimizer" in message)
        kept.append(send) if holds else send()

    form = f"{server.url}/train?train_batch_size={batch_size}"
    with (
        browser.new_context() as one,
        browser.new_context() as other,
        one.new_page() as quick,
        other.new_page() as late,
    ):
        late.route_web_socket(re.compile("_stcore/stream"), hear)
        late.goto(form)
        expect(late.get_by_text("Checking weights, tokenizer and memory")).to_be_visible()
        holds = True
        late.get_by_role("button", name="Fine-tune gently").click()
        quick.goto(form)
        expect(quick.get_by_text("Memory: about")).to_be_visible()  # so it is known for the form of before as well
        if asked_before:
            quick.get_by_role("button", name="Fine-tune gently").click()
            expect(quick.get_by_role("spinbutton", name="Learning rate")).to_have_value("0.00001")
            expect(quick.get_by_text("Memory: about")).to_be_visible()
        quick.wait_for_timeout(3 * TICK_S * 1000)
        heard = True
        while kept:  # more come meanwhile, and a browser hears in order
            kept.pop(0)()
        holds = False
        expect(late.get_by_text("Memory: about")).to_be_visible()
        expect(late.get_by_role("spinbutton", name="Learning rate")).to_have_value("0.00001")
        expect(late.get_by_text(f"115 steps of {batch_size} pairs: 23 steps an epoch, 5 epochs")).to_be_visible()


def stored_runs(server: Server) -> list[Run]:
    store = open_store(server.settings)
    try:
        return store.runs()
    finally:
        store.close()
