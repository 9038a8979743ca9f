// Text as it is, with a button that copies it.

const SAID_MS = 1500; // so long the button says that it has copied

export default function ({ data, parentElement }) {
  const text = new TextDecoder().decode(data);
  const [shown, button] = ["pre", "button"].map((name) => parentElement.querySelector(name));
  shown.textContent = text;
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(button, "Copied");
    } catch {
      getSelection().selectAllChildren(shown); // a page that is not served securely may not write there
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
  }, SAID_MS);
}
