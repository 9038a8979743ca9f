"""A stopwatch in the page: from a click or key until its answer, and everything else on the page, is drawn.

Playwright's own waiting is too coarse: it does not check the page between 270 and 770 ms, and its clicks wait until
nothing moves.
"""

import json
from collections.abc import Callable

from playwright.sync_api import Page

from tests.support.browser import DRAWN

PATIENCE_MS = 180_000
"""Wait at most this many milliseconds for an answer."""
SETTLED_MS = 500
"""Let the page settle for this many milliseconds before the watch starts."""
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
    """Return a JavaScript expression that is true when an element on the page has exactly this text."""
    return _SAYS.format(text=json.dumps(text))


def answered(page: Page, action: Callable[[], object], answer: str) -> float:
    """Return the ms from the first click or key of an action until `answer`, a JavaScript expression, is true.

    Errors: playwright's Error when it does not come within three minutes.
    """
    page.wait_for_timeout(SETTLED_MS)
    page.evaluate(_WATCH, answer)
    action()
    return float(page.evaluate("window.vitalsTook"))
