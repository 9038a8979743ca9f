"""Browser tests of training and evaluating CLIP: form, uploads, curves, resume, downloads, export and search."""

import csv
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import psutil
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg

from engine.datasets import open_pairs
from engine.results import EvaluateRow, TrainRow
from engine.store import State, Store
from pages.clip.form import TICK_S
from tests.support.browser import DRAWN, LONG_S, PATIENCE_S, Server, downloaded, serve, wait
from tests.support.clip import write_csv, write_images

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one server for all tests of this file, so that PyTorch is imported once for runs and once for answers."""
    roots, tasks = str(tmp_path_factory.getbasetemp()), "engine.tasks.train,engine.tasks.evaluate"
    with serve(tmp_path_factory.mktemp("served"), data_roots=roots, preload=tasks) as server:
        yield server


def start(page: Page, label: str) -> int:
    page.get_by_role("button", name=label, exact=True).click()
    page.wait_for_url(re.compile(r"[?&]run=\d+"), timeout=PATIENCE_S * 1000)
    return int(re.search(r"[?&]run=(\d+)", page.url)[1])  # type: ignore[index]


def test_ten_example_images_fill_one_or_two_rows(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/train")
    images = page.get_by_role("img", name=re.compile("^a photo of the digit"))
    expect(images).to_have_count(10)
    tops = "images => images.map(image => Math.round(image.getBoundingClientRect().top))"
    for width, expected in {1440: [10], 1366: [5, 5], 1100: [5, 5], 420: [5, 5]}.items():
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(500)  # until the page has its new width
        assert list(Counter(images.evaluate_all(tops)).values()) == expected


def test_training_is_cancelled_resumed_downloaded_and_evaluated(page: Page, server: Server, store: Store) -> None:
    """CLIP learns the digits in three epochs, with a validation before the first and after each.

    A process that loads images gets the signal of the cancellation too, and must not end before the training has saved.
    """
    page.goto(f"{server.url}/train?train_epochs=3&train_threads=1&train_workers=1")
    expect(page.get_by_text("1,438 pairs to train on, 359 held out")).to_be_visible()
    expect(page.get_by_text("66 steps of 64 pairs")).to_be_visible()
    run_id = start(page, "Train")
    wait(page, lambda: store.run(run_id).done > 22)
    page.goto(f"{server.url}/train?run={run_id}")
    expect(page.get_by_role("figure", name=re.compile("^Loss")).first).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("stopped on request")).to_be_visible()
    run = store.run(run_id)
    assert run.state is State.CANCELLED
    assert 22 < run.done < 66

    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    wait(page, lambda: store.run(run_id).state is State.FINISHED)
    epochs = [row for row in store.rows(run_id) if isinstance(row, TrainRow)]
    assert [row.epoch for row in epochs] == list(range(4)), "epoch 0 is the initial weights"
    assert epochs[-1].zeroshot_top1 > 0.5  # type: ignore[operator]  # chance is 0.1 for ten classes
    assert any("continued from" in note for note in epochs[-1].notes)

    page.goto(f"{server.url}/train?run={run_id}")
    expect(page.get_by_text("66 of 66 steps done; the run took")).to_be_visible()
    page.wait_for_function(DRAWN)  # the downloads below are drawn after that line
    with downloaded(page, "CSV", "Download epochs").open() as file:
        losses = [line["train_loss"] for line in csv.DictReader(file)]
    assert losses[0] == ""
    assert [float(loss) for loss in losses[1:]] == [row.train_loss for row in epochs[1:]]
    best = server.settings.runs_dir / str(run_id) / "checkpoints" / "best.pt"
    assert downloaded(page, re.compile(r"^best\.pt \(")).read_bytes() == best.read_bytes()

    page.goto(f"{server.url}/evaluate?evaluate_model={run_id}&evaluate_threads=1")
    expect(page.get_by_text(re.compile("a photo of the digit zero")).first).to_be_visible()
    evaluated = start(page, "Evaluate")
    wait(page, lambda: store.run(evaluated).state.ended)
    page.goto(f"{server.url}/evaluate?run={evaluated}")
    expect(page.get_by_role("figure", name=re.compile("[Cc]onfusion")).first).to_be_visible()
    assert store.run(evaluated).state is State.FINISHED, store.run(evaluated).error
    found = {row.task: row for row in store.rows(evaluated) if isinstance(row, EvaluateRow)}
    assert found["zeroshot"].acc1 == [row for row in epochs if row.best][-1].zeroshot_top1
    search(page)


def test_sweep_on_captions_trains_runs_and_exports_for_open_clip(
    page: Page, tmp_path: Path, server: Server, store: Store
) -> None:
    """Train on a CSV with two learning rates, zero-shot data in class folders, validation at step 0, early stopping."""
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
    earlier = {run.id for run in store.runs()}
    page.goto(f"{server.url}/train?" + urlencode({f"train_{name}": value for name, value in fields.items()}))
    page.get_by_text("Sweep", exact=True).click()
    page.get_by_role("textbox", name="Learning rates").fill("1e-3, 1e-4")
    page.get_by_role("textbox", name="Learning rates").press("Enter")
    page.get_by_role("button", name="Train 2 runs").click()
    page.wait_for_url(re.compile(r"/compare\?"), timeout=PATIENCE_S * 1000)
    first, second = sorted({run.id for run in store.runs()} - earlier)
    wait(page, lambda: all(store.run(number).state.ended for number in (first, second)))
    for number, lr in ((first, 1e-3), (second, 1e-4)):
        run = store.run(number)
        epochs = [row for row in store.rows(number) if isinstance(row, TrainRow)]
        assert (run.state, run.spec.lr) == (State.FINISHED, lr)  # type: ignore[attr-defined]
        assert epochs[0].step == 0
        assert epochs[0].zeroshot_top1 is not None
        # each epoch but the last must classify one more of 40 images correctly, so 60 epochs are impossible
        assert len(epochs) < 50
        assert epochs[-1].image_to_text_r1 is not None
    page.goto(f"{server.url}/train?run={first}")
    page.get_by_role("button", name=re.compile("^Export")).first.click()
    code = page.locator(".verbatim").filter(has_text="local-dir:")
    expect(code).to_be_visible()
    exported = re.search(r'local-dir:[^"]+', code.inner_text())
    assert exported
    import open_clip  # only here, because it takes seconds

    open_clip.create_model_and_transforms(exported[0])


def search(page: Page) -> None:
    """Search the evaluated digits by a prompt, and check that most of the first hits match it."""
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


def test_upload_that_arrives_first_with_a_tick_becomes_the_data(page: Page, tmp_path: Path, server: Server) -> None:
    """The next automatic update of the browser also contains the upload, and may arrive before the form's message."""
    update_fragments: list[str] = []

    def intercept(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def forward(message: str | bytes) -> None:
            back_message = BackMsg.FromString(message) if isinstance(message, bytes) else BackMsg()
            rerun = back_message.rerun_script
            if rerun.is_auto_rerun:
                update_fragments.append(rerun.fragment_id)
            elif any(state.file_uploader_state_value.uploaded_file_info for state in rerun.widget_states.widgets):
                tick = BackMsg.FromString(back_message.SerializeToString())
                tick.rerun_script.fragment_id, tick.rerun_script.is_auto_rerun = update_fragments[-1], True
                server.send(tick.SerializeToString())
                held_messages.append(message)
                return
            server.send(message)

        held_messages: list[str | bytes] = []
        socket.on_message(forward)
        callbacks.append(lambda: [server.send(message) for message in held_messages])

    callbacks: list[Callable[[], object]] = []
    names = [f"{number}.png" for number in range(9)]
    table = write_csv(tmp_path / "pairs.csv", [["filepath", "title"], *([name, f"picture {name}"] for name in names)])
    write_images(tmp_path, *names)
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        for path in (table, *(tmp_path / name for name in names)):
            archive.write(path, path.name)
    page.route_web_socket(re.compile("_stcore/stream"), intercept)
    page.goto(f"{server.url}/train?train_batch_size=60")  # its memory is not known yet, so the page updates itself
    expect(page.get_by_text("1,438 pairs to train on")).to_be_visible()
    while not update_fragments:
        page.wait_for_timeout(TICK_S * 1000)
    page.locator("input[type=file]").first.set_input_files(str(tmp_path / "pairs.zip"))
    page.wait_for_timeout(4 * TICK_S * 1000)
    for callback in callbacks:
        callback()
    expect(page.get_by_text("9 pairs; 9 captions, all distinct")).to_be_visible()
    expect(page.get_by_role("combobox", name="Data", exact=True)).to_have_value(re.compile(r"pairs-\w+/pairs.csv"))


@pytest.mark.parametrize(("known_before", "batch_size"), [(False, 61), (True, 62)])
def test_preset_stays_set_in_a_browser_with_delayed_answers(
    page: Page, server: Server, known_before: bool, batch_size: int
) -> None:
    """While the memory is being estimated, the page updates itself, and sends old values until it gets an answer.

    known_before: the memory of the preset is known, so only updates sent earlier arrive. batch_size: a value whose
    memory no other test has requested.
    """
    held_messages: list[Callable[[], None]] = []
    holding = released = False

    def intercept(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda message: hold_or_send(message, lambda: socket.send(message)))

    def hold_or_send(message: str | bytes, send: Callable[[], None]) -> None:
        """Hold back the answer, even if it comes early, and all later messages."""
        nonlocal holding
        holding = holding or (not released and b"gradients and optimizer" in message)
        held_messages.append(send) if holding else send()

    form = f"{server.url}/train?train_batch_size={batch_size}"
    with page.expect_popup() as opened:
        page.evaluate("() => { window.open() }")
    late = opened.value
    late.route_web_socket(re.compile("_stcore/stream"), intercept)
    answering = [process for process in psutil.Process(server.pid).children() if "answer" in process.cmdline()]
    for process in answering:  # it may answer before the page is drawn once
        process.suspend()
    late.goto(form)
    expect(late.get_by_text("Checking weights, tokenizer and memory")).to_be_visible()
    holding = True
    for process in answering:
        process.resume()
    late.get_by_role("button", name="Fine-tune gently").click()
    page.goto(form)
    expect(page.get_by_text("Memory: about")).to_be_visible()  # so it is known without the preset, too
    if known_before:
        page.get_by_role("button", name="Fine-tune gently").click()
        expect(page.get_by_role("spinbutton", name="Learning rate")).to_have_value("0.00001")
        expect(page.get_by_text("Memory: about")).to_be_visible()
    page.wait_for_timeout(3 * TICK_S * 1000)
    released = True
    while held_messages:  # more messages arrive meanwhile, and their order must stay
        held_messages.pop(0)()
    holding = False
    expect(late.get_by_text("Memory: about")).to_be_visible()
    expect(late.get_by_role("spinbutton", name="Learning rate")).to_have_value("0.00001")
    expect(late.get_by_text(f"115 steps of {batch_size} pairs: 23 steps an epoch, 5 epochs")).to_be_visible()
    late.close()
