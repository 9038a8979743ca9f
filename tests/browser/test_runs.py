"""Browser tests of the list of runs and the page of a run."""

import re

import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from engine.specs import ProfileSpec
from engine.store import Store, open_store
from engine.store.files import RunFiles
from tests.support.browser import DRAWN, NUMBER, PHONE, ROW, Server, select_rows
from tests.support.page import finish, profile_row, queue

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def test_tagging_and_deleting_show_a_message_and_update_the_filters(server: Server, page: Page) -> None:
    store = open_store(server.settings)
    runs = []
    for name in ("resnet18", "resnet34", "resnet50"):
        runs.append(queue(store, name))
        finish(store, runs[-1], [profile_row(name)])
    page.goto(f"{server.url}/runs")
    table = page.get_by_test_id("stDataFrame").first
    entries = page.evaluate("history.length")
    select_rows(table, 0)
    expect(page.get_by_text("1 selected")).to_be_visible()
    select_rows(table, 1)
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.get_by_test_id("stMain").get_by_role("link", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    assert page.evaluate("history.length") == entries + 3  # one entry for each selected row, one for the link
    page.go_back()
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("1 selected")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("None selected")).to_be_visible()
    page.go_forward()
    expect(page.get_by_text("1 selected")).to_be_visible()
    expect(page).to_have_url(f"{server.url}/runs?runs_selected={runs[2]}")
    page.get_by_role("button", name="Tag", exact=True).click()
    page.get_by_role("combobox", name="Add").fill("paper")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Tags of 1 run changed")).to_be_visible()
    assert store.runs()[0].tags == ("paper",)

    page.get_by_role("combobox", name="Tags").click()
    page.get_by_role("option", name="paper").click()
    expect(page.get_by_text("1 to 1 of 1 run")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Reset filters").click()
    expect(page.get_by_text("1 to 3 of 3 runs")).to_be_visible()

    select_rows(table, 2)
    expect(page.get_by_text("2 selected")).to_be_visible()  # the first row is still selected
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_label("To delete, type").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("2 runs deleted")).to_be_visible()
    expect(page.get_by_text("1 to 1 of 1 run")).to_be_visible()
    assert [run.id for run in store.runs()] == [runs[1]]
    store.close()


def test_touched_table_and_its_toolbar_cover_nothing_on_a_phone(server: Server, browser: Browser) -> None:
    store = open_store(server.settings)
    runs = [queue(store, name) for name in ("resnet18", "resnet34")]
    for run in runs:
        finish(store, run, [profile_row("resnet18")])
    page = browser.new_context(**PHONE).new_page()
    page.goto(f"{server.url}/runs?runs_selected={runs[0]},{runs[1]}")
    page.wait_for_function(DRAWN)
    page.get_by_test_id("stDataFrame").first.tap(position={"x": 150, "y": 1.5 * ROW})
    toolbar = page.get_by_test_id("stElementToolbar").first
    expect(toolbar).to_have_css("opacity", "1")
    action = page.get_by_test_id("stMain").get_by_role("link", name="Compare", exact=True).bounding_box()
    assert action["y"] + action["height"] <= toolbar.bounding_box()["y"]
    page.goto(f"{server.url}/?catalog_search=timm:resnet*")
    page.wait_for_function(DRAWN)
    table, below = page.get_by_test_id("stDataFrame").first, page.get_by_text("The plot labels the extremes")
    end = table.bounding_box()["y"] + table.bounding_box()["height"]
    assert end < below.bounding_box()["y"], "the room for the toolbar moves also what is below the table"


def test_log_shows_its_end_until_the_reader_scrolls(server: Server, page: Page) -> None:
    store = open_store(server.settings)
    run_id = queue(store, "resnet18")
    store.close()
    log = RunFiles(server.settings.runs_dir, run_id).log
    log.parent.mkdir()

    def show(count: int) -> None:
        log.write_text("".join(f"line {number}\n" for number in range(1, count + 1)))
        expect(text).to_contain_text(f"line {count}")

    text = page.locator(".verbatim pre")
    below = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
    page.goto(f"{server.url}/run?run={run_id}")
    for count in (100, 200):
        show(count)
        assert text.evaluate(below) <= 1
    text.evaluate("log => log.scrollTo(0, 500)")
    show(300)
    assert text.evaluate("log => log.scrollTop") == 500


def test_long_state_of_a_run_wraps_beside_its_badge(server: Server, page: Page) -> None:
    """Below the badge, a text that changes its length while the run goes on would move the results."""
    store = open_store(server.settings)
    store.enqueue(ProfileSpec(models="timm:resnet18"), name="a long name " * 10)
    store.close()
    page.goto(f"{server.url}/runs")
    text = page.get_by_test_id("stText").filter(has_text="a long name")
    badge = page.locator(".stMarkdownBadge").first
    words, state = text.bounding_box(), badge.bounding_box()
    assert words["height"] > 1.5 * state["height"], "it has several lines"
    assert words["x"] > state["x"]
    assert words["y"] < state["y"] + state["height"] / 2 < words["y"] + words["height"]


def test_notes_are_saved_on_leaving_and_changes_elsewhere_are_shown(server: Server, page: Page) -> None:
    store = open_store(server.settings)
    finish(store, run_id := queue(store, "resnet18"), [profile_row("resnet18")])
    page.goto(f"{server.url}/run?run={run_id}")
    notes = page.get_by_label("Notes")
    entries = page.evaluate("history.length")
    notes.press_sequentially("kept")
    page.get_by_role("link", name="All runs").click()  # no pause between press and release, like a tap
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    page.wait_for_function(DRAWN)
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible()
    assert store.run(run_id).notes == "kept"
    assert page.evaluate("history.length") == entries + 1
    page.go_back()
    expect(notes).to_have_value("kept")

    store.delete(run_id)
    notes.press_sequentially(" or not")
    notes.blur()
    expect(page.get_by_role("heading", name="No such run")).to_be_visible()

    store.request_cancel(cancelled := queue(store, "resnet18"))
    page.goto(f"{server.url}/run?run={cancelled}")
    restart = page.get_by_role("button", name="Restart")
    expect(restart).to_be_visible()
    store.retry(cancelled)  # in another window
    restart.click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    store.request_cancel(cancelled)
    expect(page.get_by_text("stopped on request")).to_be_visible()
    toast = page.get_by_role("alertdialog")  # screen readers announce it
    expect(toast).to_contain_text(f"Run {cancelled}: cancelled")
    assert toast.bounding_box()["y"] > restart.bounding_box()["y"] + 100  # it covers none of the run's buttons
    store.close()


FORGETFUL = """const Connection = WebSocket;
window.WebSocket = class extends Connection {
  constructor(url, protocols) {
    super(url, protocols.slice(0, 2)); // the third one would name the session
    this.addEventListener("message", () => (window.answered = true));
    window.connection = this;
  }
}"""
"""JavaScript that makes the server begin a new session for every connection."""


def reconnect(page: Page) -> None:
    """End the connection, and wait until a new session has drawn the page."""
    page.wait_for_function(DRAWN)
    page.evaluate("() => { window.answered = false; connection.close() }")
    page.wait_for_function("answered")
    page.wait_for_function(DRAWN)


def test_changes_elsewhere_are_kept_after_the_server_has_lost_the_session(
    server: Server, store: Store, page: Page
) -> None:
    """A restart of the server loses all sessions. One also ends when its browser has been away for two minutes."""
    finish(store, run_id := queue(store, "resnet18"), [profile_row("resnet18")])
    store.set_notes(run_id, "mine")
    page.add_init_script(FORGETFUL)
    page.goto(f"{server.url}/run?run={run_id}")
    notes = page.get_by_label("Notes")
    expect(notes).to_have_value("mine")
    store.set_notes(run_id, "theirs")  # in another window
    store.change_tags([run_id], add=["theirs"])
    notes.press("End")
    notes.press_sequentially(", changed")
    reconnect(page)  # the text has not been sent yet
    expect(notes).to_be_focused()
    notes.blur()
    expect(page.get_by_text("Both texts were kept")).to_be_visible()
    page.wait_for_function(DRAWN)  # until then, the fields of the run before are on the page too
    expect(notes).to_have_value("theirs\n\nmine, changed")
    page.get_by_role("combobox", name="Tags").fill("mine")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("stMultiSelect")).to_have_text(["Tagsminetheirs"])
    assert (store.run(run_id).notes, store.run(run_id).tags) == ("theirs\n\nmine, changed", ("mine", "theirs"))


class LateTimer:
    """A connection that repeats a request of a page's timer while another page opens.

    On a busy machine this happens by itself, because a timer may fire before the browser knows of the new page.
    """

    def __init__(self) -> None:
        self._message = b""
        self._open = ""
        self.sent = False
        self.followed = False
        """A timer of the new page sent a request. The server answers in this order."""

    @property
    def page(self) -> str:
        """Hash of the page that sent the request, or empty before it has."""
        return BackMsg.FromString(self._message).rerun_script.page_script_hash

    def connect(self, browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def repeat_if_left(page: str) -> None:
            self._open = page or self._open
            if self.page and self._open != self.page and not self.followed:
                self.sent = True
                server.send(self._message)

        def to_server(message: str | bytes) -> None:
            assert isinstance(message, bytes)
            server.send(message)
            request = BackMsg.FromString(message).rerun_script
            if not request.fragment_id:
                repeat_if_left(request.page_script_hash)
            elif request.is_auto_rerun:
                self._message = self._message or message
                self.followed |= request.page_script_hash != self.page

        def to_browser(message: str | bytes) -> None:
            assert isinstance(message, bytes)
            browser.send(message)
            repeat_if_left(ForwardMsg.FromString(message).new_session.page_script_hash)

        browser.on_message(to_server)
        server.on_message(to_browser)


@pytest.mark.parametrize("opened_by", ["row", "link"])
def test_late_timer_of_the_list_leaves_an_opened_run_alone(
    opened_by: str, server: Server, store: Store, page: Page
) -> None:
    run_id = queue(store, "resnet18")
    late = LateTimer()
    page.route_web_socket(re.compile("/_stcore/stream"), late.connect)
    page.goto(f"{server.url}/runs")
    expect(page.get_by_role("heading", name="Runs", exact=True)).to_be_visible()
    table = page.get_by_test_id("stDataFrame")
    expect(table).to_be_visible()
    while not late.page:
        page.wait_for_timeout(100)
    if opened_by == "row":
        table.click(position={"x": NUMBER, "y": ROW * 1.5})
    else:
        page.get_by_role("link", name=f"Open run {run_id}", exact=True).click()
    while not late.followed:
        page.wait_for_timeout(100)
    expect(page.get_by_role("heading", name=f"Run {run_id}", exact=True)).to_be_visible()
    expect(page).to_have_url(f"{server.url}/run?run={run_id}")
