// The conversation at hand: asking, stopping, editing, trying again, calls and their results.

const kNotices = {
  lost: "The server cannot be reached. Your text is kept; the answer goes on when the server is back.",
  loading: "The server is loading its model. The answer begins when it is ready.",
  draining: "The server is shutting down. Your text is kept; the answer goes on when a server is back.",
  busy: "The server takes no request now. The answer begins when it does.",
  failed: "The server's device has failed; it must be started again. Your text is kept.",
};

/** A message of the API, or null for an answer of which nothing came. */
function apiMessage(message) {
  if (message.role === "user") return {role: "user", content: message.content};
  if (message.role === "tool") return {role: "tool", tool_call_id: message.callId, content: message.content};
  if (!message.content && message.calls.length === 0) return null;
  const answer = {role: "assistant", content: message.content};
  if (message.calls.length > 0) {
    if (message.reasoning) answer.reasoning = message.reasoning;
    answer.tool_calls = message.calls.map((call) =>
      ({id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}));
  }
  return answer;
}

function requestOf(chat) {
  const {settings} = chat;
  const messages = chat.messages.map(apiMessage).filter((message) => message !== null);
  if (settings.system) messages.unshift({role: "system", content: settings.system});
  const request = {messages, stream: true, reasoning_effort: settings.effort,
                   stream_options: {include_usage: true, continuous_usage_stats: true}};
  if (settings.temperature !== "") request.temperature = Number(settings.temperature);
  if (settings.maxTokens !== "") request.max_tokens = Number(settings.maxTokens);
  if (settings.tools.trim()) request.tools = JSON.parse(settings.tools);
  return request;
}

/** Adds an event of the stream to an answer. */
function takeEvent(answer, timing, event) {
  if (event.error) throw new ServerError(500, event.error.message);
  if (event.usage) timing.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const {delta} = choice;
  answer.reasoning += delta.reasoning ?? delta.reasoning_content ?? "";
  answer.content += delta.content ?? "";
  for (const call of delta.tool_calls ?? []) {
    answer.calls[call.index] ??= {id: call.id, name: call.function.name, arguments: ""};
    answer.calls[call.index].arguments += call.function.arguments ?? "";
  }
  if (delta.content || delta.reasoning || delta.reasoning_content || delta.tool_calls) timing.first ??= performance.now();
  if (choice.finish_reason === "length") answer.note = "The limit of tokens ended the answer.";
  if (choice.finish_reason) timing.finished = true;
}

// Tokens that came within less time came together: the time between them says nothing of a speed.
const kLeastRateMs = 100;

/** What an answer cost: counts of the server, times of this page. */
function costOf(timing) {
  const {usage, began, first, last} = timing;
  const tokens = usage?.completion_tokens;
  return {
    promptTokens: usage?.prompt_tokens, tokens,
    cachedTokens: usage?.prompt_tokens_details?.cached_tokens,
    cacheReport: usage?.prompt_tokens_details?.cache_report,
    reasoningTokens: usage?.completion_tokens_details?.reasoning_tokens,
    firstS: first && (first - began) / 1000,
    rate: first && tokens > 1 && last - first >= kLeastRateMs ? (tokens - 1) / (last - first) * 1000 : null,
  };
}

function costLine(cost) {
  const parts = [];
  if (cost.tokens) parts.push(`${formatCount(cost.tokens)} tokens`);
  if (cost.rate) parts.push(`${formatNumber(cost.rate)} tok/s`);
  if (cost.cachedTokens) parts.push(`${formatCount(cost.cachedTokens)} of ${formatCount(cost.promptTokens)} prompt tokens found`);
  return parts.join(" · ");
}

class Chat {
  constructor(server, store, panel) {
    Object.assign(this, {server, store, panel, chat: null, running: null});
    this.turns = new TurnList($("turns"), $("scroll"), {
      edit: (index, text) => this.edit(index, text),
      retry: (index) => this.retry(index),
      result: (index, call, text) => this.giveResult(index, call, text),
    });
    this.onChange = () => {};
    server.onState((state) => this.showNotice(state));
  }

  open(chat) {
    this.stop();
    this.chat = chat;
    this.turns.show(chat);
    $("effort").value = chat.settings.effort;
    this.onChange();
  }

  /** Sends what was typed. Returns false if it must wait. */
  async send(text) {
    if (this.running || text.trim() === "") return false;
    if (this.awaitsResults()) {
      this.say("Give the results of the calls first, or edit a question before them.");
      return false;
    }
    this.add({role: "user", content: text});
    this.answer();
    return true;
  }

  awaitsResults() { return this.chat.messages.at(-1)?.calls?.some((call) => !call.hasResult) ?? false; }

  add(message) {
    this.chat.messages.push(message);
    this.save();
    return this.turns.add(message, this.chat.messages.length - 1);
  }

  save() {
    this.store.save(this.chat);
    this.onChange();
  }

  async edit(index, text) {
    await this.stop();
    this.chat.messages.splice(index);
    this.turns.show(this.chat);
    await this.send(text);
  }

  /** Asks again for the answer at `index`. */
  async retry(index) {
    await this.stop();
    this.chat.messages.splice(index);
    this.turns.show(this.chat);
    this.answer();
  }

  giveResult(index, call, text) {
    const asked = this.chat.messages[index];
    call.hasResult = true;
    this.add({role: "tool", callId: call.id, name: call.name, content: text});
    this.turns.show(this.chat);
    if (asked.calls.every((one) => one.hasResult)) this.answer();
    else $("turns").querySelector(".call textarea")?.focus();
  }

  /** Stops the answer; what came stays. */
  async stop() {
    this.running?.abort.abort();
    await this.running?.done;
  }

  answer() {
    const abort = new AbortController();
    const running = {abort};
    this.running = running;
    this.showRunning();
    running.done = this.runAnswer(this.chat, abort.signal).finally(() => {
      if (this.running === running) this.running = null;
      this.showRunning();
    });
  }

  /** Asks until an answer is complete, refused or stopped: a server that is lost is waited for. */
  async runAnswer(chat, signal) {
    const answer = {role: "assistant", content: "", reasoning: "", calls: [], streams: true};
    const request = requestOf(chat);
    const turn = this.add(answer);
    const index = chat.messages.length - 1;
    turn.view.fold.open = chat.settings.openReasoning;
    let timing = {};
    for (let is_complete = false; !is_complete;) {
      try {
        Object.assign(answer, {content: "", reasoning: "", calls: [], note: ""});
        timing = {began: performance.now()};
        is_complete = await this.stream(request, signal, answer, timing, turn, index);
        if (!is_complete) this.server.setState("lost");
        if (!is_complete) await this.server.untilReady(signal);
      } catch (fault) {
        if (fault instanceof ServerAway && await this.waited(signal)) continue;
        answer.note = noteOf(fault);
        is_complete = true;
      }
    }
    this.end(chat, answer, timing, turn, index);
  }

  /** False if the reader stopped meanwhile. */
  async waited(signal) {
    try {
      await this.server.untilReady(signal);
      return true;
    } catch {
      return false;
    }
  }

  async stream(request, signal, answer, timing, turn, index) {
    const response = await this.server.request("/v1/chat/completions", {body: request, signal});
    this.server.setState("ok");
    let frame = 0;
    const show = () => {
      frame = 0;
      if (!answer.streams) return;
      this.turns.noteEnd();
      this.turns.update(turn, answer, index);
      this.turns.follow();
      this.panel.showAnswer(costOf(timing));
    };
    const is_complete = await readEvents(response, (event) => {
      takeEvent(answer, timing, event);
      timing.last = performance.now();
      frame ||= requestAnimationFrame(show);
    });
    cancelAnimationFrame(frame);
    return is_complete || timing.finished === true;
  }

  end(chat, answer, timing, turn, index) {
    delete answer.streams;
    const cost = costOf(timing);
    answer.cost = costLine(cost);
    this.panel.showAnswer(cost);
    if (chat !== this.chat) {
      if (this.store.chats.has(chat.id)) this.store.save(chat);
      return;
    }
    this.turns.noteEnd();
    this.turns.update(turn, answer, index);
    this.turns.follow();
    this.save();
    turn.querySelector(".call textarea")?.focus();
  }

  showRunning() {
    $("stop").hidden = this.running === null;
    $("send").hidden = this.running !== null;
    if (this.running === null) this.showNotice(this.server.state);
  }

  showNotice(state) { this.say(kNotices[state] ?? ""); }

  say(text) {
    $("notice").textContent = text;
    $("notice").hidden = text === "";
  }
}

function noteOf(fault) {
  if (fault.name === "AbortError" || fault instanceof ServerAway) return "Stopped.";
  if (fault instanceof ServerError) return fault.message;
  throw fault;
}
