// Elements, files and the clipboard. Text from people and from the model becomes text nodes only.

const $ = (id) => document.getElementById(id);

/** An element; `props` are properties, "class" and attributes with a dash or of role and title. */
function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name.includes("-") || name === "role" || name === "scope") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element of a drawing, beside those of `drawing`. */
function drawn(drawing, tag, attributes) {
  const node = document.createElementNS(drawing.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function button(text, action, more = {}) {
  const node = el("button", {type: "button", class: "quiet", ...more}, text);
  node.addEventListener("click", action);
  return node;
}

function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  el("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Copies `text`; false where the browser does not allow it, as without HTTPS beyond this machine. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Shows a dialog; resolves to whether it was ended by its main button. */
function ask(dialog) {
  return new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "save"), {once: true});
    dialog.showModal();
  });
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
