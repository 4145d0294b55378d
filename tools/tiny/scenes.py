"""Facts of several parts, as people state them, each with questions on its parts.

A scene is (statements, questions, makers): a question is (wordings, answer, part asked for). `<name>` stands
for a part. Questions of one scene never meet the same question of another in a text (see `scene`).
"""
from phrasing import expand, fill
from tasks_math import spoken
import words as W

KIN = ["brother", "sister", "mother", "father", "boss", "doctor", "teacher", "neighbor", "uncle", "aunt", "cousin", "friend", "son", "daughter", "coach", "wife", "husband", "manager", "assistant"]
SUBJECTS = ["math", "physics", "chemistry", "history", "music", "biology", "art", "geography", "French", "German", "English", "Spanish", "sports", "drama"]
LANGUAGES = ["French", "German", "Spanish", "Italian", "English", "Dutch", "Japanese", "Polish", "Turkish", "Greek", "Arabic", "Korean", "Chinese", "Swedish", "Portuguese", "Hindi"]
DRINKS = ["tea", "coffee", "water", "juice", "milk", "lemonade", "wine", "cola", "cocoa", "beer"]


def company(r):
    return W.invented(r, 1, 3).capitalize() + r.choice(["", " Ltd", " Labs", " Works", " Foods", " Motors", " Inc"])


def things(r):
    return W.plural(r.choice(W.FRUITS + W.OBJECTS + W.ANIMALS))


def amount(r):
    n = r.randint(2, r.choice([20, 100, 5000]))
    return spoken(n) if n < 100 and r.random() < 0.25 else str(n)


def spot(r):
    """A place of one to four words."""
    x = r.random()
    if x < 0.4:
        return r.choice(W.PLACES + W.OBJECTS)
    if x < 0.75:
        return r.choice(W.ADJECTIVES + W.COLORS) + " " + r.choice(W.PLACES + W.OBJECTS)
    return r.choice(W.ADJECTIVES) + " " + r.choice(W.NOUNS + W.OBJECTS + ["oak", "pine", "stone", "river", "corner"]) + " " + r.choice(W.PLACES + W.OBJECTS + ["tree", "house", "wall", "gate"])


def item(r):
    """A thing of one to three words."""
    x = r.random()
    if x < 0.45:
        return r.choice(W.OBJECTS + W.NOUNS + W.FRUITS + W.FOODS + W.ANIMALS + ["treasure", "money", "secret", "gift", "keys", "letter", "cake"])
    if x < 0.8:
        return r.choice(W.ADJECTIVES + W.COLORS) + " " + r.choice(W.OBJECTS + W.NOUNS + W.ANIMALS)
    return r.choice(W.NOUNS + W.OBJECTS) + " " + r.choice(W.OBJECTS + W.NOUNS)


def measure(r):
    return r.choice([f"{r.randint(2, 999)} {r.choice(['million', 'thousand', 'percent', 'km', 'kg', 'dollars', 'euros', 'hours', 'days', 'people', 'pages', 'meters', 'points'])}", str(r.randint(1, 9999)), W.code(r), W.full_name(r), W.iso_date(r), r.choice(W.ADJECTIVES), r.choice(W.COLORS)])


VERBS = [pair.split("/") for pair in """hid/hide found/find bought/buy lost/lose left/leave put/put saw/see met/meet took/take made/make wrote/write kept/keep sold/sell built/build painted/paint fixed/fix cleaned/clean
dropped/drop opened/open visited/visit cooked/cook ate/eat drew/draw read/read heard/hear wore/wear carried/carry stole/steal threw/throw broke/break caught/catch repaired/repair planted/plant baked/bake sent/send
brought/bring received/receive borrowed/borrow watched/watch chose/choose ordered/order placed/place stored/store buried/bury washed/wash checked/check needed/need wanted/want loved/love won/win paid/pay
forgot/forget parked/park studied/study discovered/discover started/start finished/finish used/use collected/collect counted/count""".split()]


def deed(rng, used):
    """Somebody did something somewhere at some time: any verb, thing and place."""
    past, base = rng.choice(VERBS)
    p, o, l = person(rng), item(rng), spot(rng)
    article = rng.choice(["the", "the", "a", "his", "her", "their", "some", "two", "three", "five"]) if not o.endswith("s") else rng.choice(["the", "some", "many"])
    w = rng.choice(["in", "on", "under", "behind", "near", "at", "inside", "beside", "next to", "by"])
    t = rng.choice(["", "", " on " + when(rng), " yesterday", " last " + rng.choice(["week", "year", "summer", "night"]), " at " + clock(rng), " in " + year(rng)])
    keys = {f"{p} {past}", f"{past} {o}", f"{w} {l}"}
    if keys & used:
        return None
    used |= keys
    says = rng.choice([f"{p} {past} {article} {o} {w} the {l}{t}.", f"{p} {past} {article} {o} {w} the {l}{t}.", f"{p} went to the {l}{t} and {past} {article} {o}."])
    kind = rng.randrange(4)
    if kind == 0:
        q, v = f"What did {p} {base}{rng.choice(['', '', ' ' + w + ' the ' + l if ' went ' not in says else ''])}?", o
    elif kind == 1:
        q, v = f"Where did {p} {base} the {o}?", l
    elif kind == 2 or not t:
        q, v = f"Who {past} the {o}?", p
    else:
        q, v = f"When did {p} {base} the {o}?", t.strip().split(" ", 1)[-1] if t.startswith((" on", " at", " in")) else t.strip()
    says = says[0].upper() + says[1:]
    return says, q, says, v


def person(r):
    x = r.random()
    return W.first_name(r) if x < 0.5 else W.full_name(r) if x < 0.72 else r.choice(["Mr. ", "Mrs. ", "Ms. ", "Dr. "]) + W.last_name(r) if x < 0.85 else "the " + r.choice(W.JOBS)


def clock(r):
    return r.choice([W.clock(r), f"{r.randint(1, 12)}{r.choice(['am', 'pm', ' am', ' pm'])}", f"{r.randint(1, 12)}:{r.randint(1, 11) * 5:02d} {r.choice(['am', 'pm'])}"])


def when(r):
    return r.choice([r.choice(W.DAYS), f"{r.choice(W.MONTHS)} {r.randint(1, 28)}", f"{r.randint(1, 28)} {r.choice(W.MONTHS)}", W.iso_date(r)])


def color(r):
    return r.choice(W.COLORS)


def thing(r):
    return r.choice(W.OBJECTS + W.ANIMALS + W.FRUITS)


def place(r):
    return r.choice(W.PLACES)


def year(r):
    return str(r.randint(1700, 2030))


def small(r):
    return str(r.randint(1, 40))


def title(r):
    return "The " + r.choice(W.ADJECTIVES + W.COLORS).capitalize() + " " + r.choice(W.OBJECTS + W.PLACES + W.ANIMALS).capitalize()


def of(values):
    return lambda r: r.choice(values)


SCENES = [
    (["{We|Our shop|The office|The shop|The museum} {open|opens} at <t> and {close|closes} at <u>."], [("{When|At what time|What time} do {you|they} open?", "It opens at <t>.", "t"), ("{When|At what time|What time} do {you|they} close?", "It closes at <u>.", "u")], dict(t=clock, u=clock)),
    (["The <x> <k> has a <a> of <v>.", "The <a> of the <x> <k> is <v>.", "{At|In} the <x> <k> the <a> is <v>."], [("{What is|What's|How {big|high|large} is} the <a>{ of the <x> <k>| of the <k>|}?", "The <a> is <v>.", "v")], dict(x=lambda r: W.invented(r, 1, 3).capitalize() if r.random() < .6 else W.city(r), k=of(["project", "company", "hotel", "ship", "team", "school", "bank", "station", "plan", "product", "machine"]), a=of(["budget", "price", "size", "length", "capacity", "speed", "goal", "deadline", "limit", "cost", "rate", "weight", "color", "code", "owner", "manager", "leader", "address"]), v=measure)),
    (["{Its|The} {manager|leader|boss|owner|captain|chief} is <p>."], [("Who is the {manager|leader|boss|owner|captain|chief}?", "It is <p>.", "p")], dict(p=person)),
    (["<p> is <n> years old and {lives in|comes from|is from} <c>.", "<p>, {aged |}<n>, {lives in|comes from} <c>."], [("How old is <p>?", "<p> is <n> years old.", "n"), ("Where {does <p> {live|come from}|is <p> from}?", "<p> lives in <c>.", "c"), ("Who {lives in|comes from|is from} <c>?", "<p> lives in <c>.", "p")], dict(p=W.first_name, n=lambda r: str(r.randint(3, 99)), c=lambda r: W.city(r) if r.random() < .7 else r.choice(W.COUNTRIES))),
    (["<p> {likes|loves|prefers|hates|enjoys} <x>{ very much|}."], [("What does <p> {like|love|prefer|hate|enjoy}?", "It is <x>.", "x"), ("Who {likes|loves|prefers|hates|enjoys} <x>?", "It is <p>.", "p")], dict(p=person, x=lambda r: r.choice(W.FOODS + W.FRUITS + W.TOPICS + [W.plural(r.choice(W.ANIMALS))]))),
    (["<p> {has|owns|bought} a <c> <o>.", "<p> got a <c> <o> {yesterday|last week|as a gift}."], [("Who {has|owns|got} {the|a} <o>?", "<p> has the <o>.", "p"), ("What color is {<p>'s <o>|the <o>{ of <p>|}}?", "The <o> is <c>.", "c"), ("What does <p> {have|own}?", "<p> has a <c> <o>.", "o")], dict(p=person, c=color, o=thing)),
    (["The <e> with <p> is at <t> in <l>.", "<p> has a <e> at <t> in <l>.", "There is a <e> with <p> in <l> at <t>."], [("Where is the <e>{ with <p>|}?", "The <e> is in <l>.", "l"), ("{When|At what time|What time} is the <e>{ with <p>|}?", "The <e> is at <t>.", "t"), ("{Who is the <e> with|With whom is the <e>}?", "The <e> is with <p>.", "p")],
     dict(e=of(["meeting", "lunch", "call", "interview", "appointment", "dinner", "lesson", "class", "party", "review", "exam", "talk"]), p=person, t=clock, l=lambda r: r.choice([f"room {r.randint(1, 400)}", "the " + place(r), "building " + r.choice("ABCDEF"), W.city(r)]))),
    (["<p> {flew|traveled|went|drove|moved|sailed} from <a> to <b> {on|in the week of} <d>.", "On <d>, <p> {flew|went|traveled|drove} from <a> to <b>."], [("Where did <p> {fly|go|travel|drive|move}{ to|}?", "<p> went to <b>.", "b"), ("Where did <p> {come|start} from?", "<p> came from <a>.", "a"), ("When did <p> {fly|go|travel|leave}{ to <b>|}?", "<p> went on <d>.", "d"), ("Who {flew|went|traveled} to <b>?", "<p> went to <b>.", "p")], dict(p=person, a=W.city, b=W.city, d=when)),
    (["<p> {bought|ordered|purchased|picked up} <n> <x> for <m> {dollars|euros} {at|in} the <l>.", "{At|In} the <l>, <p> bought <n> <x> and paid <m> {dollars|euros}."], [("What did <p> buy?", "<p> bought <n> <x>.", "x"), ("How many <x> did <p> {buy|order|get}?", "<p> bought <n> <x>.", "n"), ("How much did <p> pay{ for the <x>|}?", "<p> paid <m>.", "m"), ("Where did <p> buy {the <x>|them}?", "<p> bought the <x> in the <l>.", "l"), ("Who bought {the |}<x>?", "<p> bought <n> <x>.", "p")], dict(p=person, n=amount, x=things, m=lambda r: str(r.randint(1, 900)), l=place)),
    (["<p>'s <k> is {called |named |}<q>.", "The <k> of <p> is {called |named |}<q>.", "<q> is the <k> of <p>."], [("Who is {<p>'s <k>|the <k> of <p>}?", "The <k> of <p> is <q>.", "q"), ("What is {the name of <p>'s <k>|<p>'s <k> called}?", "The <k> of <p> is <q>.", "q"), ("Whose <k> is <q>?", "<q> is the <k> of <p>.", "p")], dict(p=W.first_name, k=of(KIN), q=lambda r: W.full_name(r) if r.random() < .4 else W.first_name(r))),
    (["<p> is married to <q>."], [("Who is <p> married to?", "<p> is married to <q>.", "q"), ("Who is married to <q>?", "<p> is married to <q>.", "p")], dict(p=W.full_name, q=W.first_name)),
    (["The <o> is {<w>} the <l>.", "{You will find|I put|They keep|She left|He hid} the <o> <w> the <l>."], [("Where is the <o>?", "The <o> is <w> the <l>.", "l"), ("What is <w> the <l>?", "The <o> is <w> the <l>.", "o")], dict(o=lambda r: r.choice(["", r.choice(W.ADJECTIVES) + " ", color(r) + " "]) + thing(r), w=of(["in", "on", "under", "behind", "near", "beside", "next to", "inside", "above"]), l=lambda r: r.choice([place(r), r.choice(W.OBJECTS), r.choice(W.COLORS) + " " + r.choice(W.OBJECTS)]))),
    (["The <c> <o> belongs to <p>.", "The owner of the <c> <o> is <p>."], [("{Who does the <c> <o> belong to|Who owns the <c> <o>|Whose is the <c> <o>|Who is the owner of the <c> <o>}?", "The <c> <o> belongs to <p>.", "p"), ("What belongs to <p>?", "The <c> <o> belongs to <p>.", "o")], dict(c=lambda r: r.choice(W.COLORS + W.ADJECTIVES), o=thing, p=person)),
    (["<p> has a <a> {called|named} <q>{, who is <n> years old|}.", "<p>'s <a> is {called|named} <q>."], [("What is {the name of <p>'s <a>|<p>'s <a> called|<p>'s <a> named}?", "The <a> of <p> is called <q>.", "q"), ("{What kind of animal|What animal|What} is <q>?", "<q> is a <a>.", "a"), ("Who has {the|a} <a>?", "<p> has a <a>.", "p")], dict(p=W.first_name, a=of(W.ANIMALS), q=W.first_name, n=small)),
    (["<c> was founded {by <p> in <y>|in <y> by <p>} in <l>.", "In <y>, <p> founded <c> in <l>.", "<p> started <c> in <l> in <y>."], [("Who {founded|started} <c>?", "<p> founded <c>.", "p"), ("{When|In which year|In what year} was <c> {founded|started}?", "<c> was founded in <y>.", "y"), ("Where was <c> {founded|started}?", "<c> was founded in <l>.", "l")], dict(c=company, p=W.full_name, y=year, l=W.city)),
    (["The <x> {tower|bridge|tunnel|wall|mountain} is <n> meters {tall|long|high}.", "{Mount|Lake|Castle} <x> measures <n> meters."], [("How {tall|long|high|big} is {the |}<x>?", "<x> measures <n> meters.", "n")], dict(x=lambda r: W.invented(r, 1, 3).capitalize(), n=lambda r: str(r.randint(5, 9000)))),
    (["The <v> to <b> {leaves|departs} at <t> from {platform|gate|stop} <n>.", "At <t> the <v> to <b> leaves from {platform|gate|stop} <n>."], [("{When|At what time|What time} does the <v> to <b> {leave|depart|go}?", "The <v> to <b> leaves at <t>.", "t"), ("{From {which|what} {platform|gate|stop} does|Where does} the <v> to <b> {leave|depart}{ from|}?", "The <v> to <b> leaves from <n>.", "n"), ("Where does the <v> at <t> go{ to|}?", "The <v> at <t> goes to <b>.", "b")], dict(v=of(["bus", "train", "ferry", "plane", "tram", "boat"]), b=W.city, t=W.clock, n=small)),
    (["A ticket to <b> costs <m> {euros|dollars}.", "The {fare|trip|flight} to <b> is <m> {euros|dollars}."], [("{How much is {a|the} {ticket|trip} to <b>|What does {a|the} {ticket|trip} to <b> cost|How much does {a|the} ticket to <b> cost}?", "A ticket to <b> costs <m>.", "m")], dict(b=W.city, m=lambda r: str(r.randint(2, 990)))),
    (["The <l> {opens at <t> and closes at <u>|is open from <t> to <u>}."], [("When does the <l> open?", "The <l> opens at <t>.", "t"), ("When does the <l> close?", "The <l> closes at <u>.", "u")], dict(l=place, t=clock, u=clock)),
    (["<p> teaches <s> {at|in} <c>.", "At <c>, <p> is the <s> teacher."], [("{What|Which subject} does <p> teach?", "<p> teaches <s>.", "s"), ("Where does <p> teach?", "<p> teaches at <c>.", "c"), ("Who teaches <s>?", "<p> teaches <s>.", "p")], dict(p=person, s=of(SUBJECTS), c=lambda r: W.invented(r, 1, 2).capitalize() + r.choice([" School", " College", " University", " Academy"]))),
    (["<p> speaks <a>{ fluently| well| at home|}.", "<p> is learning <a>."], [("{What|Which} language does <p> {speak|know|learn}?", "<p> speaks <a>.", "a"), ("Who speaks <a>?", "<p> speaks <a>.", "p")], dict(p=person, a=of(LANGUAGES))),
    (["<p> {ordered|had|ate} <f> {with|and} <d>{ for {lunch|dinner|breakfast}|}."], [("What did <p> {order|eat|have}{ to eat|}?", "<p> had <f> and <d>.", "f"), ("What did <p> drink?", "<p> drank <d>.", "d"), ("Who {ordered|had|ate} {the |}<f>?", "<p> had <f>.", "p")], dict(p=person, f=of(W.FOODS), d=of(DRINKS))),
    (["<p> drives a <c> <b>.", "<p>'s car is a <c> <b>."], [("{What|Which} car does <p> drive?", "<p> drives a <c> <b>.", "b"), ("What color is <p>'s car?", "The car of <p> is <c>.", "c"), ("Who drives {a|the} <b>?", "<p> drives a <b>.", "p")], dict(p=person, c=color, b=lambda r: r.choice(["Toyota", "Ford", "Fiat", "Honda", "Volvo", "Skoda", "Mazda", "Opel", "Tesla", "Nissan", "Audi", "Kia", "Seat", W.invented(r, 1, 2).capitalize()]))),
    (["<a> {beat|defeated} <b> <n> to <m>{ on <d>|}.", "{The final score was|The game ended} <n> to <m> for <a> against <b>."], [("Who {won|won the game|won the match|was the winner}?", "<a> won <n> to <m>.", "a"), ("Who lost{ the game| the match|}?", "<b> lost <n> to <m>.", "b"), ("What was the {score|final score|result}?", "The score was <n> to <m>.", "n")], dict(a=lambda r: r.choice([W.city(r), "the " + W.plural(r.choice(W.ANIMALS)).capitalize()]), b=lambda r: r.choice([W.city(r), "the " + W.plural(r.choice(W.ANIMALS)).capitalize()]), n=lambda r: str(r.randint(3, 99)), m=lambda r: str(r.randint(0, 99)), d=when)),
    (["The {winner|champion} of the <e> {is|was} <p>.", "<p> won the <e>."], [("Who won the <e>?", "<p> won the <e>.", "p"), ("What did <p> win?", "<p> won the <e>.", "e")], dict(e=lambda r: r.choice(["chess", "tennis", "spelling", "cooking", "math", "singing", "running", "swimming", "dance", "poetry"]) + " " + r.choice(["contest", "race", "cup", "prize", "tournament"]), p=person)),
    (["{The book |}\"<b>\" was written by <p> in <y>.", "<p> wrote \"<b>\" in <y>.", "In <y> <p> {published|wrote} \"<b>\"."], [("Who wrote {the book |}\"<b>\"?", "<p> wrote \"<b>\".", "p"), ("When was {the book |}\"<b>\" {written|published}?", "\"<b>\" was written in <y>.", "y"), ("What did <p> write?", "<p> wrote \"<b>\".", "b")], dict(b=title, p=W.full_name, y=year)),
    (["{The recipe needs|You need|Take|Add} <n> grams of <f>."], [("How {much|many grams of} <f> {do I need|does the recipe need|is needed}?", "The recipe needs <n> grams of <f>.", "n"), ("What do I need <n> grams of?", "You need <n> grams of <f>.", "f")], dict(n=lambda r: str(r.randint(5, 900)), f=of(W.FOODS))),
    (["Chapter <n> is about <t>.", "The topic of chapter <n> is <t>."], [("What is chapter <n> about?", "Chapter <n> is about <t>.", "t"), ("{Which|What} chapter is about <t>?", "Chapter <n> is about <t>.", "n")], dict(n=small, t=of(W.TOPICS))),
    (["The <l> {holds|contains|has|stores} <n> <x>.", "There are <n> <x> in the <l>."], [("How many <x> {are {there |}in the <l>|does the <l> {hold|have|contain}}?", "There are <n> <x> in the <l>.", "n"), ("What is in the <l>?", "There are <n> <x> in the <l>.", "x"), ("Where are the <x>?", "The <x> are in the <l>.", "l")], dict(l=place, n=amount, x=things)),
    (["The {code|password|PIN|wifi password|key code} {for|of} the <l> is <v>.", "To {enter|open|unlock} the <l> use the {code|password} <v>."], [("{What is|What's|Tell me} the {code|password|PIN} {for|of} the <l>?", "The code for the <l> is <v>.", "v"), ("What is {the code |}<v> for?", "The code <v> is for the <l>.", "l")], dict(l=lambda r: r.choice(["", r.choice(W.ADJECTIVES + W.COLORS) + " "]) + r.choice(W.PLACES + ["safe", "door", "box", "locker", "server", "vault"]), v=W.code)),
    (["<p> is {the |}<j> {at|of|for} <c>.", "<c> hired <p> as {a |}<j>.", "The <j> {at|of} <c> is <p>."], [("Who is the <j> {at|of} <c>?", "<p> is the <j> of <c>.", "p"), ("Where does <p> work?", "<p> works at <c>.", "c"), ("What is <p>'s {job|role|position}?", "<p> is the <j> of <c>.", "j")], dict(p=W.full_name, j=lambda r: r.choice(["CEO", "manager", "director", "president", "head of sales", "secretary", "captain", "chief editor", r.choice(W.JOBS)]), c=company)),
    (["It was <n> degrees and <c> in <b> on <d>.", "On <d> <b> had <n> degrees and it was <c>."], [("How {warm|cold|hot} was it in <b>?", "It was <n> degrees in <b>.", "n"), ("{How was the weather|What was the weather like} in <b>?", "It was <n> degrees and <c> in <b>.", "c"), ("Where was it <n> degrees?", "It was <n> degrees in <b>.", "b")], dict(n=lambda r: str(r.randint(-20, 42)), c=of(["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "stormy", "clear"]), b=W.city, d=when)),
    (["<p> gave {the|a} <o> to <q>.", "<q> {got|received} {the|a} <o> from <p>."], [("Who gave {the|a} <o> to <q>?", "<p> gave the <o> to <q>.", "p"), ("{Who did <p> give the <o> to|Who got the <o>|To whom did <p> give the <o>}?", "<p> gave the <o> to <q>.", "q"), ("What did <p> give to <q>?", "<p> gave the <o> to <q>.", "o")], dict(p=W.first_name, o=thing, q=W.first_name)),
    (["<p> is <a> than <q>."], [("Who is <a> than <q>?", "<p> is <a> than <q>.", "p"), ("{Who is <p> <a> than|Than whom is <p> <a>}?", "<p> is <a> than <q>.", "q")], dict(p=W.first_name, q=W.first_name, a=of(["older", "taller", "faster", "richer", "stronger", "younger", "smaller", "slower", "wiser"]))),
    (["<p> {will|is going to|wants to|plans to|promised to|has to|must} <v> the <o> {on|by} <d>."], [("Who {will|is going to|wants to|plans to|has to|must} <v> the <o>?", "<p> will <v> the <o>.", "p"), ("When {will|must|does} <p> {have to |}<v> the <o>?", "<p> will <v> the <o> on <d>.", "d"), ("What {will|must} <p> do?", "<p> will <v> the <o>.", "o")], dict(p=person, v=of(W.VERBS), o=lambda r: r.choice(W.OBJECTS + W.NOUNS), d=when)),
    (["Flight <f> {lands|arrives} at <t> at gate <g>.", "Gate <g> is for flight <f>, which {arrives|lands} at <t>."], [("When does flight <f> {land|arrive}?", "Flight <f> arrives at <t>.", "t"), ("{At which gate does flight <f> {land|arrive}|What is the gate of flight <f>}?", "Flight <f> is at gate <g>.", "g")], dict(f=lambda r: "".join(r.choice("ABCDEFGHKLMSTU") for _ in range(2)) + str(r.randint(10, 9999)), t=W.clock, g=lambda r: r.choice("ABCDE") + str(r.randint(1, 60)))),
    (["The <k> <i> {is assigned to|belongs to|was given to} <p>.", "<p> has the <k> <i>."], [("{Who is {the |}<k> <i> assigned to|Who has {the |}<k> <i>|Whose {<k> |}is <i>}?", "The <k> <i> belongs to <p>.", "p"), ("{Which|What} <k> does <p> have?", "<p> has the <k> <i>.", "i")], dict(k=of(["invoice", "ticket", "case", "task", "bug", "issue", "order", "seat", "locker", "parcel"]), i=lambda r: r.choice(["", "#", "A-", "TK-"]) + str(r.randint(10, 99999)), p=person)),
    (["The <a> of <x> is <v>.", "<x> has a <a> of <v>.", "<x>'s <a> is <v>.", "<x>: <a> <v>."], [("{What is|What's|Tell me|Give me} {the <a> of <x>|<x>'s <a>}?", "The <a> of <x> is <v>.", "v"), ("{Which|What} has {the|a} <a> {of |}<v>?", "<x> has the <a> <v>.", "x")], dict(a=lambda r: r.choice([r.choice(W.NOUNS), r.choice(["population", "height", "weight", "length", "width", "depth", "speed", "temperature", "price", "area", "age", "size", "rank", "symbol", "nickname", "motto", "capital", "currency", "mascot", "serial number", "model", "birthplace", "address", "favorite food", "favorite book"])]), x=lambda r: r.choice([W.invented(r, 1, 3).capitalize(), W.full_name(r), W.city(r), "the " + r.choice(W.OBJECTS + W.PLACES)]), v=lambda r: r.choice([W.code(r), str(r.randint(1, 99999)), r.choice(W.ALL_WORDS), W.full_name(r), W.invented(r, 1, 3).capitalize()]))),
]


def scene(rng, used):
    """A scene as (statement, question, answer, value), or None if its questions are taken in this text."""
    if rng.random() < 0.25:
        return deed(rng, used)
    says, questions, makers = rng.choice(SCENES)
    values = {k: m(rng) for k, m in makers.items()}
    keys = {fill(q, values) for q, _, _ in questions}
    if keys & used or len(set(values.values())) < len(values):
        return None
    used |= keys
    wording, answer, part = rng.choice(questions)
    says = fill(expand(rng, rng.choice(says)), values)
    answer = fill(answer, values)
    return says[0].upper() + says[1:], fill(wording, values), answer[0].upper() + answer[1:], values[part]
