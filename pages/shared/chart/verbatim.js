// Shows plain text with a copy button.

const NOTICE_MS = 1500; // how long the button shows its message

export default function ({ data, parentElement }) {
  const text = new TextDecoder().decode(data);
  const [shown, button] = ["pre", "button"].map((name) => parentElement.querySelector(name));
  shown.textContent = text;
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(button, "Copied");
    } catch {
      getSelection().selectAllChildren(shown); // the clipboard is available only on secure pages
      say(button, "Selected: copy it with the keyboard");
    }
  };
}

function say(button, what) {
  const usual = "Copy to clipboard";
  button.title = what;
  button.setAttribute("aria-label", what);
  button.classList.add("done");
  setTimeout(() => {
    button.title = usual;
    button.setAttribute("aria-label", usual);
    button.classList.remove("done");
  }, NOTICE_MS);
}
