// Requests to the server: its key, its events, and whether it can be reached.

const kRetryMs = 1000;

/** An answer of the server that is an error. */
class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The server cannot be reached, or does not take work now: it will later. */
class ServerAway extends Error {}

class Server {
  constructor() {
    this.listeners = [];
    this.state = "connecting";
    this.asking = null;
  }

  onState(listener) { this.listeners.push(listener); }

  setState(state) {
    if (state === this.state) return;
    this.state = state;
    for (const listener of this.listeners) listener(state);
  }

  /** fetch() with the key. Asks for a key as long as the server wants one. Throws ServerAway and ServerError. */
  async request(path, {body, signal} = {}) {
    for (;;) {
      const key = storedKey();
      const headers = key ? {Authorization: "Bearer " + key} : {};
      if (body !== undefined) headers["Content-Type"] = "application/json";
      const response = await this.fetch(path, {
        method: body === undefined ? "GET" : "POST", headers, signal,
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      if (response.status === 401) {
        await this.askForKey(key);
      } else if (response.status === 503) {
        this.setState(await stateOf(response));
        throw new ServerAway(this.state);
      } else if (!response.ok) {
        throw new ServerError(response.status, await messageOf(response));
      } else {
        return response;
      }
    }
  }

  async fetch(path, options) {
    try {
      return await fetch(path, {cache: "no-store", ...options});
    } catch (fault) {
      if (fault.name === "AbortError") throw fault;
      this.setState("lost");
      throw new ServerAway("lost");
    }
  }

  /** Asks once, however many requests wait. `refused`: the key that was not accepted. */
  async askForKey(refused) {
    if (storedKey() !== refused) return;
    this.asking ??= this.showKeyDialog(refused);
    await this.asking;
    this.asking = null;
  }

  async showKeyDialog(refused) {
    this.setState("key");
    $("key-fault").hidden = !refused;
    $("key").value = "";
    while (!await ask($("key-dialog"))) await pause(100);
    storeKey($("key").value.trim());
    this.setState("connecting");
  }

  /** Resolves when the server answers requests. */
  async untilReady(signal) {
    for (;;) {
      try {
        const response = await this.fetch("/health", {signal});
        if (response.ok) return;
        this.setState(await stateOf(response));
      } catch (fault) {
        if (!(fault instanceof ServerAway)) throw fault;
      }
      await pause(kRetryMs);
      if (signal?.aborted) throw new DOMException("stopped", "AbortError");
    }
  }
}

/** Calls `onEvent` with each event's document, until the stream ends. False if it broke off. */
async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", whole = false;
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (fault) {
      if (fault.name === "AbortError") throw fault;
      return false;
    }
    if (piece.done) return whole;
    text += piece.value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      const data = event.slice(6);
      whole = data === "[DONE]";
      if (!whole) onEvent(JSON.parse(data));
    }
  }
}

let keyInMemory = "";

function storedKey() {
  try {
    return sessionStorage.getItem("moxie.key") ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

function storeKey(key) {
  keyInMemory = key;
  try {
    sessionStorage.setItem("moxie.key", key);
  } catch { /* forbidden: it is kept in memory */ }
}

async function documentOf(response) {
  try {
    return await response.json();
  } catch {
    return {};
  }
}

async function messageOf(response) {
  return (await documentOf(response)).error?.message ?? `The server answered with status ${response.status}.`;
}

async function stateOf(response) {
  const answer = await documentOf(response);
  const code = answer.status ?? answer.error?.code;
  return {loading: "loading", draining: "draining", shutting_down: "draining", busy: "busy",
          "device failed": "failed"}[code] ?? "busy";
}
