"""Fragments that update themselves take turns."""

import threading
import time
from types import SimpleNamespace

import pytest

from pages.shared import rerun


@pytest.mark.parametrize(("fragments", "most"), [(["a fragment"], 1), (None, 4)])
def test_one_session_updates_at_a_time_and_a_page_that_opens_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, fragments: list[str] | None, most: int
) -> None:
    context = SimpleNamespace(fragment_ids_this_run=fragments)
    monkeypatch.setattr(rerun, "get_script_run_ctx", lambda **_: context)
    together, seen, met = 0, [], threading.Barrier(4)

    @rerun.in_turn
    def draw() -> None:
        nonlocal together
        together += 1
        seen.append(together)
        if fragments:
            time.sleep(0.02)
        else:
            met.wait(30)
        together -= 1

    @rerun.in_turn
    def nested() -> None:
        draw()

    threads = [threading.Thread(target=nested) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == 4
    assert max(seen) == most
