"""Letters and words, units and the calendar: questions, worked steps, answers."""
import datetime

from phrasing import ask
from sample import Sample
from tasks_math import digits_line, listed, number
import words as W

ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def random_word(rng):
    r = rng.random()
    if r < 0.5:
        return rng.choice(W.ALL_WORDS)
    if r < 0.68:
        return rng.choice(W.FRUITS + W.FOODS + W.ANIMALS + W.OBJECTS)
    if r < 0.9:
        return W.invented(rng, 2, 4)
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 8)))


def cased(rng, word):
    r = rng.random()
    return word if r < 0.8 else word.capitalize() if r < 0.93 else word.upper()


def quoted(rng, word):
    r = rng.random()
    return word if r < 0.5 else f'"{word}"' if r < 0.75 else f"'{word}'" if r < 0.95 else f"`{word}`"


def marked(word, letter):
    """The letters of a word with a running count behind each that is wanted."""
    n, out = 0, []
    for ch in word.lower():
        if ch in letter:
            n += 1
            out.append(f"{ch} ({n})")
        else:
            out.append(ch)
    return ", ".join(out), n


def count_letters(rng, effort):
    word = random_word(rng)
    if rng.random() < 0.12:
        word = rng.choice(["strawberry", "banana", "mississippi", "raspberry", "blueberry", "committee", "balloon", "bookkeeper", "assessment", "possession", "pepper", "letter"])
    shown = quoted(rng, cased(rng, word))
    r = rng.random()
    if r < 0.62:
        letter = rng.choice(word) if rng.random() < 0.88 else rng.choice("abcdefghijklmnopqrstuvwxyz")
        l = rng.choice([letter, letter, letter.upper(), f"'{letter}'", f'"{letter}"', f"letter {letter}"])
        user = ask(rng, rng.choice(["How many {times does {the |}<l> {appear|occur|come up} in|<l>'s {are in|are there in|are in the word|does the word have in}|<l> are {in|there in} {the word |}} <w>?".replace(" have in", " contain in"),
                                    "{Count|Tell me} the {number of |}{<l>'s|<l>s} in {the word |}<w>.", "How often {is|does} {the |}<l> {occur |appear |}in {the word |}<w>?"]), l=l, w=shown)
        spelled, n = marked(word, letter)
        times = "once" if n == 1 else f"{n} times"
        return Sample(user, f'The letter {letter} occurs {n} time{"" if n == 1 else "s"} in "{word}".', ("number", str(n)), f"{spelled}. That is {times}.", str(n))
    if r > 0.96:
        other = random_word(rng)
        if len(word) != len(other):
            user = ask(rng, "{Which word is|Which is} {longer|the longer word}, <a> or <b>?", a=word, b=other)
            long = max(word, other, key=len)
            text = "; ".join(", ".join(f"{ch} ({i + 1})" for i, ch in enumerate(w)) for w in (word, other))
            return Sample(user, f'"{long}" is longer.', ("text", long), text + f'. {len(word)} and {len(other)} letters.', long)
    if r < 0.85:
        user = ask(rng, "{How many letters {are in|are there in|does}|Count the letters in|What is the length of|How long is} {the word |}<w>{ have|}?".replace("|does}", "}").replace("{ have|}", ""), w=shown)
        text = ", ".join(f"{ch} ({i + 1})" for i, ch in enumerate(word))
        return Sample(user, f'"{word}" has {len(word)} letters.', ("number", str(len(word))), f"{text}.", str(len(word)))
    user = ask(rng, "{How many vowels {are in|are there in}|Count the vowels in} {the word |}<w>?", w=shown)
    spelled, n = marked(word, "aeiou")
    return Sample(user, f'"{word}" has {n} vowel{"" if n == 1 else "s"}.', ("number", str(n)), f"{spelled}. That is {n}.", str(n))


def count_items(rng, effort):
    r = rng.random()
    if r < 0.4:
        items = [W.any_word(rng) for _ in range(rng.randint(2, 12))]
        user = ask(rng, "{How many {items|words|things|entries} are {in|on} this list|Count the {items|words|things}|How many are these}{: |:\n|? }<l>", l=", ".join(items))
        text = ", ".join(f"{w} ({i + 1})" for i, w in enumerate(items))
        return Sample(user, f"There are {len(items)}.", ("number", str(len(items))), f"{text}.", str(len(items)))
    if r < 0.7:
        pool = rng.sample(W.FRUITS + W.ANIMALS + W.COLORS, rng.randint(2, 4))
        items = [rng.choice(pool) for _ in range(rng.randint(4, 14))]
        want = rng.choice(pool)
        user = ask(rng, "How {often|many times} {does|is} <w> {occur |appear |}{in|on} {this list|the list}: <l>?" if rng.random() < 0.5 else "Count {how often|how many times} <w> {appears|occurs} in: <l>.", w=want, l=", ".join(items))
        n, parts = 0, []
        for w in items:
            n += w == want
            parts.append(f"{w} ({n})" if w == want else w)
        return Sample(user, f"{want} occurs {n} time{'' if n == 1 else 's'}.", ("number", str(n)), ", ".join(parts) + f". That is {n}.", str(n))
    from tasks_recall import sentence
    text = sentence(rng)
    items = text.rstrip(".").split()
    user = ask(rng, "How many words {are in|are there in|does} {this|the} sentence{ have|}: <s>".replace("|does}", "}").replace("{ have|}", ""), s=text)
    return Sample(user, f"The sentence has {len(items)} words.", ("number", str(len(items))), ", ".join(f"{w} ({i + 1})" for i, w in enumerate(items)) + ".", str(len(items)))


def spell(rng, effort):
    word = random_word(rng)
    shown = quoted(rng, cased(rng, word))
    r = rng.random()
    if r < 0.5:
        user = ask(rng, rng.choice(["{Spell|Please spell|Spell out|Can you spell} {the word |}<w>{ for me|}{.|}", "How {do you|do I|would you|is} {spell|write} <w>?".replace("|is}", "}"), "{What are the letters {of|in}|Give me the letters of|List the letters of} {the word |}<w>{?|.}"]), w=shown)
        final = "-".join(word.upper())
        return Sample(user, final, ("exact", final), f'The letters of "{word}" are {", ".join(word)}.', final, styled=False)
    if r < 0.75:
        i = rng.randint(0, min(len(word), 10) - 1)
        last = rng.random() < 0.3
        which = "last" if last else ORDINALS[i]
        if last:
            i = len(word) - 1
        user = ask(rng, "{What is|What's|Which is|Tell me|Give me} the <n> letter {of|in} {the word |}<w>{?|}", n=which, w=shown)
        return Sample(user, f'The {which} letter of "{word}" is {word[i]}.', ("lastword", word[i]), ", ".join(f"{ch} ({k + 1})" for k, ch in enumerate(word)) + f". The {which} is {word[i]}.", word[i])
    words = [rng.choice(W.ALL_WORDS) for _ in range(rng.randint(2, 5))]
    kind = rng.randrange(3)
    if kind == 0:
        user = ask(rng, "{What is the acronym {of|for}|Take the first letters of|Give me the initials of} <w>{?|.}", w=" ".join(words))
        final = "".join(w[0].upper() for w in words)
        return Sample(user, final, ("exact", final), "First letters: " + ", ".join(f"{w} {w[0]}" for w in words) + ".", final, styled=False)
    text = " ".join(words)
    up = kind == 1
    user = ask(rng, "{Write|Put|Convert|Say|Give me} <w> in {capitals|upper case|uppercase|capital letters}.|" .rstrip("|") if up else "{Write|Put|Convert} <w> in {lower case|lowercase|small letters}.", w=quoted(rng, text if up else text.upper()))
    final = text.upper() if up else text
    return Sample(user, final, ("exact", final), f"The words are {', '.join(words)}.", final, styled=False)


def reverse(rng, effort):
    r = rng.random()
    if r < 0.55:
        word = random_word(rng)
        user = ask(rng, rng.choice(["{Reverse|Flip|Turn around} {the word |the letters of |}<w>{.|}", "{Write|Spell|Say|Give me} {the word |}<w> {backwards|in reverse|backward|from back to front}.", "What is {the word |}<w> {backwards|reversed|in reverse|spelled backwards}?"]), w=quoted(rng, cased(rng, word)))
        final = word[::-1]
        return Sample(user, final, ("exact", final), f"Letters: {' '.join(word)}. Backwards: {' '.join(final)}.", final, styled=False)
    if r < 0.72:
        n = str(number(rng, rng.randint(2, 7)))
        user = ask(rng, rng.choice(["{Reverse|Flip} {the number |the digits of |}<w>{.|}", "{Write|Say|Give me} {the number |}<w> {backwards|in reverse}.", "What is <w> {backwards|reversed}?"]), w=n)
        return Sample(user, n[::-1], ("exact", n[::-1]), f"Digits: {' '.join(n)}. Backwards: {' '.join(n[::-1])}.", n[::-1], styled=False)
    if r < 0.9:
        items = [W.any_word(rng) if rng.random() < 0.6 else str(rng.randint(0, 99)) for _ in range(rng.randint(3, 8))]
        user = ask(rng, "{Reverse|Flip|Turn around} {this list|the list|the order of|the order of these words}{: |:\n}<l>", l=", ".join(items))
        final = ", ".join(items[::-1])
        return Sample(user, final, ("exact", final), f"The list has {len(items)} items. From the end: {final}.", final, styled=False)
    half = W.invented(rng, 1, 2)
    word = rng.choice([half + half[::-1], half + half[-2::-1], random_word(rng), "level", "radar", "kayak", "noon", "civic", "racecar"])
    yes = word == word[::-1]
    user = ask(rng, "Is {the word |}<w> a palindrome?|".rstrip("|"), w=quoted(rng, word))
    final = f'{"Yes" if yes else "No"}, "{word}" is {"" if yes else "not "}a palindrome.'
    return Sample(user, final, ("lead", "Yes" if yes else "No"), f"Forwards: {' '.join(word)}. Backwards: {' '.join(word[::-1])}.", "Yes" if yes else "No")


UNITS = [("kilometer", "meter", 1000), ("meter", "centimeter", 100), ("centimeter", "millimeter", 10), ("meter", "millimeter", 1000), ("kilogram", "gram", 1000), ("ton", "kilogram", 1000), ("gram", "milligram", 1000),
         ("liter", "milliliter", 1000), ("hour", "minute", 60), ("minute", "second", 60), ("day", "hour", 24), ("week", "day", 7), ("year", "month", 12), ("foot", "inch", 12), ("yard", "foot", 3), ("dozen", "item", 12),
         ("euro", "cent", 100), ("dollar", "cent", 100), ("century", "year", 100), ("decade", "year", 10), ("pound", "ounce", 16), ("gallon", "quart", 4), ("gigabyte", "megabyte", 1000), ("kilobyte", "byte", 1000)]
SHORT_UNITS = {"kilometer": "km", "meter": "m", "centimeter": "cm", "millimeter": "mm", "kilogram": "kg", "gram": "g", "milligram": "mg", "liter": "l", "milliliter": "ml", "hour": "h", "minute": "min", "second": "s", "foot": "ft", "inch": "in", "pound": "lb", "ounce": "oz"}
UNIT_PLURAL = {"foot": "feet", "inch": "inches", "century": "centuries", "dozen": "dozen"}


def units_of(n, unit):
    return unit if n == 1 else UNIT_PLURAL.get(unit, unit + "s")


def units(rng, effort):
    r = rng.random()
    if r < 0.08:
        c = rng.randint(-4, 20) * 5
        f = c * 9 // 5 + 32
        if rng.random() < 0.5:
            return Sample(ask(rng, "{What is|Convert} <c> {degrees Celsius|°C|degrees C} {in|to} {Fahrenheit|degrees Fahrenheit|°F}{?|.}", c=c), f"{c} degrees Celsius are {f} degrees Fahrenheit.", ("number2", str(f)), f"{c}*9/5={c * 9 // 5}, and {c * 9 // 5}+32={f}.", str(f))
        return Sample(ask(rng, "{What is|Convert} <f> {degrees Fahrenheit|°F|degrees F} {in|to} {Celsius|degrees Celsius|°C}{?|.}", f=f), f"{f} degrees Fahrenheit are {c} degrees Celsius.", ("number2", str(c)), f"{f}-32={f - 32}, and {f - 32}*5/9={c}.", str(c))
    if r < 0.18:
        h1, m1 = rng.randint(0, 20), rng.randint(0, 11) * 5
        span = rng.randint(1, 60) * 5
        end = h1 * 60 + m1 + span
        if end >= 24 * 60:
            span = 24 * 60 - 5 - h1 * 60 - m1
            end = 24 * 60 - 5
        h2, m2 = divmod(end, 60)
        if rng.random() < 0.6:
            user = ask(rng, "{How {long|much time|many minutes} is it|How much time passes|How many minutes are there} {from|between} <a> {to|and|until} <b>?", a=f"{h1}:{m1:02d}", b=f"{h2}:{m2:02d}")
            h, m = divmod(span, 60)
            return Sample(user, f"From {h1}:{m1:02d} to {h2}:{m2:02d} it is {span} minutes ({h} h {m} min).", ("text", f"{span} minutes"), f"{h2}:{m2:02d} is {h2}*60+{m2}={end} minutes and {h1}:{m1:02d} is {h1}*60+{m1}={h1 * 60 + m1} minutes after midnight. {end}-{h1 * 60 + m1}={span}. {span} minutes are {h} h {m} min.", f"{span} minutes")
        user = ask(rng, "{What time is it|What time will it be|Which time is} <s> minutes after <a>?", s=span, a=f"{h1}:{m1:02d}")
        return Sample(user, f"{span} minutes after {h1}:{m1:02d} it is {h2}:{m2:02d}.", ("text", f"is {h2}:{m2:02d}"), f"{h1}:{m1:02d} is {h1 * 60 + m1} minutes after midnight. {h1 * 60 + m1}+{span}={end}. {end} minutes are {h2} h {m2} min.", f"{h2}:{m2:02d}")
    if r < 0.25:
        n = rng.randint(13, 23) if rng.random() < .6 else rng.randint(1, 11)
        m = rng.randint(0, 11) * 5
        user = ask(rng, "{What is|Convert|Write} <t> {in|to|on} {12-hour time|the 12-hour clock|am/pm}{?|.}", t=f"{n:02d}:{m:02d}")
        v = f"{n - 12 if n > 12 else n}:{m:02d} {'pm' if n > 12 else 'am'}"
        return Sample(user, f"{n:02d}:{m:02d} is {v}.", ("text", v), f"{n} is {'above 12, so it is pm: ' + str(n) + '-12=' + str(n - 12) if n > 12 else 'below 12, so it is am'}.", v)
    big, small, f = rng.choice(UNITS)
    n = rng.choice([1, rng.randint(2, 12), rng.randint(2, 60), rng.randint(2, 100)]) if f not in (100, 1000, 10) else rng.choice([1, rng.randint(2, 20), rng.randint(2, 999)])
    total = n * f
    bn, sn = units_of(n, big), units_of(total, small)
    sb, ss = units_of(2, big), units_of(2, small)
    if rng.random() < 0.25 and big in SHORT_UNITS and small in SHORT_UNITS:
        bq, sq, sbq, ssq = SHORT_UNITS[big], SHORT_UNITS[small], SHORT_UNITS[big], SHORT_UNITS[small]
    else:
        bq, sq, sbq, ssq = bn, sn, sb, ss
    one = f"1 {big} is {f} {units_of(f, small)}"
    if rng.random() < 0.65:
        user = ask(rng, rng.choice(["How many <s> {are|are there in|are in|is} <n> <b>?", "{Convert|Change} <n> <b> {to|into|in} <s>.", "{What is|What's} <n> <b> in <s>?", "<n> <b> {in|to} <s>{?|}"]), n=n, b=bq, s=ssq)
        return Sample(user, f"{n} {bn} {'is' if n == 1 else 'are'} {total} {sn}.", ("number2", str(total)), f"{one}. {n}*{f}={total}.", f"{total} {sn}")
    user = ask(rng, rng.choice(["How many <b> {are|are there in|are in|is} <n> <s>?", "{Convert|Change} <n> <s> {to|into|in} <b>.", "{What is|What's} <n> <s> in <b>?"]), n=total, b=sbq, s=sq)
    return Sample(user, f"{total} {sn} {'is' if total == 1 else 'are'} {n} {bn}.", ("number2", str(n)), f"{one}. {total}/{f}={n}.", f"{n} {bn}")


def is_leap(y):
    return y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)


def leap_line(y):
    if y % 100 == 0:
        return f"{y} is a multiple of 100 and {'also' if y % 400 == 0 else 'not'} of 400, so it is {'' if y % 400 == 0 else 'not '}a leap year."
    return f"The last two digits {y % 100:02d} divided by 4 leave {y % 4}, so {y} is {'' if y % 4 == 0 else 'not '}a leap year."


def long_date(d):
    return f"{W.MONTHS[d.month - 1]} {d.day}, {d.year}"


def date_shown(rng, d, year=True):
    r = rng.random()
    m = W.MONTHS[d.month - 1]
    if not year:
        return f"{m} {d.day}" if r < 0.6 else f"{d.day} {m}"
    return f"{m} {d.day}, {d.year}" if r < 0.5 else f"{d.day} {m} {d.year}" if r < 0.75 else d.isoformat()


def day_of_year_line(d):
    """Day number in the year by adding the months before it."""
    days = [MONTH_DAYS[i] + (i == 1 and is_leap(d.year)) for i in range(d.month - 1)]
    total, text = 0, ""
    for i, n in enumerate(days):
        total += n
        text += f"{W.MONTHS[i][:3]} {n}: {total}, "
    return text + f"plus {d.day}: {total + d.day}", total + d.day


def random_date(rng, low=2000, high=2035):
    return datetime.date(rng.randint(low, high), 1, 1) + datetime.timedelta(rng.randint(0, 364))


def weekday_of_date(rng):
    d = random_date(rng)
    new_year = W.DAYS[datetime.date(d.year, 1, 1).weekday()]
    line, n = day_of_year_line(d)
    text = f"{leap_line(d.year)} January 1, {d.year} is a {new_year}. Day of the year: {line}. {n}-1={n - 1} days later. {n - 1}/7={(n - 1) // 7} rest {(n - 1) % 7}. {new_year} plus {(n - 1) % 7} is {W.DAYS[d.weekday()]}."
    user = ask(rng, rng.choice(["{What|Which} {day of the week|weekday|day} {is|was} <d>?", "On {what|which} {day of the week|weekday|day} {does|did} <d> fall?", "{Tell me|Find} the {weekday|day of the week} {of|for} <d>."]), d=date_shown(rng, d))
    return Sample(user, f"{long_date(d)} is a {W.DAYS[d.weekday()]}.", ("text", W.DAYS[d.weekday()]), text, W.DAYS[d.weekday()], low_analysis=True)


def days_between(rng):
    year = rng.randint(2000, 2035)
    a, b = sorted(datetime.date(year, 1, 1) + datetime.timedelta(rng.randint(0, 364)) for _ in range(2))
    if rng.random() < 0.5:
        b = min(a + datetime.timedelta(rng.randint(1, 70)), datetime.date(year, 12, 31))
    n = (b - a).days
    with_year = rng.random() < 0.6 or (a.month <= 2 < b.month)
    user = ask(rng, rng.choice(["How many days {are there |are |lie |}{between|from} <a> {and|to} <b>?", "How {long|many days} is it from <a> {to|until} <b>?", "{Count|Calculate} the days {between|from} <a> {and|to} <b>."]), a=date_shown(rng, a, with_year), b=date_shown(rng, b, with_year))
    text = ""
    if a.month <= 2 < b.month:
        text = leap_line(year) + " "
    if a.month == b.month:
        text += f"Same month: {b.day}-{a.day}={n}."
    else:
        last = MONTH_DAYS[a.month - 1] + (a.month == 2 and is_leap(year))
        total = last - a.day
        text += f"{W.MONTHS[a.month - 1]} has {last} days: {last}-{a.day}={total} left."
        for m in range(a.month, b.month - 1):
            k = MONTH_DAYS[m] + (m == 1 and is_leap(year))
            text += f" {W.MONTHS[m]} {k}: {total}+{k}={total + k}."
            total += k
        text += f" {W.MONTHS[b.month - 1]} {b.day}: {total}+{b.day}={n}."
    return Sample(user, f"From {W.MONTHS[a.month - 1]} {a.day} to {W.MONTHS[b.month - 1]} {b.day} it is {n} day{'' if n == 1 else 's'}.", ("text", f"is {n} day"), text, f"{n} days", low_analysis=True)


def shift_date(rng):
    d = random_date(rng)
    k = rng.choice([1, 1, 7, rng.randint(2, 10), rng.randint(2, 40)])
    back = rng.random() < 0.3
    e = d - datetime.timedelta(k) if back else d + datetime.timedelta(k)
    unit = "1 day" if k == 1 else f"{k} days"
    if k == 7 and rng.random() < 0.6:
        unit = rng.choice(["1 week", "one week", "a week"])
    user = ask(rng, ("{What|Which} {date is|day is|is the date} <k> before <d>?" if back else "{{What|Which} {date is|day is|is the date} <k> after <d>?|What is <d> plus <k>?|<k> {after|from} <d> is what date?}"), k=unit, d=date_shown(rng, d))
    cur, left, text = d, k, ""
    if back:
        if left >= d.day:
            prev = d.replace(day=1) - datetime.timedelta(1)
            text = f"{d.day}-{left}={d.day - left}, which is before the 1st. {W.MONTHS[prev.month - 1]} {prev.year} has {prev.day} days: {prev.day}{'-' + str(left - d.day)}={prev.day - left + d.day}. "
            if prev.day - left + d.day < 1:
                pp = prev.replace(day=1) - datetime.timedelta(1)
                text += f"{W.MONTHS[pp.month - 1]} {pp.year} has {pp.day} days: {pp.day}-{left - d.day - prev.day}={pp.day - (left - d.day - prev.day)}. "
        else:
            text = f"{d.day}-{left}={d.day - left}. "
    else:
        day = d.day + left
        text = f"{d.day}+{left}={day}. "
        while True:
            last = MONTH_DAYS[cur.month - 1] + (cur.month == 2 and is_leap(cur.year))
            text += f"{W.MONTHS[cur.month - 1]} {cur.year} has {last} days. "
            if day <= last:
                break
            text += f"{day}-{last}={day - last} in the next month. "
            day -= last
            cur = (cur.replace(day=1) + datetime.timedelta(32)).replace(day=1)
    return Sample(user, f"It is {long_date(e)}.", ("text", long_date(e)), text + f"So {long_date(e)}.", long_date(e), low_analysis=k > 1)


def calendar(rng, effort):
    r = rng.random()
    if r < 0.14:
        return weekday_of_date(rng)
    if r < 0.34:
        return days_between(rng)
    if r < 0.46:
        return shift_date(rng)
    if r < 0.62:
        i, k = rng.randrange(7), rng.choice([1, 2, 3, rng.randint(1, 7), rng.randint(4, 30), rng.randint(8, 100)])
        back = rng.random() < 0.25
        j = (i - k if back else i + k) % 7
        user = ask(rng, ("{Today is|It is|If today is} <d>{. |, }{what|which} {day|weekday|day of the week} was {it |}<k> days ago?" if back else
                         "{{Today is|It is|If today is} <d>{. |, }{what|which} {day|weekday|day of the week} {will it be|is it} in <k> days?|{What|Which} day {comes|is} <k> days after <d>?}"), d=W.DAYS[i], k=k)
        text = f"{k}/7={k // 7} rest {k % 7}. {W.DAYS[i]} {'minus' if back else 'plus'} {k % 7} is {W.DAYS[j]}."
        return Sample(user, f"It {'was' if back else 'is'} {W.DAYS[j]}.", ("text", W.DAYS[j]), text, W.DAYS[j])
    if r < 0.72:
        y = rng.choice([rng.randint(1990, 2040), rng.randint(1700, 2400), rng.choice([1700, 1800, 1900, 2000, 2100, 2200, 2300, 2400])])
        user = ask(rng, "{{Is|Was} <y> a leap year?|{Does|Did} <y> have {366 days|a February 29}?|How many days {does|did} {the year |}<y> have?|How many days are {there |}in {the year |}<y>?}", y=y)
        final = f"{y} has {366 if is_leap(y) else 365} days." if user.lower().startswith(("how many", "hwo", "how")) or "how many" in user.lower() else f"{'Yes' if is_leap(y) else 'No'}, {y} is {'' if is_leap(y) else 'not '}a leap year."
        return Sample(user, final, ("exact", final), leap_line(y), final.split(",")[0])
    if r < 0.84:
        i = rng.randrange(12)
        if rng.random() < 0.5:
            y = rng.randint(1995, 2035) if rng.random() < 0.5 else None
            n = MONTH_DAYS[i] + (i == 1 and y is not None and is_leap(y))
            user = ask(rng, "How many days {does|are in|are there in|has} <m>{ have|}?".replace("{does|", "{").replace("{ have|}", ""), m=W.MONTHS[i] + (f" {y}" if y else ""))
            where = W.MONTHS[i] + (f" {y}" if y else "")
            text = (leap_line(y) + " " if y and i == 1 else "") + f"{where} has {n} days."
            return Sample(user, f"{where} has {n} days{', and 29 in a leap year' if i == 1 and not y else ''}.", ("text", f"{n} days"), text, f"{n} days")
        k = rng.choice([-1, 1, 1, 2, 3])
        j = (i + k) % 12
        if rng.random() < 0.5:
            user = ask(rng, "{What|Which} month {comes|is} {right |}<w> <m>?", w="before" if k < 0 else "after", m=W.MONTHS[i])
            k = max(-1, min(1, k))
            j = (i + k) % 12
            return Sample(user, f"{W.MONTHS[j]} comes {'before' if k < 0 else 'after'} {W.MONTHS[i]}.", ("lead", W.MONTHS[j]), f"{W.MONTHS[i]} is month {i + 1}. Month {j + 1} is {W.MONTHS[j]}.", W.MONTHS[j])
        if rng.random() < 0.5:
            user = ask(rng, "{What|Which} {month is|is the} {number <n>|month number <n>|month <n>}{ of the year|}?".replace("is the}", "is}"), n=i + 1)
            return Sample(user, f"Month {i + 1} is {W.MONTHS[i]}.", ("text", W.MONTHS[i]), f"Counting the months, number {i + 1} is {W.MONTHS[i]}.", W.MONTHS[i])
        user = ask(rng, "{What|Which} {number|month number} is <m>?", m=W.MONTHS[i])
        return Sample(user, f"{W.MONTHS[i]} is month {i + 1}.", ("text", str(i + 1)), f"{W.MONTHS[i]} is month {i + 1} of 12.", str(i + 1))
    if r < 0.92:  # the date that the system message gives
        d = random_date(rng, 2024, 2030)
        kind = rng.randrange(4)
        if kind == 0:
            return Sample(ask(rng, "{What is|What's|Tell me} {the date today|today's date|the current date}{?|}"), f"Today is {long_date(d)}.", ("text", long_date(d)), f"The current date is {d.isoformat()}.", long_date(d), date=d.isoformat())
        if kind == 1:
            e = d + datetime.timedelta(1)
            return Sample(ask(rng, "{What is|What's} {the date tomorrow|tomorrow's date}?"), f"Tomorrow is {long_date(e)}.", ("text", long_date(e)), f"The current date is {d.isoformat()}. The day after is {e.isoformat()}.", long_date(e), date=d.isoformat())
        if kind == 2:
            return Sample(ask(rng, "{What|Which} {year is it|year do we have|is the current year}?"), f"It is {d.year}.", ("text", str(d.year)), f"The current date is {d.isoformat()}.", str(d.year), date=d.isoformat())
        return Sample(ask(rng, "{What|Which} month {is it|do we have|is this}{ now|}?"), f"It is {W.MONTHS[d.month - 1]}.", ("text", W.MONTHS[d.month - 1]), f"The current date is {d.isoformat()}. Month {d.month} is {W.MONTHS[d.month - 1]}.", W.MONTHS[d.month - 1], date=d.isoformat())
    i = rng.randrange(7)
    k = rng.choice([-1, 1])
    user = ask(rng, "{What|Which} day {comes|is} {right |}<w> <d>?", w="before" if k < 0 else "after", d=W.DAYS[i])
    j = (i + k) % 7
    return Sample(user, f"{W.DAYS[j]} comes {'before' if k < 0 else 'after'} {W.DAYS[i]}.", ("lead", W.DAYS[j]), f"In the week {W.DAYS[j]} is {'before' if k < 0 else 'after'} {W.DAYS[i]}.", W.DAYS[j])
