"""The requests of soak.py: drawn at random, and what each answer has to be."""

import collections
import dataclasses
import json
import math
import random
import re

CHAT, TEXT, RESPONSES, MESSAGES = ("/v1/chat/completions", "/v1/completions", "/v1/responses",
                                   "/v1/messages")
WORDS = ("the sum of two and three is five but nobody can tell what the weather will be in Paris "
         "when it rains all day and we go on to count from one to ten again").split()
STOPS = ["e", "the", "a", " is", "\n"]
SCHEMA = {"type": "object", "properties": {
    "number": {"type": "integer", "minimum": 0, "maximum": 999}, "good": {"type": "boolean"},
    "color": {"enum": ["red", "green", "blue"]},
    "list": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}},
    "required": ["number", "good", "color", "list"], "additionalProperties": False}
CHOICES = ["red", "green", "a longer answer"]
BOUND = [  # what binds an answer, whether a text is right, the bytes that it has at most
    ({"json": SCHEMA, "disable_any_whitespace": True}, lambda text: follows_schema(text), 80),
    ({"json": SCHEMA}, lambda text: follows_schema(text), None),
    ({"regex": "[0-9]{3}-[a-z]{2}"}, lambda text: re.fullmatch("[0-9]{3}-[a-z]{2}", text), 6),
    ({"choice": CHOICES}, lambda text: text in CHOICES, max(len(one) for one in CHOICES))]
KINDS = {"plain": 34, "many": 9, "logprobs": 12, "penalties": 9, "twin": 8, "bound": 8, "stop": 8,
         "free": 6, "bad": 6}
CUT_SHARE = 0.2  # of the streams that may be cut
ENDS = {"completed": "stop", "incomplete": "length", "end_turn": "stop", "stop_sequence": "stop",
        "max_tokens": "length", "tool_use": "tool_calls"}


def follows_schema(text):
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (type(value) is dict and list(value) == ["number", "good", "color", "list"] and
            type(value["number"]) is int and 0 <= value["number"] <= 999 and
            type(value["good"]) is bool and value["color"] in ("red", "green", "blue") and
            1 <= len(value["list"]) <= 3 and all(type(one) is bool for one in value["list"]))


@dataclasses.dataclass
class Ask:
    """A request, and what its answer has to be."""
    kind: str
    path: str
    body: dict
    n: int = 1
    least: int = 1            # tokens of a choice
    most: int = 1             # and at most
    exact: bool = False       # and no fewer, unless a stop string ends it
    prompt: tuple = (1, 1)    # its tokens, at least and at most
    logprobs: int = None
    stop: list = ()
    fits: object = None       # whether a text is right
    ends_itself: bool = False
    cut: int = None           # events after which the client goes
    status: int = 200

    @property
    def stream(self):
        return bool(self.body.get("stream"))


@dataclasses.dataclass
class Got:
    """An answer, or what came of it until it was cut."""
    status: int = 0
    error: str = ""
    cut: bool = False
    ends: dict = dataclasses.field(default_factory=dict)  # finish reasons by choice
    texts: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(str))
    entries: list = dataclasses.field(default_factory=list)  # of log-probabilities: (logprob, tops)
    usage: tuple = None  # tokens of the prompt, of the answers
    shown: int = 0       # tokens that were seen at least
    ids: int = 0         # with return_token_ids
    events: int = 0
    last: object = None
    faults: list = dataclasses.field(default_factory=list)

    def end(self, choice, reason):
        if choice in self.ends:
            self.faults.append(f"choice {choice} ended twice")
        self.ends[choice] = ENDS.get(reason, reason)

    def add_usage(self, usage):
        if usage:
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
            if "input_tokens" in usage:
                names = ("input_tokens", "output_tokens", "total_tokens")
            prompt, completion = usage[names[0]], usage[names[1]]
            prompt += usage.get("cache_read_input_tokens", 0)
            if usage.get(names[2], prompt + completion) != prompt + completion:
                self.faults.append(f"a usage that does not add up: {usage}")
            self.usage = (prompt, completion)


def openai_choice(got, choice, is_text):
    at = choice["index"]
    part = choice if is_text else choice.get("message") or choice.get("delta")
    got.texts[at] += (part.get("text") if is_text else part.get("content")) or ""
    lists = choice.get("logprobs")
    if lists and is_text:
        if len({len(lists[name]) for name in
                ("tokens", "token_logprobs", "top_logprobs", "text_offset")}) != 1:
            got.faults.append("lists of log-probabilities of different lengths")
        got.entries += [(value, len(top or ())) for value, top in
                        zip(lists["token_logprobs"], lists["top_logprobs"])]
    elif lists:
        got.entries += [(one["logprob"], len(one["top_logprobs"])) for one in lists["content"]]
    got.ids += len(choice.get("token_ids") or ())
    if choice.get("finish_reason"):
        got.end(at, choice["finish_reason"])


def read_openai(got, document, is_text):
    if document.get("usage"):
        # With continuous_usage_stats a chunk has the usage of its choice so far.
        if document["choices"] and document["object"].endswith(("chunk", "text_completion")):
            got.shown = max(got.shown, document["usage"]["completion_tokens"])
        got.add_usage(document["usage"])
    for choice in document["choices"]:
        openai_choice(got, choice, is_text)
    if any(got.texts.values()):
        got.shown = max(got.shown, 1)


def read_response(got, document):
    """A whole response, which also ends a stream."""
    got.add_usage(document["usage"])
    calls = any(item["type"] == "function_call" for item in document["output"])
    status = document["status"]
    got.end(0, "tool_calls" if calls and status == "completed" else status)
    got.texts[0] = "".join(part["text"] for item in document["output"]
                           if item["type"] == "message" for part in item["content"])


def read_message(got, document):
    got.add_usage(document["usage"])
    got.texts[0] = "".join(block["text"] for block in document["content"]
                           if block["type"] == "text")
    got.end(0, document["stop_reason"])


def read_document(got, path, document):
    if path in (CHAT, TEXT):
        read_openai(got, document, path == TEXT)
        got.shown = 0
    elif path == RESPONSES:
        read_response(got, document)
    else:
        read_message(got, document)


def read_event(got, path, event):
    got.last = event
    if event == "[DONE]":
        return
    if "error" in event and event["error"]:
        got.error = json.dumps(event["error"])
    elif path in (CHAT, TEXT):
        read_openai(got, event, path == TEXT)
    elif path == RESPONSES:
        if event["sequence_number"] != got.events - 1:
            got.faults.append(f"event {event['sequence_number']} came as number {got.events - 1}")
        if "delta" in event:
            got.shown = 1
        if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            read_response(got, event["response"])
    elif event["type"] == "message_delta":
        got.add_usage(event["usage"])
        got.end(0, event["delta"]["stop_reason"])
    elif event["type"] == "content_block_delta":
        got.texts[0] += event["delta"].get("text", "")
        got.shown = 1


def last_event_is_right(path, event):
    return (event == "[DONE]" if path in (CHAT, TEXT) else isinstance(event, dict) and
            event["type"] in ("response.completed", "response.incomplete", "message_stop"))


class Draws:
    """Requests at random, for one model."""

    def __init__(self, limits, model, vocab, text_ids, longest, has_grammars):
        self.limits, self.model, self.vocab, self.text_ids = limits, model, vocab, text_ids
        self.longest, self.has_grammars = longest, has_grammars  # of prompt and answer together
        shared = random.Random(limits.seed)
        self.shared_ids = [shared.randrange(vocab) for _ in range(limits.max_prompt)]
        self.shared_words = [shared.choice(WORDS) for _ in range(limits.max_prompt)]

    @staticmethod
    def log_uniform(rng, most):
        return max(1, min(most, round(math.exp(rng.uniform(0, math.log(most + 0.5))))))

    def prompt(self, rng, most, shared, fresh):
        size = self.log_uniform(rng, most)
        kept = rng.randrange(size + 1) if rng.random() < 0.3 else 0
        return shared[:kept] + [fresh() for _ in range(size - kept)]

    def text(self, rng, most):
        # A word is 1 to 3 tokens; a conversation has some 100 more.
        return " ".join(self.prompt(rng, max(1, most // 3), self.shared_words,
                                    lambda: rng.choice(WORDS)))

    def base(self, rng, path, most_answer=None):
        """Prompt, length and the settings that any request may have."""
        answer = self.log_uniform(rng, most_answer or self.limits.max_answer)
        room = min(self.limits.max_prompt, self.longest - answer - 1)
        body = {"temperature": rng.choice((0, 0.7, 1, 1)), "stream": rng.random() < 0.6}
        if rng.random() < 0.2:
            body["top_p"] = rng.choice((0.5, 0.95))
        if rng.random() < 0.2:
            body["top_k"] = rng.choice((1, 40))
        ask = Ask("plain", path, body, most=answer, exact=path != MESSAGES)
        if path == TEXT and rng.random() < 0.8:
            ids = self.prompt(rng, room, self.shared_ids, lambda: rng.randrange(self.vocab))
            body["prompt"], ask.prompt = ids, (len(ids), len(ids))
        else:
            text = self.text(rng, room - 300 if room > 600 else room // 2)
            ask.prompt = (1, len(text) + 400)
            if path in (TEXT, RESPONSES):
                body["prompt" if path == TEXT else "input"] = text
            else:
                body["messages"] = [{"role": "user", "content": text}]
        body["max_output_tokens" if path == RESPONSES else "max_tokens"] = answer
        if path == MESSAGES:
            body["model"] = self.model
        else:
            body["ignore_eos"] = True
        if path == RESPONSES:
            body["store"] = rng.random() < 0.25
        if path in (CHAT, TEXT) and body["stream"]:
            # Where everything is known beforehand, the usage is not needed.
            if ask.prompt[0] < ask.prompt[1] or rng.random() < 0.7:
                body["stream_options"] = {"include_usage": True}
        return ask

    def draw(self, rng):
        kind = rng.choices(list(KINDS), KINDS.values())[0]
        if kind == "bound" and not self.has_grammars:
            kind = "plain"
        ask = getattr(self, kind)(rng)
        ask.kind = kind
        may_be_cut = kind in ("plain", "many", "logprobs", "penalties") and ask.stream
        if may_be_cut and rng.random() < CUT_SHARE:
            ask.cut = rng.choice((0, 1, 2, rng.randrange(3, 60)))
            if ask.path in (CHAT, TEXT) and rng.random() < 0.5:
                ask.body["stream_options"] = {"include_usage": True,
                                              "continuous_usage_stats": True}
        return ask

    def plain(self, rng):
        ask = self.base(rng, rng.choice((CHAT, CHAT, TEXT, TEXT, TEXT, RESPONSES, MESSAGES)))
        if ask.path == CHAT and rng.random() < 0.3:
            ask.body["reasoning_effort"] = rng.choice(("low", "high"))
        if ask.path in (CHAT, TEXT) and rng.random() < 0.15:
            ask.body["allowed_token_ids"] = self.text_ids
        return ask

    def many(self, rng):
        ask = self.base(rng, rng.choice((CHAT, TEXT)))
        ask.n = ask.body["n"] = rng.randrange(2, 5)
        return ask

    def logprobs(self, rng):
        ask = self.base(rng, rng.choice((CHAT, TEXT)))
        ask.logprobs = rng.choice((0, 1, 5, 20))
        if ask.path == TEXT:
            ask.body["logprobs"] = ask.logprobs
        else:
            ask.body.update(logprobs=True, top_logprobs=ask.logprobs)
        return ask

    def penalties(self, rng):
        ask = self.base(rng, rng.choice((CHAT, TEXT)))
        for name, values in (("presence_penalty", (-1, 0.5, 2)), ("frequency_penalty", (0.3, 2)),
                             ("repetition_penalty", (0.8, 1.2)), ("min_p", (0.01, 0.2)),
                             ("logit_bias", ({"5": -100, "6": 3},))):
            if rng.random() < 0.5:
                ask.body[name] = rng.choice(values)
        return ask

    def twin(self, rng):
        """Sent twice. Without the prefix cache, so that both are computed alike."""
        ask = self.base(rng, rng.choice((CHAT, TEXT)))
        ask.body.update(seed=rng.randrange(1 << 40), temperature=1, cache_prompt=False,
                        stream=False)
        ask.body.pop("stream_options", None)
        return ask

    def bound(self, rng):
        """Completions are bound from their first token, chats behind their reasoning."""
        fields, fits, most = rng.choice(BOUND)
        is_text = rng.random() < 0.7
        ask = self.base(rng, TEXT if is_text else CHAT)
        del ask.body["ignore_eos"]
        # Where the grammar is free to go on, or reasoning comes first, the answer may be cut short.
        ask.ends_itself = is_text and most is not None
        ask.most = ask.body["max_tokens"] = most if ask.ends_itself else self.limits.max_answer
        ask.exact, ask.fits, ask.body["structured_outputs"] = False, fits, fields
        if ask.stream:
            ask.body["stream_options"] = {"include_usage": True}
        return ask

    def stop(self, rng):
        ask = self.base(rng, rng.choice((CHAT, TEXT, TEXT)))
        ask.stop = ask.body["stop"] = rng.sample(STOPS, 2)
        if ask.stream:
            ask.body["stream_options"] = {"include_usage": True}
        return ask

    def free(self, rng):
        ask = self.base(rng, rng.choice((CHAT, TEXT, RESPONSES, MESSAGES)))
        ask.body.pop("ignore_eos", None)
        ask.exact = False
        if ask.path != MESSAGES and rng.random() < 0.5:
            ask.least = ask.body["min_tokens"] = rng.randint(1, ask.most)
        if ask.path in (CHAT, TEXT) and ask.stream:
            ask.body["stream_options"] = {"include_usage": True}
        return ask

    def bad(self, rng):
        path = rng.choice((CHAT, TEXT, RESPONSES, MESSAGES))
        ask = self.base(rng, path)
        ask.status = 400
        ask.body.update(rng.choice([
            {"temperature": 3}, {"top_p": "x"}, {"no_such_field": 1}, {"temperature": -1},
            {"input" if path == RESPONSES else "prompt" if path == TEXT else "messages": 7},
            {"prompt" if path == TEXT else "input" if path == RESPONSES else "messages":
             [self.vocab] if path == TEXT else []},
            {"max_output_tokens" if path == RESPONSES else "max_tokens": -1}]))
        return ask


def faults_of(ask, got):
    """What is wrong with an answer."""
    if got.status != ask.status:
        return [f"status {got.status} instead of {ask.status}: {got.error[:300]}"]
    if ask.status != 200:
        try:
            has_message = bool(json.loads(got.error)["error"]["message"])
        except (ValueError, KeyError):
            has_message = False
        return [] if has_message else [f"no error document: {got.error[:300]}"]
    found = list(got.faults)
    if got.error:
        found.append(f"an error in the stream: {got.error[:300]}")
    if got.cut:
        return found
    if ask.stream and not last_event_is_right(ask.path, got.last):
        found.append(f"the stream ends with {str(got.last)[:200]}")
    if sorted(got.ends) != list(range(ask.n)):
        return found + [f"choices {sorted(got.ends)} instead of {ask.n}"]
    if not set(got.ends.values()) <= {"stop", "length", "tool_calls"}:
        found.append(f"finish reasons {got.ends}")
    if got.usage is None:
        if "stream_options" in ask.body or not ask.stream or ask.path not in (CHAT, TEXT):
            return found + ["no usage"]
        got.usage = (ask.prompt[0], ask.n * ask.most)  # the server's sums will tell
    prompt, completion = got.usage
    if not ask.prompt[0] <= prompt <= ask.prompt[1]:
        found.append(f"{prompt} tokens of a prompt of {ask.prompt[0]} to {ask.prompt[1]}")
    ends = list(got.ends.values())
    if not ask.n * ask.least <= completion <= ask.n * ask.most:
        found.append(f"{completion} tokens, not {ask.n} times {ask.least} to {ask.most}")
    if (ask.exact and not ask.stop) or ends.count("length") == ask.n:
        if completion != ask.n * ask.most:
            found.append(f"{completion} tokens instead of {ask.n} times {ask.most}")
    if ask.exact and not ask.stop and ends.count("length") != ask.n:
        found.append(f"finish reasons {ends} of answers that cannot end")
    if ask.stop and any(stop in text for stop in ask.stop for text in got.texts.values()):
        found.append(f"a stop string in the text: {dict(got.texts)}")
    if ask.fits:
        for choice, reason in got.ends.items():
            if (reason == "stop" or ask.ends_itself) and not ask.fits(got.texts[choice]):
                found.append(f"not what binds it ({reason}): {got.texts[choice][:200]!r}")
    if ask.logprobs is not None:
        if ask.path == TEXT and len(got.entries) != completion:
            found.append(f"{len(got.entries)} log-probabilities of {completion} tokens")
        if ask.path == CHAT and len(got.entries) > completion:
            found.append(f"{len(got.entries)} log-probabilities of {completion} tokens")
        # OpenAI's older form names the token itself beside the best.
        tops = {ask.logprobs, ask.logprobs + (ask.path == TEXT)}
        if any(value is None or value > 1e-3 for value, _ in got.entries):
            found.append("a log-probability above 0, or none")
        # Tokens of the same text fall together in a document of names.
        if any(top not in tops if ask.path == CHAT else top > max(tops) for _, top in got.entries):
            counts = sorted({top for _, top in got.entries})
            found.append(f"{counts} best tokens instead of {ask.logprobs}")
    return found


def brief(body):
    """A request short enough to print; what is left out is counted."""
    def cut(value):
        if isinstance(value, str) and len(value) > 80:
            return f"{value[:60]}... ({len(value)} characters)"
        if isinstance(value, list) and len(value) > 12:
            return [*value[:8], f"... {len(value)} in all"]
        return [cut(one) for one in value] if isinstance(value, list) else (
            {name: cut(one) for name, one in value.items()} if isinstance(value, dict) else value)
    return json.dumps(cut(body))
