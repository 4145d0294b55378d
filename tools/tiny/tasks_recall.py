"""Facts stated in the prompt, from a few sentences to some thousand tokens, and questions about them."""
from phrasing import ask, expand, fill
from sample import Sample
from scenes import scene
import words as W

# (statements, questions, answer, reverse questions or None, value maker); <p> is who or what, <v> the value
FACTS = [
    ("{<p>'s locker code is <v>.|The locker code of <p> is <v>.}", "{What is|What's|Tell me} {<p>'s locker code|the locker code of <p>}?", "The locker code of <p> is <v>.", "{Who has the locker code|Whose locker code is} <v>?", W.code),
    ("{<p>'s favorite color is <v>.|The favorite color of <p> is <v>.}", "{What is|What's} {<p>'s favorite color|the favorite color of <p>}?", "The favorite color of <p> is <v>.", None, lambda r: r.choice(W.COLORS)),
    ("<p> lives in <v>.", "{Where does <p> live|{In which|Which|What} city does <p> live{ in|}}?", "<p> lives in <v>.", "Who lives in <v>?", W.city),
    ("<p> works as a <v>.", "{What is <p>'s job|What does <p> {do|work as}|What is the job of <p>|What does <p> do for a living}?", "<p> works as a <v>.", "Who works as a <v>?", lambda r: r.choice(W.JOBS)),
    ("{<p> is <v> years old.|The age of <p> is <v>.}", "{How old is <p>|What is {<p>'s age|the age of <p>}}?", "<p> is <v> years old.", None, lambda r: str(r.randint(5, 99))),
    ("<p> was born {in <v>.|in the year <v>.}", "{When was <p> born|In {what|which} year was <p> born|What is <p>'s {birth year|year of birth}}?", "<p> was born in <v>.", None, lambda r: str(r.randint(1920, 2015))),
    ("{<p>'s phone number is <v>.|The phone number of <p> is <v>.}", "{What is|What's} {<p>'s phone number|the phone number of <p>}?", "The phone number of <p> is <v>.", "Whose phone number is <v>?", lambda r: f"{r.randint(100, 999)}-{r.randint(1000, 9999)}"),
    ("{<p>'s email is <v>.|The email of <p> is <v>.}", "{What is|What's} {<p>'s email{ address|}|the email{ address|} of <p>}?", "The email of <p> is <v>.", "Whose email is <v>?", W.email),
    ("<p> {owns|has} a <v>.", "{What does <p> {own|have}|Which thing does <p> own}?", "<p> owns a <v>.", "Who {owns|has} a <v>?", lambda r: r.choice(W.COLORS) + " " + r.choice(W.OBJECTS)),
    ("<p> {sits|works} in room <v>.", "{Which|What} room {does <p> {sit|work} in|is <p> in}?", "<p> is in room <v>.", "Who {sits|works|is} in room <v>?", lambda r: str(r.randint(1, 999))),
    ("<p>'s {pet|dog|cat} is called <v>.", "{What is|What's} {the name of <p>'s pet|<p>'s pet called}?", "The pet of <p> is called <v>.", "Whose pet is called <v>?", W.first_name),
    ("<p> {arrived|came} at <v>.", "{When|At what time|What time} did <p> {arrive|come}?", "<p> arrived at <v>.", None, W.clock),
    ("{<p>'s ticket number is <v>.|The ticket number of <p> is <v>.}", "{What is|What's} {<p>'s ticket number|the ticket number of <p>}?", "The ticket number of <p> is <v>.", "Who has {the ticket number|ticket number|ticket} <v>?", W.code),
    ("<p> {likes to eat|loves} <v>.", "What does <p> {like to eat|love}?", "<p> likes to eat <v>.", None, lambda r: r.choice(W.FOODS)),
    ("<p> {left|put} the <v> in the <w>.", "{What did <p> leave|Which thing did <p> {leave|put down}}?", "<p> left the <v> in the <w>.", None, lambda r: r.choice(W.OBJECTS)),
    ("<p> {plays|can play} the <v>.", "{What|Which instrument} does <p> play?", "<p> plays the <v>.", "Who plays the <v>?", lambda r: r.choice(["piano", "violin", "flute", "guitar", "drum", "trumpet", "cello", "harp", "organ", "banjo"])),
    ("<p>'s {score|result} {is|was} <v> points.", "{What is|What was|What's} {<p>'s score|the score of <p>}?", "The score of <p> is <v> points.", None, lambda r: str(r.randint(0, 1000))),
    ("<p> {paid|spent} <v> {dollars|euros}.", "How much did <p> {pay|spend}?", "<p> paid <v>.", None, lambda r: str(r.randint(1, 5000))),
]
THINGS = [
    ("The {secret |}{<k>} is {<v>.|: <v>.}", "{What is|What's|What was|Tell me|Do you remember} the {secret |}<k>?", "The <k> is <v>.", lambda r: r.choice(["password", "passphrase", "code word", "magic number", "special number", "key", "access code", "pin", "secret word", "code", "token", "magic word", "secret code", "number"]), W.code),
    ("The <k> is {in|kept in|hidden in|stored in} the <v>.", "Where is the <k>{ kept| hidden|}?", "The <k> is in the <v>.", lambda r: (r.choice(W.ADJECTIVES + W.COLORS) + " " + r.choice(W.OBJECTS)), lambda r: r.choice(W.PLACES)),
    ("The <k> costs <v> {dollars|euros|coins}.", "{How much does the <k> cost|What is the price of the <k>|What does the <k> cost}?", "The <k> costs <v>.", lambda r: (r.choice(W.ADJECTIVES + W.COLORS) + " " + r.choice(W.OBJECTS)), lambda r: str(r.randint(1, 9999))),
    ("The {meeting|event} {about|on} <k> {starts|is|begins} at <v>.", "{When|At what time|What time} {does the meeting {about|on} <k> {start|begin}|is the meeting about <k>}?", "The meeting about <k> is at <v>.", lambda r: r.choice(W.TOPICS + W.NOUNS), W.clock),
    ("{Project|The project} <k> is led by <v>.", "Who {leads|is the leader of|runs} {project|the project} <k>?", "Project <k> is led by <v>.", lambda r: W.invented(r, 1, 3).capitalize(), W.full_name),
    ("{Project|The project} <k> ends on <v>.", "When does {project|the project} <k> end?", "Project <k> ends on <v>.", lambda r: W.invented(r, 1, 3).capitalize(), lambda r: f"{r.choice(W.MONTHS)} {r.randint(1, 28)}"),
    ("The {capital|main city} of <k> is <v>.", "{What is|What's} the {capital|main city} of <k>?", "The capital of <k> is <v>.", lambda r: W.invented(r, 1, 3).capitalize() + r.choice(["", "ia", "land"]), lambda r: W.invented(r, 1, 3).capitalize()),
    ("The {server|machine|host} <k> has the address <v>.", "{What is|What's} the address of {the server |server |}<k>?", "The address of <k> is <v>.", lambda r: W.invented(r, 1, 2) + str(r.randint(1, 99)), lambda r: ".".join(str(r.randint(0, 255)) for _ in range(4))),
    ("{Order|The order} <k> contains <v>.", "What does {order|the order} <k> contain?", "Order <k> contains <v>.", lambda r: str(r.randint(100, 99999)), lambda r: f"{r.randint(2, 90)} {W.plural(r.choice(W.OBJECTS))}"),
    ("{The word|In this language} <k> means <v>.", "What does <k> mean?", "The word <k> means <v>.", lambda r: W.invented(r, 1, 3), lambda r: r.choice(W.ALL_WORDS)),
    ("<k>: <v>", "{What is|What's|Give me|Tell me} {the value of |}<k>?", "<k> is <v>.", lambda r: r.choice([W.invented(r, 1, 2), r.choice(W.NOUNS), r.choice(W.NOUNS) + "_" + r.choice(W.NOUNS), r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS), r.choice(W.VERBS) + "-" + r.choice(W.ANIMALS)]), lambda r: r.choice([W.code(r), r.choice(W.ALL_WORDS), W.city(r), str(r.randint(0, 99999))])),
]


def sentence(rng):
    """A sentence of filler that answers no question."""
    r = rng.random()
    a, o, o2, p = rng.choice(W.ADJECTIVES), rng.choice(W.OBJECTS + W.ANIMALS), rng.choice(W.OBJECTS + W.NOUNS), rng.choice(W.PLACES)
    if r < 0.3:
        return f"The {a} {o} {rng.choice(W.VERBS_PAST)} the {rng.choice(W.ADJECTIVES)} {o2} near the {p}."
    if r < 0.45:
        return f"{rng.choice(['Every', 'Each', 'One', 'Some'])} {rng.choice(['morning', 'evening', 'day', 'week', 'winter', 'summer'])} the {rng.choice(W.JOBS)} {rng.choice(W.VERBS_PAST)} {rng.choice(['a', 'the', 'another'])} {o2} in the {p}."
    if r < 0.55:
        return f"It was a {a} {rng.choice(['day', 'night', 'morning', 'year'])} in the {p}, and the {o} {rng.choice(W.VERBS_PAST)} {rng.choice(['nothing', 'everything', 'a ' + o2])}."
    if r < 0.65:
        return f"{rng.choice(['Many', 'Few', 'Most', 'Some'])} {W.plural(rng.choice(W.ANIMALS))} {rng.choice(['like', 'need', 'avoid', 'follow', 'see', 'find'])} {rng.choice(W.ADJECTIVES)} {W.plural(rng.choice(W.OBJECTS))}."
    if r < 0.8:
        n = rng.randint(4, 14)
        s = " ".join(rng.choice(W.COMMON) for _ in range(n))
        return s[0].upper() + s[1:] + "."
    if r < 0.9:
        s = " ".join(W.invented(rng, 1, 3) for _ in range(rng.randint(4, 10)))
        return s[0].upper() + s[1:] + "."
    return f"There {rng.choice(['is', 'was'])} a {a} {o} {rng.choice(['on', 'under', 'behind', 'beside', 'in'])} the {rng.choice(W.ADJECTIVES)} {p}."


STOCK = ["The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.", "Nothing happened here.", "The quick brown fox jumps over the lazy dog.", "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor.",
         "This line is only here to fill space.", "All work and no play makes a dull day.", "We walked along the river and talked about the weather."]


def log_line(rng):
    return f"[{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}] {rng.choice(['INFO', 'WARN', 'DEBUG'])} {rng.choice(W.NOUNS)}: {rng.choice(W.VERBS_PAST)} {rng.randint(0, 999)} {rng.choice(W.NOUNS)}s"


def filler(rng, words):
    """About that many words of text without facts, in a style that stays the same."""
    kind = rng.random()
    out, n = [], 0
    stock = rng.choice(STOCK) if rng.random() < 0.5 else " ".join(sentence(rng) for _ in range(rng.randint(1, 4)))
    while n < words:
        line = sentence(rng) if kind < 0.65 else stock if kind < 0.85 else log_line(rng) + "\n"
        out.append(line)
        n += line.count(" ") + 1
    return out


def happening(rng):
    """Somebody did something somewhere: any verb, thing and place, asked for by who or where."""
    verb = rng.choice(W.VERBS_PAST)
    thing = rng.choice(["the", "a", "the", "one"]) + " " + rng.choice(W.ADJECTIVES + W.COLORS) + " " + rng.choice(W.OBJECTS + W.ANIMALS + W.NOUNS)
    who = rng.choice([W.first_name(rng), W.full_name(rng), "the " + rng.choice(W.JOBS), "the " + rng.choice(W.ADJECTIVES) + " " + rng.choice(W.ANIMALS)])
    place = rng.choice(W.PLACES)
    says = f"{who[0].upper() + who[1:]} {verb} {thing} in the {place}."
    if rng.random() < 0.5:
        return (verb, thing), says, f"Who {verb} {thing}?", says, who
    return (verb, thing), says, f"{rng.choice(['Where was it that', 'In which place was it that'])} {who} {verb} {thing}?", says, place


def fact(rng, used):
    """A fact as (statement, question, answer, value, key) with a key not used before."""
    for _ in range(50):
        if rng.random() < 0.5:
            found = scene(rng, used)
            if found:
                return (*found, {})
            continue
        if rng.random() < 0.1:
            key, says, question, answer, value = happening(rng)
            if key in used:
                continue
            used.add(key)
            return says, question, answer, value, {}
        if rng.random() < 0.62:
            says, asks, answer, back, maker = rng.choice(FACTS)
            p = W.first_name(rng) if rng.random() < 0.6 else W.full_name(rng)
            if (asks, p) in used:
                continue
            v, w = maker(rng), rng.choice(W.PLACES)
            used.add((asks, p))
            vals = {"p": p, "v": v, "w": w}
            question, want = asks, v
            if back and rng.random() < 0.2 and (back, v) not in used:
                question, want = back, p
            if (back, v) in used and question == back:
                continue
            used.add((back, v))
            return fill(expand(rng, says), vals), question, fill(answer, vals), want, vals
        says, asks, answer, key, maker = rng.choice(THINGS)
        k = key(rng)
        if (asks, k) in used:
            continue
        used.add((asks, k))
        vals = {"k": k, "v": maker(rng)}
        return fill(expand(rng, says), vals), asks, fill(answer, vals), vals["v"], vals
    return None


ASK_FRONT = ["<t> <q>", "<t> <q>", "<t>\n<q>", "<t> {Question: |So, |Now tell me: |}<q>", "{Read|Here is|This is} {the text|a text|this text|some text|a document|my notes}{ and answer| and answer my questions| carefully|}:\n\n<t>\n\n<q>", "<t>\n\n<q>", "<t>\n\nQuestion: <q>", "<q>\n\n<t>", "{Use|Use only} {the text|this text|these notes|the context} to answer.\n\n<t>\n\n<q>",
             "{Remember|Please remember|Note|Keep in mind} {these facts|the following|this}: <t>\n<q>", "{Context|Text|Document|Notes}: <t>\n\n{Question|Q}: <q>", "{Based on|According to} {the text|these notes} below, answer: <q>\n\n<t>"]
NOT_SAID = "The text does not say that."


def document(rng, num_words):
    """A text of about num_words words, its facts spread through it."""
    dense = rng.random()
    num_facts = max(1, int(num_words / 9)) if dense < 0.45 else rng.randint(1, 4) if dense < 0.7 else max(1, int(num_words / rng.randint(20, 80)))
    used, facts = set(), []
    for _ in range(min(num_facts, 260)):
        f = fact(rng, used)
        if f:
            facts.append(f)
    total = sum(f[0].count(" ") + 1 for f in facts)
    lines = filler(rng, num_words - total) if num_words > total else []
    for f in facts:
        lines.insert(rng.randint(0, len(lines)), f[0])
    sep = rng.choice([" ", " ", " ", "\n", "\n- "])
    text = sep.join(line.strip() if sep != " " else line for line in lines)
    if sep == "\n- ":
        text = "- " + text
    return text.strip(), facts, used


def question(rng, facts, used):
    """A question on the facts, or now and then one they do not answer: (text, answer, value, quote)."""
    if rng.random() < 0.06:
        f = fact(rng, used)
        if f:
            return ask(rng, f[1], **f[4]), NOT_SAID, "does not say", ""
    f = rng.choice(facts)
    return ask(rng, f[1], **f[4]), f[2], f[3], f[0]


def thought(quote):
    return f'The text says: "{quote}"' if quote else "I find nothing about that in the text."


def recall(rng, effort, num_words=None):
    """One document and one question."""
    num_words = num_words or (rng.randint(4, 40) if rng.random() < 0.35 else int(10 * 40 ** rng.random()))
    text, facts, used = document(rng, num_words)
    q, final, value, quote = question(rng, facts, used)
    short = value if value != "does not say" else NOT_SAID
    if rng.random() < 0.08:  # the text is in the developer's instructions
        lead = rng.choice(["", "", "You are a helpful assistant.\n\n", "Answer from these notes.\n\n", "Facts:\n", "Know this: ", "Use this text to answer.\n\n"])
        return Sample(q, final, ("text", value), thought(quote), short, instructions=lead + text, styled=False)
    user = fill(expand(rng, rng.choice(ASK_FRONT)), {"t": text, "q": q})
    return Sample(user, final, ("text", value), thought(quote), short)


def recall_turns(rng, num_words, num_turns):
    """One long document and many questions, for a conversation in which each is answered directly."""
    text, facts, used = document(rng, num_words)
    turns = []
    for i in range(num_turns):
        q, final, value, quote = question(rng, facts, used)
        user = fill(expand(rng, rng.choice(ASK_FRONT)), {"t": text, "q": q}) if i == 0 else q
        turns.append(Sample(user, final, ("text", value), thought(quote), value, styled=False))
    return turns
