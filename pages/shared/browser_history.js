// Makes each link and each finished change of a field one entry of the browser's history, so that Back and Forward walk
// through views. Streamlit makes none for a changed field, and two for a link: the old page without its fields, then the
// new page. So the first address after an action of the reader is a new entry; others replace the newest one.
// Also delays a link that is tapped right after typing. Streamlit would send the page change before the typed text. The
// text would arrive for a page that is gone: it would be lost, and the new page would stay empty.
// After a sign-in, opens the address that the browser had before: Streamlit sends everybody to the first page.

if (!window.entriesMerged) {
  window.entriesMerged = true;
  const push = history.pushState.bind(history);
  const replace = history.replaceState.bind(history);
  const TYPED = "textarea, input:not([type=checkbox], [type=radio])";
  const SENT_MS = 200; // a field sends its text 10 to 70 ms after it has lost the focus
  let acted = false;
  let lostFocus = -Infinity; // the time at which a text field last lost the focus
  // Without a connection, Streamlit disables all fields. The field in which the reader types loses the focus and would
  // send its text to nobody. So it keeps the text as unsent, and gets the focus again after the next connection.
  let disabled = null;
  let field = null; // the text field in which the reader types: one entry, not one per key
  const listen = (type, action) => window.addEventListener(type, action, { capture: true });

  // A field takes over its text while the pointer goes down elsewhere, other widgets their value when it comes up.
  for (const type of ["pointerdown", "pointerup"]) listen(type, () => ([acted, field] = [true, null]));
  listen("keydown", ({ key, target }) => {
    const typed = key !== "Enter" && target.matches?.(TYPED) ? target : null;
    acted ||= !typed || typed !== field;
    field = typed;
  });
  listen("focusout", (event) => {
    if (!event.target.matches?.(TYPED)) return;
    lostFocus = performance.now();
    if (!event.target.disabled) return;
    event.stopImmediatePropagation();
    disabled = event.target;
  });
  listen("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const opensElsewhere = event.ctrlKey || event.metaKey || event.shiftKey;
    if (!link || !event.isTrusted || opensElsewhere || performance.now() - lostFocus > SENT_MS) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    setTimeout(() => {
      acted = true;
      link.click();
    }, SENT_MS);
  });
  listen("popstate", () => ([acted, field] = [false, null]));

  history.pushState = history.replaceState = (state, unused, url) => {
    (acted && new URL(url, location).href !== location.href ? push : replace)(state, unused, url);
    acted = false;
  };

  // A server that was restarted, or left for two minutes, has lost the session. Its new one knows no fragment of the
  // page, whose buttons and fields would do nothing. Streamlit redraws only pages that update themselves.
  const app = document.querySelector("[data-testid=stApp]");
  const redraw = () => {
    if (app.dataset.testConnectionState !== "CONNECTED") return;
    window.redrawPage();
    const unsent = disabled;
    disabled = null;
    setTimeout(() => document.activeElement.matches(TYPED) || unsent?.focus({ preventScroll: true }), SENT_MS);
  };
  new MutationObserver(redraw).observe(app, { attributeFilter: ["data-test-connection-state"] });
}

export default function ({ data, setStateValue }) {
  window.redrawPage = () => setStateValue("redrawn", Date.now());
  if (data.report) setStateValue("merging", true);
  const { opened } = sessionStorage;
  const isFirstPage = location.pathname.endsWith("/") && !location.search;
  if (data.signedOut) sessionStorage.opened = location.href;
  else delete sessionStorage.opened;
  if (opened && opened !== location.href && isFirstPage && !data.signedOut) location.replace(opened);
}
