"""Tests of automatic fragment updates: they run one at a time, and redraw their page without losing input."""

import threading
import time
from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from pages.shared import rerun


@pytest.mark.parametrize(("fragments", "most"), [(["a fragment"], 1), (None, 4)])
def test_fragments_update_one_at_a_time_and_opening_pages_do_not_wait(
    monkeypatch: pytest.MonkeyPatch, fragments: list[str] | None, most: int
) -> None:
    context = SimpleNamespace(fragment_ids_this_run=fragments)
    monkeypatch.setattr(rerun, "get_script_run_ctx", lambda **_: context)
    concurrent, concurrent_counts, barrier = 0, [], threading.Barrier(4)

    @rerun.in_turn
    def draw() -> None:
        nonlocal concurrent
        concurrent += 1
        concurrent_counts.append(concurrent)
        if fragments:
            time.sleep(0.02)
        else:
            barrier.wait(30)
        concurrent -= 1

    @rerun.in_turn
    def nested() -> None:
        draw()

    threads = [threading.Thread(target=nested) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(concurrent_counts) == 4
    assert max(concurrent_counts) == most


@pytest.mark.parametrize(("drawn_with_it", "drawings"), [(True, 1), (False, 2)])
def test_page_is_not_redrawn_by_the_message_that_drew_its_form(drawn_with_it: bool, drawings: int) -> None:
    """A second run would not send the browser a value that a callback has set."""

    def page(drawn_with_it: bool) -> None:
        import streamlit as st

        from pages.shared import rerun

        state = st.session_state
        state["drawings"] = state.get("drawings", 0) + 1
        rerun.hold("other_page")
        if drawn_with_it:
            st.text_input("Name", key="name")
            rerun.hold("name")
        if state["drawings"] == 1:
            rerun.page()

    app = AppTest.from_function(page, args=(drawn_with_it,)).run()
    assert not app.exception
    assert app.session_state["drawings"] == drawings
