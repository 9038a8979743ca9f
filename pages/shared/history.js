// Makes each link and each finished change of a field one entry of the browser's history, so that Back and Forward walk
// through views. Streamlit makes none for a changed field, and two for a link: the old page without its fields, then the
// new page. So the first address after an action of the reader is a new entry; others replace the newest one.

if (!window.entriesMerged) {
  window.entriesMerged = true;
  const push = history.pushState.bind(history);
  const replace = history.replaceState.bind(history);
  const TYPED = "textarea, input:not([type=checkbox], [type=radio])";
  let acted = false;
  let field = null; // the text field in which the reader types: one entry, not one per key
  const listen = (type, action) => window.addEventListener(type, action, { capture: true });

  // A field takes over its text while the pointer goes down elsewhere, other widgets their value when it comes up.
  for (const type of ["pointerdown", "pointerup"]) listen(type, () => ([acted, field] = [true, null]));
  listen("keydown", ({ key, target }) => {
    const typed = key !== "Enter" && target.matches?.(TYPED) ? target : null;
    acted ||= !typed || typed !== field;
    field = typed;
  });
  listen("popstate", () => ([acted, field] = [false, null]));

  history.pushState = history.replaceState = (state, unused, url) => {
    (acted && new URL(url, location).href !== location.href ? push : replace)(state, unused, url);
    acted = false;
  };
}

export default function ({ data, setStateValue }) {
  if (data.report) setStateValue("merging", true);
}
