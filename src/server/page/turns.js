// A conversation's messages on the page.

class TurnList {
  /** `actions`: edit(index, text), retry(index), result(index, text). */
  constructor(node, scroll, actions) {
    Object.assign(this, {node, scroll, actions});
  }

  show(chat) {
    this.node.replaceChildren(...chat.messages.map((message, i) => this.turnOf(message, i)));
    if (chat.messages.length === 0) this.node.append(this.welcome());
    this.follow(true);
  }

  welcome() {
    return el("div", {class: "welcome"}, el("p", {class: "welcome-title"}, "What would you like to know?"),
      el("p", {class: "note"}, "Answers come from this server. Conversations stay in this browser."));
  }

  turnOf(message, index) {
    if (message.role === "user") return this.questionOf(message, index);
    if (message.role === "tool") return this.resultOf(message);
    return this.answerOf(message, index);
  }

  questionOf(message, index) {
    const text = el("div", {class: "question"}, message.content);
    const edit = button("Edit", () => this.openEditor(turn, message, index), {"aria-label": "Edit this question"});
    const turn = el("article", {class: "turn user", "aria-label": "Question"}, text, el("div", {class: "actions"}, edit));
    return turn;
  }

  openEditor(turn, message, index) {
    const box = el("textarea", {value: message.content, rows: 3, "aria-label": "Question"});
    const close = () => turn.replaceWith(this.questionOf(message, index));
    const save = () => { if (box.value.trim()) this.actions.edit(index, box.value); };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (isEnter(event)) { event.preventDefault(); save(); }
    });
    turn.replaceChildren(el("div", {class: "editor"}, box, el("div", {class: "actions"},
      button("Cancel", close), button("Ask this", save, {class: "primary"}))));
    box.focus();
  }

  resultOf(message) {
    return el("article", {class: "turn tool", "aria-label": "Result of a call"},
      el("div", {class: "call-head"}, "Result of ", el("code", {}, message.name)), el("pre", {tabIndex: 0}, message.content));
  }

  answerOf(message, index) {
    const reasoning = el("div", {class: "reasoning-text"});
    const view = {
      reasoning, fold: el("details", {class: "reasoning"}, el("summary", {}, "Reasoning"), reasoning),
      text: el("div", {class: "markdown"}), calls: el("div", {class: "calls"}), foot: el("div", {class: "actions"}),
    };
    const turn = el("article", {class: "turn answer", "aria-label": "Answer"}, view.fold, view.text, view.calls, view.foot);
    turn.view = view;
    this.update(turn, message, index);
    return turn;
  }

  /** Shows what an answer has so far. */
  update(turn, message, index) {
    const {view} = turn;
    turn.setAttribute("aria-busy", message.streams ? "true" : "false");
    view.fold.hidden = !message.reasoning;
    if (view.reasoning.textContent !== message.reasoning) view.reasoning.textContent = message.reasoning;
    showMarkdown(view.text, message.content);
    turn.classList.toggle("streams", Boolean(message.streams));
    if (message.streams && !message.calls.length) return;
    view.calls.replaceChildren(...message.calls.map((call) => this.callOf(call, message, index)));
    view.foot.replaceChildren(...this.footOf(message, index));
  }

  callOf(call, message, index) {
    const parts = [el("div", {class: "call-head"}, "Calls ", el("code", {}, call.name)),
                   el("pre", {tabIndex: 0}, prettyJson(call.arguments))];
    if (!message.streams && !call.hasResult) parts.push(this.resultForm(call, index));
    return el("section", {class: "call", "aria-label": "Call of " + call.name}, ...parts);
  }

  resultForm(call, index) {
    const box = el("textarea", {rows: 2, "aria-label": "Result of " + call.name, placeholder: "The call's result"});
    const give = () => this.actions.result(index, call, box.value);
    box.addEventListener("keydown", (event) => {
      if (isEnter(event)) { event.preventDefault(); give(); }
    });
    return el("div", {class: "editor"}, box, el("div", {class: "actions"}, button("Give the result", give, {class: "primary"})));
  }

  footOf(message, index) {
    if (message.streams) return [];
    const parts = [];
    if (message.note) parts.push(el("span", {class: "fault"}, message.note));
    if (message.cost) parts.push(el("span", {class: "note"}, message.cost));
    if (message.content) parts.push(button("Copy", () => copyText(message.content), {"aria-label": "Copy this answer"}));
    parts.push(button("Retry", () => this.actions.retry(index), {"aria-label": "Ask for another answer"}));
    return parts;
  }

  /** Appends a message's turn. */
  add(message, index) {
    this.node.querySelector(".welcome")?.remove();
    const turn = this.turnOf(message, index);
    this.node.append(turn);
    this.follow(true);
    return turn;
  }

  /** Keeps the end in sight, unless the reader has scrolled away from it. */
  follow(always = false) {
    const {scrollHeight, scrollTop, clientHeight} = this.scroll;
    if (always || this.wasAtEnd) this.scroll.scrollTop = scrollHeight;
    else if (scrollHeight - scrollTop - clientHeight < 4) this.scroll.scrollTop = scrollHeight;
  }

  noteEnd() {
    const {scrollHeight, scrollTop, clientHeight} = this.scroll;
    this.wasAtEnd = scrollHeight - scrollTop - clientHeight < 60;
  }
}

const isEnter = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
