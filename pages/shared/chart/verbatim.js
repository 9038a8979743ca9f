// Shows plain text with a copy button.

const AT_END = 2; // pixels above the end that still count as the end
const NOTICE_MS = 1500; // the button shows its message for this time

export default function ({ data, parentElement }) {
  const { text, at_end } = data;
  const [shown, button] = ["pre", "button"].map((name) => parentElement.querySelector(name));
  const follows = at_end && shown.scrollHeight - shown.clientHeight - shown.scrollTop <= AT_END; // or the reader scrolled
  // Browsers may break a line within --flag. The other parts stay text.
  shown.replaceChildren(...text.split(/(--[a-z][\w-]*)/).map((part, index) => (index % 2 ? unbroken(part) : part)));
  if (follows) shown.scrollTop = shown.scrollHeight;
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
      showMessage(button, "Copied");
    } catch {
      getSelection().selectAllChildren(shown); // the clipboard is available only on secure pages
      showMessage(button, "Selected: copy it with the keyboard");
    }
  };
}

function unbroken(text) {
  const span = document.createElement("span");
  span.style.whiteSpace = "nowrap";
  span.textContent = text;
  return span;
}

function showMessage(button, message) {
  const label = "Copy to clipboard";
  button.title = message;
  button.setAttribute("aria-label", message);
  button.classList.add("done");
  setTimeout(() => {
    button.title = label;
    button.setAttribute("aria-label", label);
    button.classList.remove("done");
  }, NOTICE_MS);
}
