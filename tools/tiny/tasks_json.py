"""Text to JSON: by a schema in the developer message (`# Response Formats`) or by keys named in the question."""
import json

from phrasing import ask, expand, fill
from sample import Sample
import tasks_math as M
import words as W


def choice_of(*values):
    return lambda r: r.choice(values)


def whole(low, high):
    return lambda r: r.randint(low, high)


def decimal(low, high, places):
    return lambda r: round(r.uniform(low, high), places)


# field: (keys, words, schema type, value maker, phrases); in a phrase <s> is the subject, <v> the value
PERSON = [
    (["age", "years", "age_years"], "age", "integer", whole(3, 99), ["<s> is <v> years old.", "<s>, age <v>, is here.", "The age of <s> is <v>."]),
    (["city", "town", "home", "location", "lives_in"], "city", "string", W.city, ["<s> lives in <v>.", "<s> is from <v>.", "The home of <s> is <v>."]),
    (["job", "occupation", "profession", "role", "works_as"], "job", "string", lambda r: r.choice(W.JOBS), ["<s> works as a <v>.", "<s> is a <v>.", "The job of <s>: <v>."]),
    (["email", "mail", "email_address"], "email", "string", W.email, ["The email is <v>.", "Write to <v>.", "<s> can be reached at <v>."]),
    (["phone", "phone_number", "tel"], "phone number", "string", lambda r: f"{r.randint(100, 999)}-{r.randint(1000, 9999)}", ["The phone number is <v>.", "Call <v>."]),
    (["favorite_color", "color"], "favorite color", "string", lambda r: r.choice(W.COLORS), ["The favorite color of <s> is <v>.", "<s> likes the color <v>."]),
    (["country", "nation"], "country", "string", lambda r: r.choice(W.COUNTRIES), ["<s> comes from <v>.", "<s> was born in <v>."]),
    (["height_cm", "height"], "height", "integer", whole(90, 210), ["<s> is <v> cm tall.", "The height is <v> cm."]),
    (["married", "is_married"], "married", "boolean", choice_of(True, False), ["<s> is <!not >married."]),
    (["student", "is_student"], "student", "boolean", choice_of(True, False), ["<s> is <!not >a student."]),
    (["hobbies", "interests", "likes"], "hobbies", "array", lambda r: r.sample(["chess", "reading", "cooking", "sailing", "music", "hiking", "running", "painting", "cycling", "dancing", "fishing", "swimming", "yoga", "skiing", "singing"], r.randint(1, 4)), ["<s> likes <v>.", "Hobbies: <v>."]),
]
PRODUCT = [
    (["price", "cost", "unit_price"], "price", "number", decimal(0.5, 999, 2), ["<s> costs <v> dollars.", "The price is <v>.", "It sells for <v> euros."]),
    (["quantity", "amount", "count", "stock"], "quantity", "integer", whole(0, 500), ["There are <v> in stock.", "The quantity is <v>.", "We have <v> of them."]),
    (["color", "colour"], "color", "string", lambda r: r.choice(W.COLORS), ["The color is <v>.", "It is <v>."]),
    (["brand", "maker", "manufacturer"], "brand", "string", lambda r: W.invented(r, 1, 3).capitalize(), ["It is made by <v>.", "The brand is <v>."]),
    (["weight_kg", "weight"], "weight", "number", decimal(0.1, 90, 1), ["It weighs <v> kg.", "The weight is <v> kg."]),
    (["category", "type", "kind"], "category", "enum", choice_of("tool", "toy", "food", "book", "furniture", "clothing", "electronics"), ["The category is <v>.", "It belongs to <v>."]),
    (["in_stock", "available"], "available", "boolean", choice_of(True, False), ["It is <!not >available.", "It is <!not >in stock."]),
    (["sku", "code", "product_code", "id"], "code", "string", W.code, ["The code is <v>.", "Its product code is <v>."]),
    (["size"], "size", "enum", choice_of("small", "medium", "large"), ["The size is <v>.", "It comes in size <v>."]),
    (["tags", "labels"], "tags", "array", lambda r: r.sample(W.ADJECTIVES, r.randint(1, 4)), ["Tags: <v>.", "It is labelled <v>."]),
]
EVENT = [
    (["date", "day", "on"], "date", "string", W.iso_date, ["It is on <v>.", "The date is <v>.", "It takes place on <v>."]),
    (["time", "start", "start_time", "starts_at"], "time", "string", W.clock, ["It starts at <v>.", "The time is <v>."]),
    (["location", "place", "venue", "room"], "location", "string", lambda r: r.choice(["room " + str(r.randint(1, 400)), "the " + r.choice(W.PLACES), W.city(r)]), ["We meet in <v>.", "The place is <v>."]),
    (["host", "organizer", "speaker"], "host", "string", W.full_name, ["The host is <v>.", "It is led by <v>."]),
    (["guests", "attendees", "num_guests", "seats"], "number of guests", "integer", whole(2, 900), ["<v> people will come.", "We expect <v> guests."]),
    (["duration_minutes", "duration", "minutes"], "duration", "integer", whole(10, 240), ["It lasts <v> minutes.", "The duration is <v> minutes."]),
    (["participants", "people", "names"], "participants", "array", lambda r: [W.first_name(r) for _ in range(r.randint(2, 4))], ["<v> take part.", "The participants are <v>."]),
    (["online", "is_online", "virtual"], "online", "boolean", choice_of(True, False), ["It is <!not >online."]),
    (["priority"], "priority", "enum", choice_of("low", "medium", "high"), ["The priority is <v>.", "It has <v> priority."]),
]
ORDER = [
    (["customer", "buyer", "client", "customer_name"], "customer", "string", W.full_name, ["The customer is <v>.", "It was placed by <v>.", "<v> placed it."]),
    (["total", "amount", "sum", "price"], "total", "number", decimal(1, 2000, 2), ["The total is <v> dollars.", "It comes to <v> euros."]),
    (["items", "products", "articles"], "items", "array", lambda r: r.sample(W.OBJECTS + W.FRUITS, r.randint(1, 5)), ["The items are <v>.", "It contains <v>."]),
    (["status", "state"], "status", "enum", choice_of("open", "paid", "shipped", "delivered", "cancelled"), ["The status is <v>.", "It is <v>."]),
    (["date", "ordered_on", "order_date"], "date", "string", W.iso_date, ["It is from <v>.", "It was made on <v>."]),
    (["address", "city", "ship_to"], "address", "string", lambda r: f"{r.randint(1, 200)} {r.choice(W.COLORS + W.ADJECTIVES).capitalize()} Street" if r.random() < .5 else W.city(r), ["Ship it to <v>.", "The address is <v>."]),
    (["express", "is_express"], "express", "boolean", choice_of(True, False), ["It is <!not >express."]),
    (["quantity", "pieces"], "quantity", "integer", whole(1, 300), ["It has <v> pieces.", "The quantity is <v>."]),
]
MEDIA = [
    (["author", "writer", "director", "artist", "by"], "author", "string", W.full_name, ["It is by <v>.", "The author is <v>.", "It was made by <v>."]),
    (["year", "published", "released", "release_year"], "year", "integer", whole(1850, 2030), ["It came out in <v>.", "It was published in <v>.", "The year is <v>."]),
    (["genre", "kind"], "genre", "enum", choice_of("drama", "comedy", "horror", "romance", "mystery", "history", "fantasy", "poetry"), ["The genre is <v>.", "It is a <v>."]),
    (["pages", "num_pages", "length"], "pages", "integer", whole(20, 1500), ["It has <v> pages."]),
    (["rating", "score", "stars"], "rating", "number", decimal(1, 10, 1), ["The rating is <v>.", "It was rated <v>."]),
    (["language"], "language", "string", choice_of("English", "French", "German", "Spanish", "Italian", "Japanese", "Dutch", "Polish"), ["It is written in <v>.", "The language is <v>."]),
    (["bestseller", "is_bestseller"], "bestseller", "boolean", choice_of(True, False), ["It is <!not >a bestseller."]),
]
CAR = [
    (["brand", "make", "manufacturer"], "brand", "string", choice_of("Toyota", "Ford", "Fiat", "Honda", "Volvo", "Mazda", "Opel", "Tesla", "Audi", "Kia"), ["The brand is <v>.", "It is a <v>."]),
    (["year", "built"], "year", "integer", whole(1960, 2030), ["It was built in <v>.", "The year is <v>."]), (["color"], "color", "string", lambda r: r.choice(W.COLORS), ["The color is <v>.", "It is <v>."]),
    (["mileage", "km", "kilometers"], "mileage", "integer", whole(100, 300000), ["It has driven <v> km.", "The mileage is <v>."]), (["price", "price_eur"], "price", "integer", whole(500, 90000), ["It costs <v> euros.", "The price is <v>."]),
    (["electric", "is_electric"], "electric", "boolean", choice_of(True, False), ["It is <!not >electric."]), (["owner", "seller"], "owner", "string", W.full_name, ["The owner is <v>.", "<v> sells it."])]
TRIP = [
    (["origin", "from", "departure"], "origin", "string", W.city, ["It starts in <v>.", "The origin is <v>.", "We leave from <v>."]), (["date", "departure_date"], "date", "string", W.iso_date, ["It leaves on <v>.", "The date is <v>."]),
    (["passengers", "travelers", "seats"], "passengers", "integer", whole(1, 9), ["There are <v> passengers.", "It is for <v> people."]), (["class", "travel_class"], "class", "enum", choice_of("economy", "business", "first"), ["The class is <v>.", "We fly <v>."]),
    (["price", "fare"], "price", "number", decimal(10, 2000, 2), ["The price is <v>.", "It costs <v> dollars."]), (["airline", "company"], "airline", "string", lambda r: W.invented(r, 1, 2).capitalize() + " Air", ["We fly with <v>.", "The airline is <v>."]), (["direct", "nonstop"], "direct", "boolean", choice_of(True, False), ["It is <!not >direct."])]
JOB = [
    (["company", "employer"], "company", "string", lambda r: W.invented(r, 1, 3).capitalize(), ["The company is <v>.", "<v> is hiring.", "You work for <v>."]), (["location", "city"], "location", "string", W.city, ["The job is in <v>.", "The location is <v>."]),
    (["salary", "pay", "salary_usd"], "salary", "integer", whole(1000, 200000), ["The salary is <v>.", "It pays <v> dollars."]), (["remote", "is_remote"], "remote", "boolean", choice_of(True, False), ["It is <!not >remote."]), (["hours", "hours_per_week"], "hours", "integer", whole(5, 45), ["It is <v> hours a week."]),
    (["skills", "requirements"], "skills", "array", lambda r: r.sample(["Python", "Java", "writing", "sales", "design", "statistics", "English", "cooking", "driving", "planning", "SQL", "teamwork"], r.randint(1, 4)), ["The skills are <v>.", "You need <v>."])]
PET = [
    (["species", "animal", "type"], "species", "string", lambda r: r.choice(W.ANIMALS), ["<s> is a <v>.", "It is a <v>."]), (["age", "age_years"], "age", "integer", whole(1, 25), ["<s> is <v> years old.", "The age is <v>."]), (["owner"], "owner", "string", W.full_name, ["The owner of <s> is <v>.", "<s> belongs to <v>."]),
    (["color"], "color", "string", lambda r: r.choice(W.COLORS), ["<s> is <v>.", "The color is <v>."]), (["weight", "weight_kg"], "weight", "number", decimal(0.5, 60, 1), ["<s> weighs <v> kg.", "The weight is <v> kg."]), (["vaccinated"], "vaccinated", "boolean", choice_of(True, False), ["<s> is <!not >vaccinated."])]
WEATHER = [
    (["temperature", "temp", "temperature_c"], "temperature", "integer", whole(-20, 42), ["It is <v> degrees.", "The temperature is <v> degrees."]), (["condition", "sky", "conditions"], "condition", "string", choice_of("sunny", "cloudy", "rainy", "windy", "foggy", "clear", "snowy"), ["It is <v>.", "The sky is <v>."]),
    (["humidity"], "humidity", "integer", whole(10, 100), ["The humidity is <v> percent.", "The humidity is <v>."]), (["wind_speed", "wind", "wind_kmh"], "wind", "integer", whole(0, 120), ["The wind blows at <v> km/h.", "The wind is <v> km/h."]), (["date", "day"], "date", "string", W.iso_date, ["It is <v>.", "The date is <v>."])]
PAYMENT = [
    (["amount", "total", "sum"], "amount", "number", decimal(1, 9000, 2), ["The amount is <v>.", "<v> dollars were paid."]), (["from", "sender", "payer"], "sender", "string", W.full_name, ["It was paid by <v>.", "The sender is <v>."]), (["to", "recipient", "payee"], "recipient", "string", W.full_name, ["It goes to <v>.", "The recipient is <v>."]),
    (["currency"], "currency", "enum", choice_of("USD", "EUR", "GBP", "JPY", "CHF"), ["The currency is <v>."]), (["date", "paid_on"], "date", "string", W.iso_date, ["It was made on <v>.", "The date is <v>."]), (["paid", "is_paid"], "paid", "boolean", choice_of(True, False), ["It is <!not >paid."])]
DOMAINS = [("car", ["model", "name", "car"], "model", lambda r: W.invented(r, 1, 2).capitalize() + r.choice(["", " " + str(r.randint(1, 900))]), CAR), ("trip", ["destination", "to", "city"], "destination", W.city, TRIP), ("job", ["title", "position", "job_title"], "title", lambda r: r.choice(W.JOBS), JOB), ("pet", ["name", "pet", "pet_name"], "name", W.first_name, PET),
           ("weather", ["city", "location", "place"], "city", W.city, WEATHER), ("payment", ["id", "payment_id", "reference"], "reference", W.code, PAYMENT), ("person", ["name", "full_name"], "name", W.full_name, PERSON),
           ("person", ["name", "full_name", "person"], "name", W.full_name, PERSON), ("person", ["name", "first_name"], "name", W.first_name, PERSON),
           ("product", ["name", "product", "item", "title"], "name", lambda r: r.choice(W.ADJECTIVES) + " " + r.choice(W.OBJECTS), PRODUCT),
           ("event", ["title", "event", "name", "subject"], "title", lambda r: r.choice(W.NOUNS) + " " + r.choice(["meeting", "party", "workshop", "talk", "dinner", "concert"]), EVENT),
           ("order", ["order_id", "id", "order", "number"], "order number", W.code, ORDER),
           ("book", ["title", "name"], "title", lambda r: "The " + r.choice(W.ADJECTIVES).capitalize() + " " + r.choice(W.OBJECTS + W.PLACES + W.ANIMALS).capitalize(), MEDIA)]
FIRST_SAYS = {"car": ["For sale: a <v>.", "The model is <v>.", "This is my <v>."], "trip": ["We go to <v>.", "The destination is <v>.", "A trip to <v>."], "job": ["We are looking for a <v>.", "The position is <v>.", "Wanted: <v>."], "pet": ["This is <v>.", "The pet is called <v>.", "<v> is our pet."], "weather": ["The weather in <v>:", "The city is <v>.", "A report from <v>."], "payment": ["Payment <v> was made.", "The reference is <v>.", "This is payment <v>."],
              "person": ["This is <v>.", "Her name is <v>.", "His name is <v>.", "Meet <v>.", ""], "product": ["The product is a <v>.", "We sell the <v>.", "For sale: <v>."], "event": ["The event is the <v>.", "Do not miss the <v>.", "<v>!"],
              "order": ["Order <v> came in.", "The order number is <v>.", "This is order <v>."], "book": ["The title is <v>.", "I read <v>.", "<v> is the title."]}


def value_text(v):
    if isinstance(v, bool):
        return "yes" if v else "no"
    if isinstance(v, list):
        return v[0] if len(v) == 1 else ", ".join(v[:-1]) + " and " + v[-1]
    return str(v)


def phrase(rng, template, subject, v):
    if isinstance(v, bool):
        template = template.replace("<!not >", "" if v else "not ")
    shown = value_text(v)
    if isinstance(v, float) and rng.random() < 0.3:  # money as people write it
        shown = f"{v:.2f}"
    return fill(template, {"s": subject, "v": shown})


def invented_field(rng):
    """A field of no fixed meaning, so that keys are learned to be arbitrary."""
    words = rng.choice([rng.choice(W.NOUNS), rng.choice(W.NOUNS) + " " + rng.choice(W.NOUNS), W.invented(rng, 1, 2), rng.choice(W.ADJECTIVES) + " " + rng.choice(W.NOUNS)])
    kind, maker = rng.choice([("string", W.code), ("string", lambda r: r.choice(W.ALL_WORDS)), ("string", W.full_name), ("integer", whole(0, 9999)), ("number", decimal(0, 100, 1)), ("string", W.iso_date)])
    key = words.replace(" ", "_") if rng.random() < 0.8 else words.split()[0] + "".join(w.capitalize() for w in words.split()[1:])
    return ([key], words, kind, maker, [f"The {words} is <v>.", f"{words}: <v>."])


# sentences that say several fields at once; <s> is the subject, the others a field's words with _ for spaces
COMBOS = {
    "person": ["<s> (<age>) works as a <job>.", "<s>, <age>, from <city>.", "<s> is a <age>-year-old <job> from <city>.", "<s>, <age> years old, lives in <city>.", "My friend <s> is <age> and {comes from|lives in} <city>.", "{I met|We hired|Here comes} <s>, a <job> from <city>.", "{Contact|Write to|Reach} <s> at <email>{ for details| for more|}.", "<s> <<email>>", "I am <s>, I am <age> and I live in <city>.", "My name is <s> and I work as a <job> in <city>.", "{Hello|Hi}, this is <s> from <country>, you can call me at <phone_number>.", "<s> lives in <city>, <country>.", "<s> likes <hobbies> and is <age> years old.", "At <age>, <s> became a <job> in <city>."],
    "product": ["The <s> {costs|sells for|is} $<price>.", "The <s> costs <price> {dollars|euros} and is <!not >{available|in stock}.", "The <s> sells for $<price> and is currently <!not >available.", "We have <quantity> <s> in <color> at <price> each.", "{Buy|Get} the <color> <s> by <brand> for only $<price>!", "<s>, <color>, size <size>, $<price>.", "A <brand> <s> in <color>: <price> euros, <weight> kg."],
    "event": ["<s> on <date> with <participants>.", "<s> on <date> at <time> in <location>.", "{The|Our} <s> is on <date> {and starts|starting} at <time>.", "<host> invites you to the <s> {on <date>|in <location>}.", "Join us for the <s> in <location> at <time>.", "Please note: <s>, <date>, <location>.", "<participants> will meet for the <s> on <date>."],
    "order": ["<customer> ordered <items> for $<total>.", "Order <s> by <customer>: <items>, total <total>.", "Order <s> from <date> is <status>.", "<customer> paid <total> for order <s>."],
    "book": ["\"<s>\" by <author> (<year>).", "<author> wrote \"<s>\" in <year>.", "\"<s>\" is a <genre> by <author>, published in <year>.", "I am reading <s> by <author>, it has <pages> pages.", "<s> (<year>) was rated <rating>."],
    "car": ["A <color> <brand> <s> from <year>, <price> euros.", "<owner> sells a <brand> <s> with <mileage> km for <price>.", "I drive a <year> <brand> <s>.", "My <brand> <s> is <color>."],
    "trip": ["{A flight|A trip|We fly} from <origin> to <s> on <date>.", "Book <passengers> seats in <class> class to <s> on <date>.", "<airline> flies from <origin> to <s> for $<price>."],
    "job": ["<company> is looking for a <s> in <location>.", "<s> at <company>, <location>, <salary> a year.", "We need a <s> in <location> with <skills>."],
    "pet": ["<s> is a <age>-year-old <color> <species>.", "<owner> has a <species> called <s>.", "My <species> <s> is <age> years old.", "<s>, a <color> <species>, belongs to <owner>."],
    "weather": ["In <s> it is <condition> and <temperature> degrees.", "<s>: <temperature> degrees, <condition>, humidity <humidity>%.", "{Today|On <date>} <s> has <temperature> degrees with wind at <wind> km/h."],
    "payment": ["<sender> paid <amount> <currency> to <recipient>.", "<recipient> got <amount> from <sender> on <date>.", "Payment <s>: <amount> <currency>."],
}


def combo(rng):
    """A record told in one sentence, in the form of `record`."""
    name, keys, words, maker, fields = rng.choice(DOMAINS)
    template = expand(rng, rng.choice(COMBOS[name]))
    subject = maker(rng)
    rows = [(rng.choice(keys), words, "string", subject, None, None)] if "<s>" in template else []
    text = template.replace("<s>", subject)
    for fkeys, fwords, kind, fmaker, phrases in fields:
        slot = f"<{fwords.replace(' ', '_')}>"
        has_flag = kind == "boolean" and "<!not >" in text and fwords in ("available", "married", "student")
        if slot not in text and not has_flag:
            continue
        value = fmaker(rng)
        key = fkeys[0] if rng.random() < 0.6 else rng.choice(fkeys)
        if key in [r[0] for r in rows]:
            key = fwords.replace(" ", "_")
        rows.append((key, fwords, kind, value, phrases, fmaker))
        if has_flag:
            text = text.replace("<!not >available", "available" if value else rng.choice(["not available", "sold out", "out of stock"])).replace("<!not >in stock", "in stock" if value else rng.choice(["not in stock", "sold out"]))
        else:
            text = text.replace(slot, f"{value:.2f}" if isinstance(value, float) and "$" + slot in text else value_text(value))
    if rng.random() < 0.15:
        from tasks_recall import sentence
        text = rng.choice([text + " " + sentence(rng), sentence(rng) + " " + text])
    if rng.random() < 0.4:
        rng.shuffle(rows)
    return name, rows, None, text


SCENE_KEYS = {"p": ["name", "person", "who", "owner"], "c": ["color", "colour"], "o": ["object", "item", "thing"], "t": ["time", "start"], "l": ["place", "location", "where"], "d": ["date", "day", "when"], "a": ["from", "origin"], "b": ["to", "destination"], "n": ["number", "amount", "count"], "x": ["items", "what", "things"], "m": ["price", "cost", "total"], "q": ["second_name", "other_person", "with"], "y": ["year"], "v": ["value", "code"]}


def from_scene(rng):
    """A free-form fact as a record."""
    from scenes import SCENES
    while True:
        says, _, makers = rng.choice(SCENES)
        template = rng.choice(says)
        slots = [s for s in makers if f"<{s}>" in expand(rng, template)]
        text = expand(rng, template)
        slots = [s for s in slots if f"<{s}>" in text and s in SCENE_KEYS]
        if len(slots) >= 2:
            break
    values = {k: m(rng) for k, m in makers.items()}
    rows = []
    for s in slots:
        v = values[s]
        rows.append((rng.choice(SCENE_KEYS[s]), s, "integer" if v.isdigit() and len(v) < 7 and str(int(v)) == v else "string", int(v) if v.isdigit() and len(v) < 7 and str(int(v)) == v else v, None, None))
    if rng.random() < 0.4:
        rng.shuffle(rows)
    text = fill(text, values)
    return "record", rows, None, text[0].upper() + text[1:]


def record(rng):
    """A record: name of its kind, keys with types and values, and the text that says it."""
    name, keys, words, maker, fields = rng.choice(DOMAINS)
    picked = rng.sample(fields, rng.randint(1, min(5, len(fields))))
    if rng.random() < 0.3:
        picked = picked[:3] + [invented_field(rng) for _ in range(rng.randint(1, 3))]
    subject = maker(rng)
    rows = [(rng.choice(keys), words, "string", subject, None, None)]
    for fkeys, fwords, kind, fmaker, phrases in picked:
        key = fkeys[0] if rng.random() < 0.5 else rng.choice(fkeys)
        if key in [r[0] for r in rows] or fwords in [r[1] for r in rows]:
            continue
        rows.append((key, fwords, kind, fmaker(rng), phrases, fmaker))
    style = rng.random()
    absent = None
    told = list(rows[1:])
    if rng.random() < 0.12 and len(told) > 1:
        absent = rng.choice(told)
        told.remove(absent)
    if style < 0.68:
        rng.shuffle(told)
        lines, she = [], subject
        first = rng.choice(FIRST_SAYS[name])
        if first:
            lines.append(fill(first, {"v": subject}))
        for i, (_, _, kind, v, phrases, _) in enumerate(told):
            s = subject if i == 0 or rng.random() < 0.4 or name != "person" else rng.choice(["She", "He"])
            choices = phrases if i or first else [p for p in phrases if "<s>" in p] or phrases
            template = rng.choice(choices)
            lines.append(phrase(rng, template.replace("of <s>", "of " + subject), s if template.startswith("<s>") else subject, v))
        if not first and not any(subject in line for line in lines):
            lines.insert(0, f"This is {subject}.")
        if rng.random() < 0.2:
            from tasks_recall import sentence
            lines.insert(rng.randint(0, len(lines)), sentence(rng))
        text = " ".join(lines)
    else:
        sep, colon = rng.choice([("\n", ": "), (", ", " "), ("; ", ": "), (", ", ": "), ("\n", " = ")])
        cells = [(rows[0][1], value_text(subject))] + [(w, value_text(v)) for _, w, _, v, _, _ in told]
        if rng.random() < 0.3:
            rng.shuffle(cells)
        if rng.random() < 0.5:
            cells = [(w[0].upper() + w[1:], v) for w, v in cells]
        text = sep.join(w + colon + v for w, v in cells)
    order = list(rows)
    if rng.random() < 0.4:
        rng.shuffle(order)
    return name, order, absent, text


def field_schema(rng, row, described):
    key, words, kind, value, _, maker = row
    if kind == "array":
        s = {"type": "array", "items": {"type": "string"}}
    elif kind == "enum":
        values = sorted({maker(rng) for _ in range(12)} | {value})
        s = {"type": "string", "enum": values} if rng.random() < 0.8 else {"type": "string"}
    else:
        s = {"type": kind}
    if described:
        s["description"] = f"The {words}" if rng.random() < 0.7 else words.capitalize()
    return s


def schema_text(rng, schema):
    r = rng.random()
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")) if r < 0.5 else json.dumps(schema, ensure_ascii=False) if r < 0.8 else json.dumps(schema, ensure_ascii=False, indent=2)


def response_format(rng, name, schema):
    note = f"// {rng.choice(['The answer', 'Extracted data', 'Result', 'A record'])}{rng.choice(['', '.', ' as JSON'])}\n" if rng.random() < 0.15 else ""
    lead = rng.choice(["", "", "", "Answer in JSON.\n\n", "You extract data from text.\n\n", "You are a helpful assistant.\n\n", "Reply with JSON that fits the schema.\n\n"])
    return f"{lead}# Response Formats\n\n## {name}\n\n{note}{schema_text(rng, schema)}"


def joined_keys(rng, keys):
    quote = rng.choice(["", "", '"', "'", "`"])
    keys = [quote + k + quote for k in keys]
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + rng.choice([" and ", ", "]) + keys[-1]


BY_SCHEMA = ["<t>", "<t>", "{Extract|Get|Pull out|Read} the {data|record|fields|information|details} {from|in} {this|the text|this text}: <t>", "{Turn|Convert|Transform|Parse} {this|the text} {into|to} JSON{: |:\n|.\n}<t>", "<t>\n\n{As JSON, please.|Give me JSON.|JSON?|Extract the fields.}", "{Fill in|Complete} the schema: <t>"]
BY_KEYS = ["<t> {Return|Give me|Write} {JSON|a JSON object} with <k>.", "{Return|Give me} {JSON|a JSON object} with {the keys |}<k>{ for|}: <t>", "{As JSON|JSON} ({keys: |}<k>): <t>", "{Extract|Get} {the |}<k> {from|in} {this|the sentence}: <t> {Answer in JSON.|Use JSON.|JSON only.}", "{Extract|Get|Pull out} {the |}<k> {from the text|from this text|} as JSON{: |:\n}<t>", "{Turn|Convert|Transform|Parse} {this|the text|this text} {into|to} {JSON|a JSON object} with {the |}{keys|fields} <k>{: |:\n}<t>", "<t>\n\n{Give me|Return|Write|Make} {JSON|a JSON object} with {the |}{keys|fields} <k>.",
           "{Return|Give me|Write|Answer with} {only |}{JSON|a JSON object} {with|containing} <k> for: <t>"]


def from_record(rng, effort):
    r = rng.random()
    name, rows, absent, text = combo(rng) if r < 0.4 else from_scene(rng) if r < 0.58 else record(rng)
    obj, props = {}, {}
    described = rng.random() < 0.35
    use_schema = rng.random() < 0.68
    for row in rows:
        key, _, kind, value = row[:4]
        props[key] = field_schema(rng, row, described)
        if absent and row[0] == absent[0]:
            if "enum" not in props[key]:
                props[key]["type"] = [props[key]["type"], "null"]
            else:
                props[key] = {"type": ["string", "null"]}
            value = None
        obj[key] = value
    final = json.dumps(obj, ensure_ascii=False)
    if effort == "high":
        thought = "I read the fields one by one.\n" + "\n".join(f"{k}: {json.dumps(v, ensure_ascii=False)}" + (" (not in the text)" if v is None else "") for k, v in obj.items())
    else:
        thought = "Fields: " + "; ".join(f"{k} {json.dumps(v, ensure_ascii=False)}" for k, v in obj.items()) + "."
    if use_schema:
        schema = {"type": "object", "properties": props}
        if rng.random() < 0.85:
            schema["required"] = list(obj)
        if rng.random() < 0.45:
            schema["additionalProperties"] = False
        if rng.random() < 0.15:
            schema = {"title": name.capitalize(), **schema}
        user = ask(rng, rng.choice(BY_SCHEMA), t=text)
        return Sample(user, final, ("json", obj), thought, instructions=response_format(rng, rng.choice([name, name, name + "_record", "response", "output", W.invented(rng, 1, 2)]), schema), styled=False)
    return Sample(ask(rng, rng.choice(BY_KEYS), k=joined_keys(rng, list(obj)), t=text), final, ("json", obj), thought, styled=False)


def rows_to_list(rng, effort):
    """Several subjects in one text: an array of objects or of strings."""
    if rng.random() < 0.4:
        items = rng.sample(W.OBJECTS + W.FRUITS + W.FOODS + W.ANIMALS, rng.randint(1, 7))
        key = rng.choice(["items", "things", "words", "list", "shopping_list", "names"])
        text = ask(rng, "{I need|We have|Please buy|There are|Bring|The list has} <l>.", l=value_text(items))
        obj = {key: items}
        inner = {"type": "array", "items": {"type": "string"}}
    else:
        key = rng.choice(["people", "persons", "attendees", "entries", "rows", "records", "employees"])
        k1 = rng.choice(["name", "person", "first_name"])
        k2, kind, says, maker = rng.choice([("age", "integer", ["<s> is <v>", "<s> is <v> years old"], whole(5, 90)), ("city", "string", ["<s> lives in <v>", "<s> is from <v>"], W.city), ("job", "string", ["<s> is a <v>", "<s> works as a <v>"], lambda r: r.choice(W.JOBS)), ("score", "integer", ["<s> has <v> points", "<s> scored <v>"], whole(0, 100))])
        rows = [{k1: W.first_name(rng), k2: maker(rng)} for _ in range(rng.randint(2, 4))]
        say = rng.choice(says)
        parts = [fill(say, {"s": r[k1], "v": r[k2]}) for r in rows]
        text = rng.choice([". ".join(parts) + ".", ", ".join(parts[:-1]) + " and " + parts[-1] + "."])
        obj = {key: rows}
        inner = {"type": "array", "items": {"type": "object", "properties": {k1: {"type": "string"}, k2: {"type": kind}}, "required": [k1, k2]}}
    thought = f"There {'is' if len(obj[key]) == 1 else 'are'} {len(obj[key])} in the text."
    final = json.dumps(obj, ensure_ascii=False)
    if rng.random() < 0.7:
        schema = {"type": "object", "properties": {key: inner}, "required": [key]}
        return Sample(ask(rng, rng.choice(BY_SCHEMA), t=text), final, ("json", obj), thought, instructions=response_format(rng, rng.choice([key, "response", "output"]), schema), styled=False)
    keys = joined_keys(rng, list(obj[key][0])) if isinstance(obj[key][0], dict) else ""
    user = ask(rng, "{Turn|Convert|Parse} {this|the text} {into|to} JSON with a list <k>" + (" of objects with <i>" if keys else "") + "{: |:\n}<t>", k=key, i=keys, t=text)
    return Sample(user, final, ("json", obj), thought, styled=False)


def nested(rng, effort):
    """A record with an object inside."""
    outer, inner_key = rng.choice([("name", "address"), ("customer", "shipping"), ("person", "contact"), ("employee", "office")])
    subject = W.full_name(rng)
    if inner_key == "contact":
        inner = {"email": W.email(rng), "phone": f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"}
        text = f"{subject} can be reached at {inner['email']} or by phone at {inner['phone']}."
        types = {"email": "string", "phone": "string"}
    elif inner_key == "office":
        inner = {"building": rng.choice("ABCDEFGH"), "room": rng.randint(1, 500)}
        text = f"{subject} sits in building {inner['building']}, room {inner['room']}."
        types = {"building": "string", "room": "integer"}
    else:
        inner = {"street": f"{rng.randint(1, 200)} {rng.choice(W.COLORS + W.ADJECTIVES).capitalize()} Street", "city": W.city(rng)}
        text = f"{subject} lives at {inner['street']} in {inner['city']}." if inner_key == "address" else f"Send it to {subject}, {inner['street']}, {inner['city']}."
        types = {"street": "string", "city": "string"}
    obj = {outer: subject, inner_key: inner}
    schema = {"type": "object", "properties": {outer: {"type": "string"}, inner_key: {"type": "object", "properties": {k: {"type": t} for k, t in types.items()}, "required": list(types)}}, "required": [outer, inner_key]}
    final = json.dumps(obj, ensure_ascii=False)
    return Sample(ask(rng, rng.choice(BY_SCHEMA), t=text), final, ("json", obj), f"Fields: {outer}, and {inner_key} with {', '.join(inner)}.", instructions=response_format(rng, rng.choice(["record", "response", inner_key]), schema), styled=False)


def wrapped_answer(rng, effort):
    """A sum or comparison whose answer is to be a JSON object."""
    maker = rng.choice([M.addition, M.subtraction, M.multiplication, M.extreme])
    s = maker(rng, effort)
    key = rng.choice(["answer", "result", "value", "number", "solution", "total"])
    obj = {key: int(s.check[1])}
    schema = {"type": "object", "properties": {key: {"type": rng.choice(["integer", "number"])}}, "required": [key]}
    return Sample(s.user, json.dumps(obj), ("json", obj), s.analysis, instructions=response_format(rng, rng.choice(["answer", "response", "result", "output"]), schema), styled=False)


def to_json(rng, effort):
    r = rng.random()
    return from_record(rng, effort) if r < 0.72 else rows_to_list(rng, effort) if r < 0.86 else nested(rng, effort) if r < 0.94 else wrapped_answer(rng, effort)
