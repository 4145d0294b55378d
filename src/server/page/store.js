// Conversations, in the browser's storage where it allows it. Nothing here leaves the browser.

const kPrefix = "moxie.chat.", kDefaults = "moxie.defaults", kTheme = "moxie.theme";
const kSettings = {system: "", effort: "low", temperature: "", maxTokens: "", tools: "", openReasoning: false};

/** What is not written: that an answer is still coming. */
const kept = (name, value) => name === "streams" ? undefined : value;

class Store {
  /** `onFault` is called with a sentence when something can be kept in memory only. */
  constructor(onFault) {
    this.onFault = onFault;
    this.chats = new Map();
    this.defaults = {...kSettings, ...this.read(kDefaults)};
    for (const name of this.names()) {
      const chat = this.read(name);
      if (chat?.id && Array.isArray(chat.messages)) {
        this.chats.set(chat.id, {...chat, settings: {...kSettings, ...chat.settings}});
      }
    }
  }

  names() {
    try {
      return Object.keys(localStorage).filter((name) => name.startsWith(kPrefix));
    } catch {
      this.onFault("This browser keeps nothing for this page: conversations end with the tab.");
      return [];
    }
  }

  read(name) {
    try {
      return JSON.parse(localStorage.getItem(name));
    } catch {
      return null;
    }
  }

  write(name, value) {
    try {
      localStorage.setItem(name, JSON.stringify(value, kept));
    } catch {
      this.onFault("The browser's storage is full or forbidden: what is new is kept until the tab is closed.");
    }
  }

  /** All conversations, the last changed first. */
  list() { return [...this.chats.values()].sort((a, b) => b.changed - a.changed); }

  create() {
    const now = Date.now();
    const id = now.toString(36) + Math.random().toString(36).slice(2, 8);
    return {id, title: "", created: now, changed: now, settings: {...this.defaults}, messages: []};
  }

  save(chat) {
    chat.changed = Date.now();
    this.chats.set(chat.id, chat);
    this.write(kPrefix + chat.id, chat);
  }

  remove(chat) {
    this.chats.delete(chat.id);
    try {
      localStorage.removeItem(kPrefix + chat.id);
    } catch { /* it was never there */ }
  }

  saveDefaults(settings) {
    this.defaults = {...settings};
    this.write(kDefaults, this.defaults);
  }
}

function titleOf(chat) {
  const first = chat.messages.find((message) => message.role === "user")?.content ?? "";
  const line = first.trim().split("\n")[0];
  return chat.title || (line.length > 60 ? line.slice(0, 57) + "..." : line) || "New conversation";
}

function markdownOf(chat) {
  const parts = ["# " + titleOf(chat)];
  if (chat.settings.system) parts.push("**System:** " + chat.settings.system);
  for (const message of chat.messages) parts.push(...markdownOfMessage(message));
  return parts.join("\n\n") + "\n";
}

function markdownOfMessage(message) {
  if (message.role === "user") return ["## You", message.content];
  if (message.role === "tool") return [`## Result of \`${message.name}\``, fenced(message.content)];
  const parts = ["## Answer"];
  if (message.reasoning) parts.push("> " + message.reasoning.trim().replaceAll("\n", "\n> "));
  if (message.content) parts.push(message.content);
  for (const call of message.calls ?? []) parts.push(`Calls \`${call.name}\`:`, fenced(call.arguments));
  return parts;
}

function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((ticks) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
