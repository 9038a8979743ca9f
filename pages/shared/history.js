// Makes each link one entry of the browser's history. Streamlit pushes two: the old page without its fields, then the new
// page. So an address that is pushed without a click or a key since the last one replaces it.

if (!window.entriesMerged) {
  window.entriesMerged = true;
  const push = history.pushState.bind(history);
  let acted = false;
  for (const action of ["click", "keydown"]) window.addEventListener(action, () => (acted = true), { capture: true });
  history.pushState = (...entry) => {
    if (acted) push(...entry);
    else history.replaceState(...entry);
    acted = false;
  };
}

export default function ({ data, setStateValue }) {
  if (data.report) setStateValue("merging", true);
}
