"""Templates to text: `{a|b}` picks one alternative, `<name>` is filled in last, so that noise spares the values.

Noise makes the questions look typed by people: lost capitals and punctuation, shouting, typing slips.
"""
import functools
import re

INNER = re.compile(r"\{([^{}]*)\}")
TOKEN = re.compile(r"<[a-z0-9_]+>|[A-Za-z]+|[^A-Za-z<]+|<")


def expand(rng, template):
    """Resolves every `{a|b|c}`, innermost first."""
    while "{" in template:
        template = INNER.sub(lambda m: rng.choice(m.group(1).split("|")), template)
    return template


def fill(template, values):
    for key, value in values.items():
        template = template.replace(f"<{key}>", str(value))
    return template


def slip(rng, word):
    """One typing slip inside a word: a swapped, lost or doubled letter."""
    at = rng.randint(1, len(word) - 2)
    kind = rng.random()
    if kind < 0.45:
        return word[:at] + word[at + 1] + word[at] + word[at + 2:]
    if kind < 0.8:
        return word[:at] + word[at + 1:]
    return word[:at] + word[at] + word[at:]


def noisy(rng, text):
    """Noise on an expanded template; `<name>` places are left alone."""
    r = rng.random()
    if r < 0.62:
        return text
    if r < 0.80:
        text = "".join(t if t.startswith("<") else t.lower() for t in TOKEN.findall(text))
    elif r < 0.82:
        text = "".join(t if t.startswith("<") else t.upper() for t in TOKEN.findall(text))
    if rng.random() < 0.45 and text.endswith((".", "?")) and len(text) > 2:
        text = text[:-1]
    if rng.random() < 0.2:
        parts = TOKEN.findall(text)
        words = [i for i, t in enumerate(parts) if t.isalpha() and len(t) > 3]
        if words:
            i = rng.choice(words)
            parts[i] = slip(rng, parts[i])
        text = "".join(parts)
    return text


OPENERS = "{Hi|Hello|Hey}{, |! |. }|{Please|please}: |Quick question: |{OK|Okay|So|Well|Now}, |I have a question. |Help me with this: |{Good morning|Good evening}. "
CLOSERS = " Show {your|the} {work|steps}.| {Think|Work} step by step.| Explain {your answer|it|how}.| Step by step{, please|}.| {Please|please}.| Thanks!| Thank you.| thanks| please| Can you help?"


def ask(rng, template, **values):
    """A question from a template: choices, sometimes a greeting or thanks around it, noise, then the values."""
    text = expand(rng, template)
    r = rng.random()
    if r < 0.06:
        text = expand(rng, rng.choice(split_top(OPENERS))) + text
    elif r < 0.10:
        text = text + expand(rng, rng.choice(split_top(CLOSERS)))
    return fill(noisy(rng, text), values)


@functools.lru_cache(None)
def split_top(text):
    """Splits at `|` outside braces."""
    out, depth, cur = [], 0, ""
    for ch in text:
        depth += (ch == "{") - (ch == "}")
        if ch == "|" and depth == 0:
            out.append(cur)
            cur = ""
        else:
            cur += ch
    return out + [cur]
