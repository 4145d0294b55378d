// The panel of costs: what /v1/watch reports of the server, and the usage of the last answer.

const kPeriodMs = 500, kSparkPoints = 120, kMeanOf = 6, kKernelsEveryMs = 3000, kTooManyMs = 5000;

// The steps of the model by what their work is, as `moxie profile` groups them.
const kGroups = [
  ["experts", ["experts"]], ["attention", ["attend"]], ["dense", ["qkv", "out", "unembed"]],
  ["routing", ["route"]], ["sampling", ["sample"]], ["memory", ["embed", "tap"]],
];

const kStates = {connecting: "connecting", ok: "ready", loading: "loading the model", draining: "shutting down",
                 lost: "not reachable", failed: "the device failed", busy: "busy", key: "needs a key"};

function formatNumber(value) {
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return value.toLocaleString("en", {maximumFractionDigits: digits, minimumFractionDigits: digits});
}

const formatCount = (value) => value.toLocaleString("en");

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; bytes >= 1024 && at < units.length - 1; ++at) bytes /= 1024;
  return `${at > 0 && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[at]}`;
}

function formatSeconds(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(seconds >= 0.1 ? 0 : 1)} ms` : `${Math.round(seconds * 1e6)} µs`;
}

const formatShare = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)}%`;

/** Fills a table with rows of a name and its figures. `marks`: each name has a mark of its colour. */
function showRows(table, rows, marks = false) {
  table.replaceChildren(el("tbody", {}, ...rows.map(([name, ...figures]) => {
    const head = el("th", {scope: "row"}, marks ? el("span", {class: "mark " + name}) : "", name);
    return el("tr", {}, head, ...figures.map((figure) => el("td", {}, figure)));
  })));
}

function showBar(name, share) {
  const percent = Math.max(0, Math.min(100, 100 * share));
  $(name + "-fill").style.width = percent + "%";
  $(name + "-bar").setAttribute("aria-valuenow", percent.toFixed(0));
}

/** Seconds of each group, and of the gaps between them. `busy`: requests ran all the time. */
function partsOf(event, busy) {
  const seconds = event.launches.step_seconds;
  const parts = kGroups.map(([name, steps]) => [name, steps.reduce((sum, step) => sum + (seconds[step] ?? 0), 0)]);
  const known = parts.reduce((sum, [, value]) => sum + value, 0);
  const whole = busy ? event.seconds : event.launches.seconds;
  return [...parts, ["gaps", Math.max(0, whole - known)]];
}

class CostPanel {
  constructor(server) {
    this.server = server;
    this.rates = [];
    this.busyEvents = [];
    this.wasRunning = false;
    server.onState((state) => this.showState(state));
    document.addEventListener("visibilitychange", () => this.onVisible());
    $("kernels").addEventListener("toggle", () => this.showKernels());
    this.watch();
  }

  /** Watches as long as the page is seen, again and again when the stream ends. */
  async watch() {
    while (!document.hidden) {
      this.abort = new AbortController();
      let wait = kRetryMs;
      try {
        const response = await this.server.request(`/v1/watch?interval_ms=${kPeriodMs}`, {signal: this.abort.signal});
        await readEvents(response, (event) => this.onEvent(event));
      } catch (fault) {
        if (fault instanceof ServerError) wait = this.onRefused(fault);
        else if (!(fault instanceof ServerAway) && fault.name !== "AbortError") throw fault;
      }
      await pause(wait);
    }
    this.abort = null;
  }

  onRefused(fault) {
    $("limit").textContent = fault.message;
    this.server.setState("ok");
    return kTooManyMs;
  }

  onVisible() {
    if (document.hidden) this.abort?.abort();
    else if (!this.abort) this.watch();
  }

  onEvent(event) {
    this.server.setState(event.state === "device failed" ? "failed" : event.state);
    if (event.about) this.showAbout(event.about);
    if (event.requests) this.showLoad(event);
    if (event.tokens) {
      this.showRate(event);
      this.showSteps(event);
    }
    this.wasRunning = event.requests?.running > 0;
  }

  showState(state) {
    $("state").textContent = kStates[state] ?? state;
    $("state").dataset.state = state;
  }

  showAbout(about) {
    this.about = about;
    $("model").textContent = about.model;
    $("model").title = `${about.model} on ${about.device}, moxie ${about.version}`;
    const parts = [...about.memory].sort((a, b) => b.bytes - a.bytes).filter((part) => part.bytes > 0);
    showRows($("memory-table"), [...parts.map((part) => [part.part, formatBytes(part.bytes)]),
                                 ["all", formatBytes(about.memory_bytes)]]);
  }

  showLoad(event) {
    const {requests, kv, prefix_cache: cache} = event;
    const rows = [["running", formatCount(requests.running)], ["waiting", formatCount(requests.waiting)],
                  ["KV cache in use", formatShare(kv.usage)],
                  ["pages, full layers", `${formatCount(kv.full.used)} of ${formatCount(kv.full.pages)}`]];
    if (cache.asked_tokens > 0) rows.push(["prompt tokens found", formatShare(cache.found_tokens / cache.asked_tokens)]);
    showRows($("load-table"), rows);
    showBar("kv", kv.usage);
  }

  showRate(event) {
    const {tokens, memory_limit: limit} = event;
    const rate = tokens.generated_per_s;
    this.rates = [...this.rates, rate].slice(-kSparkPoints);
    this.showSpark();
    $("rate").textContent = formatNumber(rate);
    if (limit.share > 1) {
      showBar("share", 1);
      $("limit").textContent = `Above what memory allows at the measured ${formatNumber(limit.read_gb_s)} GB/s: the model ` +
        "is read from the processor's caches, or the measurement was disturbed.";
    } else if (limit.share !== null) {
      showBar("share", limit.share);
      $("limit").textContent = `${formatShare(limit.share)} of the memory's limit: ${formatNumber(rate / limit.share)} ` +
        `tok/s at ${formatNumber(limit.read_gb_s)} GB/s`;
    } else if (limit.read_gb_s === null) {
      $("limit").textContent = "The limit is not known: the memory's bandwidth is measured when the server is idle.";
    } else if (!this.wasRunning) {
      showBar("share", 0);
      $("limit").textContent = `Idle. Memory reads ${formatNumber(limit.read_gb_s)} GB/s.`;
    }
  }

  showSpark() {
    const most = Math.max(1, ...this.rates);
    const points = this.rates.map((rate, i) => `${i + kSparkPoints - this.rates.length},${(30 - 28 * rate / most).toFixed(1)}`);
    $("spark").replaceChildren(drawn($("spark"), "polyline", {points: points.join(" ")}));
  }

  /** The mean of the last periods in which requests ran. */
  showSteps(event) {
    if (event.launches.step_seconds === null) {
      $("steps-note").textContent = "Not measured on this device: a GPU's launches are recorded graphs.";
      return;
    }
    if (event.launches.count === 0) return;
    const busy = this.wasRunning && event.requests.running > 0;
    this.busyEvents = [...this.busyEvents, {event, parts: partsOf(event, busy)}].slice(-kMeanOf);
    const launches = this.busyEvents.reduce((sum, one) => sum + one.event.launches.count, 0);
    const parts = this.busyEvents[0].parts.map(([name], i) =>
      [name, this.busyEvents.reduce((sum, one) => sum + one.parts[i][1], 0)]);
    this.showParts(parts, launches);
  }

  showParts(parts, launches) {
    const all = parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1;
    $("step-bar").replaceChildren(...parts.map(([name, seconds]) => {
      const part = el("span", {class: "mark " + name, title: name});
      part.style.flexGrow = seconds / all;
      return part;
    }));
    showRows($("step-table"), parts.map(([name, seconds]) =>
      [name, formatSeconds(seconds / launches), formatShare(seconds / all)]), true);
    $("steps-note").textContent = `Of ${formatSeconds(all / launches)} a launch, the mean of the last ${formatCount(launches)}.`;
  }

  /** `answer`: what chat.js measured and the server counted. */
  showAnswer(answer) {
    const rows = [];
    const add = (name, value) => { if (value !== undefined && value !== null) rows.push([name, value]); };
    add("prompt tokens", answer.promptTokens && formatCount(answer.promptTokens));
    add("found in the cache", answer.cachedTokens !== undefined ? formatCount(answer.cachedTokens) : null);
    add("answer tokens", answer.tokens ? formatCount(answer.tokens) : null);
    add("of these reasoning", answer.reasoningTokens ? formatCount(answer.reasoningTokens) : null);
    add("first token after", answer.firstS ? formatSeconds(answer.firstS) : null);
    add("speed", answer.rate ? `${formatNumber(answer.rate)} tok/s` : null);
    showRows($("answer-table"), rows);
    $("cache-note").textContent = answer.cacheReport ? `Prefix cache: ${answer.cacheReport}.` : "";
  }

  /** While the list is open. */
  async showKernels() {
    while ($("kernels").open) {
      try {
        const {kernels} = await (await this.server.request("/debug/kernels")).json();
        showRows($("kernel-table"), kernels.map((kernel) => [kernel.name, formatCount(kernel.launches)]));
      } catch (fault) {
        if (!(fault instanceof ServerAway) && !(fault instanceof ServerError)) throw fault;
      }
      await pause(kKernelsEveryMs);
    }
  }
}
