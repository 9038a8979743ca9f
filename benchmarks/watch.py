"""A stopwatch in the page: from a click or key until its answer, and all else, is drawn.

Playwright's own waiting would not do: between 270 and 770 ms it does not look at all, and its clicks wait until nothing
moves.
"""

import json
from collections.abc import Callable

from playwright.sync_api import Page

from tests.support.browser import DRAWN

PATIENCE_MS = 180_000
SETTLED_MS = 500  # before it is started
_WATCH = f"""answer => {{
  const drawn = {DRAWN}, answered = new Function(`return ${{answer}}`);
  window.vitalsTook = new Promise((resolve, reject) => {{
    let began;
    setTimeout(() => reject(new Error(`no answer: ${{answer}}`)), {PATIENCE_MS});
    for (const kind of ["pointerdown", "input"])
      addEventListener(kind, event => {{ began ??= event.timeStamp; }}, {{capture: true, once: true}});
    const look = () => {{
      if (began !== undefined && answered() && drawn()) resolve(performance.now() - began);
      else requestAnimationFrame(look);
    }};
    look();
  }});
}}"""
_SAYS = """[...document.querySelectorAll("[data-testid=stMain] *")].some(
  part => !part.childElementCount && part.textContent.trim() === {text} && part.checkVisibility())"""


def says(text: str) -> str:
    """That something on the page reads like this, as JavaScript."""
    return _SAYS.format(text=json.dumps(text))


def answered(page: Page, action: Callable[[], object], answer: str) -> float:
    """Milliseconds from the first click or key of an action until `answer`, an expression in JavaScript, is true.

    Errors: playwright's Error when it does not come within three minutes.
    """
    page.wait_for_timeout(SETTLED_MS)
    page.evaluate(_WATCH, answer)
    action()
    return float(page.evaluate("window.vitalsTook"))
