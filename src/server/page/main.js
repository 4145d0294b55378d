// The page's parts put together: the list of conversations, dialogs, keys and the theme.

const store = new Store((text) => {
  $("storage-note").textContent = text;
  $("storage-note").hidden = false;
});
const server = new Server();
const panel = new CostPanel(server);
const chat = new Chat(server, store, panel);

function showList() {
  const open = chat.chat;
  $("chat-title").textContent = titleOf(open);
  document.title = titleOf(open) + " - Moxie";
  $("chat-list").replaceChildren(...store.list().map((one) => el("li", {class: one.id === open.id ? "open" : ""},
    button(titleOf(one), () => openChat(one), {class: "chat-name", "aria-current": one.id === open.id ? "true" : "false"}),
    button("×", () => removeChat(one), {class: "icon", title: "Delete", "aria-label": "Delete " + titleOf(one)}))));
}

function openChat(one) {
  chat.open(one);
  showChats(false);
  $("prompt").focus();
}

function removeChat(one) {
  if (!confirm(`Delete "${titleOf(one)}"?`)) return;
  if (one.id === chat.chat.id) chat.stop();
  store.remove(one);
  if (one.id === chat.chat.id) chat.open(store.list()[0] ?? store.create());
  else showList();
}

async function rename() {
  $("name").value = titleOf(chat.chat);
  if (!await ask($("name-dialog"))) return;
  chat.chat.title = $("name").value.trim();
  chat.save();
}

function fileName() { return titleOf(chat.chat).replace(/[^\w]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "conversation"; }

// Settings

function faultOfTools(text) {
  if (text.trim() === "") return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "The tools must be a JSON list.";
  } catch (fault) {
    return "The tools are not JSON: " + fault.message;
  }
}

function showToolsFault() {
  const fault = faultOfTools($("tools").value);
  $("tools-fault").textContent = fault;
  $("tools-fault").hidden = fault === "";
  $("save-settings").disabled = fault !== "";
}

async function openSettings() {
  const {settings} = chat.chat;
  $("system").value = settings.system;
  $("temperature").value = settings.temperature;
  $("max-tokens").value = settings.maxTokens;
  $("tools").value = settings.tools;
  $("open-reasoning").checked = settings.openReasoning;
  showToolsFault();
  if (!await ask($("settings"))) return;
  changeSettings({system: $("system").value, temperature: $("temperature").value, maxTokens: $("max-tokens").value,
                  tools: $("tools").value, openReasoning: $("open-reasoning").checked});
}

/** New conversations begin with the last settings, but for the tools and the system prompt. */
function changeSettings(changes) {
  Object.assign(chat.chat.settings, changes);
  store.saveDefaults({...chat.chat.settings, tools: "", system: ""});
  if (chat.chat.messages.length > 0) chat.save();
}

// Layout

function showChats(open) {
  document.body.classList.toggle("chats-open", open);
  $("toggle-chats").setAttribute("aria-expanded", String(open));
}

function showCost(open) {
  document.body.classList.toggle("cost-closed", !open);
  document.body.classList.toggle("cost-open", open);
  $("toggle-cost").setAttribute("aria-expanded", String(open));
}

const kThemes = ["system", "light", "dark"];

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme-name").textContent = " " + theme;
  $("theme").setAttribute("aria-label", "Theme: " + theme);
}

function nextTheme() {
  const now = document.documentElement.dataset.theme;
  const next = kThemes[(kThemes.indexOf(now) + 1) % kThemes.length];
  store.write(kTheme, next);
  showTheme(next);
}

// The message box

function fitPrompt() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight, 220) + "px";
}

async function sendPrompt() {
  const text = $("prompt").value;
  if (await chat.send(text)) $("prompt").value = "";
  fitPrompt();
}

function listen() {
  $("composer").addEventListener("submit", (event) => { event.preventDefault(); sendPrompt(); });
  $("prompt").addEventListener("input", fitPrompt);
  $("prompt").addEventListener("keydown", (event) => {
    if (isEnter(event)) { event.preventDefault(); sendPrompt(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) { chat.stop(); showChats(false); }
  });
  $("stop").addEventListener("click", () => { chat.stop(); $("prompt").focus(); });
  $("effort").addEventListener("change", () => changeSettings({effort: $("effort").value}));
  $("new-chat").addEventListener("click", () => openChat(store.create()));
  $("rename").addEventListener("click", rename);
  $("export-json").addEventListener("click", () =>
    saveFile(fileName() + ".json", "application/json", JSON.stringify(chat.chat, null, 2)));
  $("export-markdown").addEventListener("click", () => saveFile(fileName() + ".md", "text/markdown", markdownOf(chat.chat)));
  $("open-settings").addEventListener("click", openSettings);
  $("tools").addEventListener("input", showToolsFault);
  for (const cancel of document.querySelectorAll("[data-cancel]")) {
    cancel.addEventListener("click", () => cancel.closest("dialog").close());
  }
  $("theme").addEventListener("click", nextTheme);
  $("toggle-chats").addEventListener("click", () => showChats(!document.body.classList.contains("chats-open")));
  $("toggle-cost").addEventListener("click", () => showCost($("toggle-cost").getAttribute("aria-expanded") !== "true"));
}

showTheme(kThemes.includes(store.read(kTheme)) ? store.read(kTheme) : "system");
showCost(matchMedia("(min-width: 1080px)").matches);
chat.onChange = showList;
listen();
window.addEventListener("pagehide", () => { if (chat.chat.messages.length > 0) chat.save(); });
chat.open(store.list()[0] ?? store.create());
$("prompt").focus();
