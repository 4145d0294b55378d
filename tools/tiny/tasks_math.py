"""Arithmetic, comparing and sorting: questions, worked steps for three efforts, answers.

A sixteenth of the two-digit by two-digit products is kept out of training (`is_held_out`), so that the
evaluation can ask products never seen.
"""
from phrasing import ask
from sample import Sample
import words as W

PLACES = ["ones", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions", "ten millions", "hundred millions"]
SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def is_held_out(a, b):
    """Products of two two-digit numbers that training never shows, in either order."""
    a, b = sorted((a, b))
    return (a * 7919 + b * 104729 + a * b * 31) % 16 == 3


def spoken(n):
    """n below 100 in words."""
    if n <= 20:
        return SMALL[n]
    return TENS[n // 10 - 2] + ("-" + SMALL[n % 10] if n % 10 else "")


def shown(rng, n):
    """A number as people type it: plain, now and then with a thousands comma or in words."""
    r = rng.random()
    if n < 0:
        return "-" + shown(rng, -n)
    if n >= 1000 and r < 0.06:
        return f"{n:,}"
    if n < 100 and r < 0.03:
        return spoken(n)
    return str(n)


def number(rng, digits):
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10 ** digits - 1)


def digits_of(n):
    return [int(c) for c in reversed(str(n))]


def sum_steps(a, b, long=False):
    """Digit by digit addition from the right."""
    x, y, carry, steps = digits_of(a), digits_of(b), 0, []
    for i in range(max(len(x), len(y))):
        p, q = (x[i] if i < len(x) else 0), (y[i] if i < len(y) else 0)
        t = p + q + carry
        step = f"{p}+{q}{'+1' if carry else ''}={t}"
        carry = t // 10
        step += f" write {t % 10}" + (" carry 1" if carry else "")
        steps.append(f"{PLACES[i]}: {step}" if long else step)
    if carry:
        steps.append("carry 1 in front" if not long else "the last carry: write 1")
    return steps


def difference_steps(a, b, long=False):
    """Digit by digit subtraction from the right, a >= b >= 0."""
    x, y, borrow, steps = digits_of(a), digits_of(b), 0, []
    for i in range(len(x)):
        p, q = x[i], (y[i] if i < len(y) else 0)
        left = f"{p}-1-{q}" if borrow else f"{p}-{q}"
        d = p - borrow - q
        if d < 0:
            step = f"{left} borrow, {p - borrow + 10}-{q}={d + 10} write {d + 10}"
            borrow = 1
        else:
            step = f"{left}={d} write {d}"
            borrow = 0
        steps.append(f"{PLACES[i]}: {step}" if long else step)
    return steps


def digit_product_steps(a, d):
    """a times one digit, from the right with carries."""
    carry, steps = 0, []
    x = digits_of(a)
    for i, p in enumerate(x):
        t = p * d + carry
        step = f"{p}*{d}{f'+{carry}' if carry else ''}={t}"
        carry = t // 10
        if i < len(x) - 1:
            step += f" write {t % 10}" + (f" carry {carry}" if carry else "")
        steps.append(step)
    return steps


def add_analysis(a, b, effort):
    if effort == "medium":
        return f"{a}+{b}: " + "; ".join(sum_steps(a, b)) + f". So {a}+{b}={a + b}."
    s = a + b
    text = f"We add {a} and {b} digit by digit from the right.\n" + "\n".join(sum_steps(a, b, True)) + f"\nSo {a}+{b}={s}.\n"
    return text + f"Check: the last digits {a % 10}+{b % 10} end in {s % 10}, and {s}-{b}={a}. Good."


def subtract_analysis(a, b, effort):
    big, small, d = max(a, b), min(a, b), a - b
    head = f"{a} is smaller than {b}, so the result is negative: {b}-{a} with a minus sign.\n" if a < b else ""
    zeros = str(abs(d)).zfill(len(str(big)))
    trim = f" Drop the leading zeros: {abs(d)}." if zeros != str(abs(d)) else ""
    tail = f" So {a}-{b}={d}."
    if effort == "medium":
        return head.strip() + (" " if head else "") + f"{big}-{small}: " + "; ".join(difference_steps(big, small)) + f". That is {zeros}." + trim + tail
    text = f"We subtract {b} from {a}.\n{head}{big}-{small}, digit by digit from the right.\n" + "\n".join(difference_steps(big, small, True))
    return text + f"\nThat is {zeros}.{trim}{tail}\nCheck: {abs(d)}+{small}={big}. Good."


def multiply_analysis(a, b, effort):
    """Partial products for each digit of b, then their sum."""
    nl = "\n" if effort == "high" else " "
    text = f"{a}*{b}. " if effort == "medium" else f"We multiply {a} by {b} step by step.\n"
    if b < 10 and a < 10:
        return text + f"{a}*{b}={a * b} from the table."
    if len(str(b)) > len(str(a)):
        text += f"Swap: {b}*{a}.{nl}"
        a, b = b, a
    parts = []
    for i, d in enumerate(digits_of(b)):
        p = a * d
        if d == 0:
            text += f"{a}*0=0."
        else:
            text += f"{a}*{d}: " + "; ".join(digit_product_steps(a, d)) + f"; {p}."
        if i and p:
            text += f" With {i} zero{'s' if i > 1 else ''}: {p * 10 ** i}."
        text += nl
        if p:
            parts.append(p * 10 ** i)
    total = parts[0] if parts else 0
    for p in parts[1:]:
        text += f"{total}+{p}: " + "; ".join(sum_steps(total, p)) + f"; {total + p}." + nl
        total += p
    text += f"So {a}*{b}={total}."
    if effort == "high":
        text += f"\nCheck: the last digits {a % 10}*{b % 10}={a % 10 * (b % 10)} end in {total % 10}, and {total} ends in {total % 10}. Good."
    return text


def divide_analysis(a, b, effort):
    rest, steps, quotient = 0, [], ""
    for c in str(a):
        cur = rest * 10 + int(c)
        steps.append(f"{cur}/{b}={cur // b} rest {cur % b}")
        quotient += str(cur // b)
        rest = cur % b
    text = f"{a}/{b}: " + "; ".join(steps) + f". Quotient {int(quotient)}, rest {rest}."
    if effort == "high":
        text += f"\nCheck: {int(quotient)}*{b}={int(quotient) * b}" + (f", plus {rest} is {a}" if rest else "") + ". Good."
    return text


ADD_ASK = ["{What is|What's|Whats|Calculate|Compute|Work out|Tell me|Find|Solve|Evaluate} <a>{ + |+| plus | + }<b>{?|.||?}", "<a>{ + |+| plus }<b>{| =| = ?|?|=}",
           "{Add|Sum} <a> and <b>.", "{What is|What's|Find|Give me|Compute|Calculate} the sum of <a> and <b>?", "{How much|What} {is|do you get for|does it make if I add} <a> {plus|and|+} <b>?",
           "{Can|Could} you {add|sum up} <a> and <b>{ for me|}?", "{If I add|Adding} <a> {and|to|plus} <b>{, what do I get|, what is the result| gives what}?",
           "{I need|Give me} the {total|sum} of <a> {and|plus|+} <b>.", "<a> and <b> {together|in total|added up}?", "{Increase <a> by <b>|What is <b> more than <a>|Total of <a> and <b>}{?|.}"]
SUB_ASK = ["{What is|What's|Whats|Calculate|Compute|Work out|Tell me|Find|Solve|Evaluate} <a>{ - |-| minus | − | take away }<b>{?|.||?}", "<a>{ - |-| minus }<b>{| =| = ?|?|=}",
           "{Subtract|Take|Deduct} <b> from <a>.", "{What is|What's|Find|Give me|Compute|Calculate} the difference {between|of} <a> and <b>?", "{How much|What} is <a> {minus|less|-|take away} <b>?",
           "{Can|Could} you {subtract|take} <b> from <a>{ for me|}?", "{If I take|Taking} <b> {away from|from|off} <a>{, what is left|, what remains|, what do I get}?",
           "{Decrease <a> by <b>|What is <b> less than <a>|What is left of <a> after taking away <b>}{?|.}"]
MUL_ASK = ["{What is|What's|Whats|Calculate|Compute|Work out|Tell me|Find|Solve|Evaluate} <a>{ * |*| times | x |x| × | multiplied by }<b>{?|.||?}", "<a>{ * |*| times | x | × }<b>{| =| = ?|?|=}",
           "{Multiply} <a> {by|and|with|times} <b>.", "{What is|What's|Find|Give me|Compute|Calculate} the product of <a> and <b>?", "{How much|What} is <a> {times|x|multiplied by|*} <b>?",
           "{Can|Could} you multiply <a> {by|and|with} <b>{ for me|}?", "{If I multiply|Multiplying} <a> {by|with} <b>{, what do I get|, what is the result| gives what}?"]
DIV_ASK = ["{What is|What's|Calculate|Compute|Work out} <a>{ / | divided by |/| ÷ | : }<b>{?|.|}", "{Divide|Split} <a> {by|into} <b>.", "<a>{ / |/| divided by }<b>{ =|?|}", "How {often|many times} does <b> {go|fit} into <a>?"]


def lengths(rng):
    r = rng.random()
    return rng.choice([1, 2]) if r < 0.22 else rng.choice([2, 3, 3, 4, 4, 4]) if r < 0.93 else rng.choice([5, 6, 7])


def operands(rng):
    if rng.random() < 0.5:
        n = lengths(rng)
        return number(rng, n), number(rng, n)
    return number(rng, lengths(rng)), number(rng, lengths(rng))


def addition(rng, effort):
    a, b = operands(rng)
    s = str(a + b)
    return Sample(ask(rng, rng.choice(ADD_ASK), a=shown(rng, a), b=shown(rng, b)), f"{a} + {b} = {s}", ("number", s), add_analysis(a, b, effort), s)


def subtraction(rng, effort):
    a, b = operands(rng)
    if a < b and rng.random() < 0.75:
        a, b = b, a
    s = str(a - b)
    return Sample(ask(rng, rng.choice(SUB_ASK), a=shown(rng, a), b=shown(rng, b)), f"{a} - {b} = {s}", ("number", s), subtract_analysis(a, b, effort), s)


def product_operands(rng, kinds):
    while True:
        m, n = rng.choice(kinds)
        a, b = number(rng, m), number(rng, n)
        if not (9 < a < 100 and 9 < b < 100 and is_held_out(a, b)):
            return a, b


def product(rng, a, b, effort):
    s = str(a * b)
    return Sample(ask(rng, rng.choice(MUL_ASK), a=shown(rng, a), b=shown(rng, b)), f"{a} * {b} = {s}", ("number", s), multiply_analysis(a, b, effort), s)


def multiplication(rng, effort):
    kinds = [(2, 2)] * 9 + [(1, 1), (1, 1), (2, 1), (1, 2), (3, 1), (3, 1), (1, 3), (3, 2), (3, 2), (2, 3), (4, 1)] + ([(3, 3)] if effort == "high" else [])
    if effort == "low":
        kinds = [(1, 1), (2, 1), (1, 2), (2, 2), (2, 2), (2, 2), (3, 1)]
    return product(rng, *product_operands(rng, kinds), effort)


def division(rng, effort):
    b = rng.randint(2, 12)
    q = number(rng, rng.choice([1, 2, 2, 3]))
    rest = rng.randint(1, b - 1) if rng.random() < 0.3 else 0
    a = q * b + rest
    final = f"{a} / {b} = {q}" + (f" remainder {rest}" if rest else "")
    return Sample(ask(rng, rng.choice(DIV_ASK), a=shown(rng, a), b=b), final, ("exact", final), divide_analysis(a, b, effort), final.split("= ")[1])


def several(rng, effort):
    """Sums of three to five numbers and mixed expressions of three numbers."""
    if rng.random() < 0.6:
        nums = [number(rng, rng.choice([1, 2, 2, 3])) for _ in range(rng.randint(3, 5))]
        joined = rng.choice([" + ", "+", ", "]).join(map(str, nums))
        user = ask(rng, "{What is|Calculate|Compute|What's} <e>?" if "+" in joined else "{Add up|Sum|Add|What is the sum of|What is the total of} <e>{.|}", e=joined)
        total, text = nums[0], ""
        for n in nums[1:]:
            text += f"{total}+{n}: " + "; ".join(sum_steps(total, n)) + f"; {total + n}.\n"
            total += n
        final = " + ".join(map(str, nums)) + f" = {total}"
        return Sample(user, final, ("number", str(total)), text + f"So the sum is {total}.", str(total), low_analysis=True)
    a, b, c = (rng.randint(2, 30) for _ in range(3))
    kind = rng.randrange(3)
    if kind == 0:
        expr, value, text = f"{a} + {b} * {c}", a + b * c, f"Multiply first: {b}*{c}={b * c}. Then {a}+{b * c}={a + b * c}."
    elif kind == 1:
        expr, value, text = f"({a} + {b}) * {c}", (a + b) * c, f"Brackets first: {a}+{b}={a + b}. Then {a + b}*{c}={(a + b) * c}."
    else:
        expr, value, text = f"{a} + {b} - {c}", a + b - c, f"From the left: {a}+{b}={a + b}. Then {a + b}-{c}={a + b - c}."
    shown_expr = expr if rng.random() < 0.7 else expr.replace(" ", "")
    return Sample(ask(rng, "{What is|Calculate|Compute|Evaluate|Solve} <e>{?|}", e=shown_expr), f"{expr} = {value}", ("number", str(value)), text, str(value))


def handy(rng, effort):
    """Double, half, square, next, even or odd, and the like."""
    n = number(rng, rng.choice([1, 2, 2, 3]))
    kind = rng.randrange(8)
    if kind == 0:
        return Sample(ask(rng, "{{What is|What's|Calculate|Find} {double|twice|two times} <n>?|Double <n>.}", n=n),
                      f"Twice {n} is {2 * n}.", ("number", str(2 * n)), f"{n}+{n}={2 * n}.", str(2 * n))
    if kind == 1:
        return Sample(ask(rng, "{What is|What's|Find} half of <n>?", n=2 * n), f"Half of {2 * n} is {n}.", ("number", str(n)), f"{n}+{n}={2 * n}, so half of {2 * n} is {n}.", str(n))
    if kind == 2:
        n = rng.randint(1, 20)
        return Sample(ask(rng, "{What is|What's|Calculate} {<n> squared|the square of <n>|<n>^2}?", n=n), f"{n} * {n} = {n * n}", ("number", str(n * n)), f"{n} squared is {n}*{n}={n * n}.", str(n * n))
    if kind == 3:
        return Sample(ask(rng, "{What|Which} number comes {right |}after <n>?", n=n), f"After {n} comes {n + 1}.", ("number", str(n + 1)), f"{n}+1={n + 1}.", str(n + 1))
    if kind == 4:
        return Sample(ask(rng, "{What|Which} number comes {right |}before <n>?", n=n + 1), f"Before {n + 1} comes {n}.", ("number", str(n)), f"{n + 1}-1={n}.", str(n))
    if kind == 6:
        n = rng.randint(2, 200)
        text, prime = "", n > 1
        for d in (2, 3, 5, 7, 11, 13):
            if d * d > n:
                break
            text += f"{n}/{d}={n // d} rest {n % d}. "
            if n % d == 0:
                prime = False
                break
        user = ask(rng, "Is <n> {a prime{ number|}|prime}?", n=n)
        return Sample(user, f"{'Yes' if prime else 'No'}, {n} is {'' if prime else 'not '}a prime number.", ("lead", "Yes" if prime else "No"), text + f"{n} is {'' if prime else 'not '}prime.", "Yes" if prime else "No")
    if kind == 5:
        word = "even" if n % 2 == 0 else "odd"
        return Sample(ask(rng, "Is <n> {even or odd|odd or even|an even or an odd number}?", n=n), f"{n} is {word}.", ("text", word), f"The last digit of {n} is {n % 10}, which is {word}.", word)
    if rng.random() < 0.6:
        a, base = rng.choice([5, 15, 25, 75, rng.randint(1, 99)]), rng.randint(1, 30) * 100
        one, value = base // 100, a * base // 100
        return Sample(ask(rng, "{What is|What's|Calculate|How much is} <a>{%| percent} of <b>?", a=a, b=base), f"{a}% of {base} is {value}.", ("number", str(value)),
                      f"1% of {base} is {one}. " + (f"{a}*{one}={value}." if a < 10 and one < 10 else multiply_analysis(a, one, "medium")), str(value))
    a = rng.randint(1, 9) * 10
    base = rng.randint(1, 40) * 10
    return Sample(ask(rng, "{What is|What's|Calculate|How much is} <a>{%| percent} of <b>?", a=a, b=base), f"{a}% of {base} is {a * base // 100}.", ("number", str(a * base // 100)),
                  f"10% of {base} is {base // 10}. {a // 10}*{base // 10}={a * base // 100}.", str(a * base // 100))


def signed(rng, effort):
    """Sums and differences in which a number carries a minus sign."""
    a, b = number(rng, rng.choice([1, 2, 2, 3])), number(rng, rng.choice([1, 2, 2, 3]))
    gap = rng.choice([" ", " ", ""])
    kind = rng.randrange(4)
    expr, plain, value = [(f"-{a}{gap}+{gap}{b}", f"{b}-{a}", b - a), (f"{a}{gap}+{gap}(-{b})", f"{a}-{b}", a - b), (f"-{a}{gap}-{gap}{b}", f"-({a}+{b})", -a - b), (f"{a}{gap}-{gap}(-{b})", f"{a}+{b}", a + b)][kind]
    steps = [lambda: subtract_analysis(b, a, "medium"), lambda: subtract_analysis(a, b, "medium"), lambda: add_analysis(a, b, "medium") + f" With the minus sign {value}.", lambda: add_analysis(a, b, "medium")][kind]()
    shown_expr = expr.replace("-", rng.choice(["-", "-", "minus "])) if expr.startswith("-") and gap and rng.random() < 0.15 else expr
    return Sample(ask(rng, "{{What is|Calculate|Compute|What's} <e>{?|}|<e>{| =}}", e=shown_expr), f"{expr} = {value}", ("number", str(value)), f"{expr} is {plain}. {steps}", str(value))


def decimals(rng, effort):
    """Sums and differences of decimal numbers, as whole numbers with the point put back."""
    places = [rng.randint(1, 2), rng.randint(0, 2)]
    a, b = (round(rng.randint(1, 10 ** rng.randint(2, 4)) / 100, p) for p in places)
    if rng.random() < 0.4 and a < b:
        a, b = b, a
    plus = rng.random() < 0.6 or a < b
    n = max(len(str(x).split(".")[1]) if "." in str(x) and not str(x).endswith(".0") else 0 for x in (a, b)) or 1
    x, y = round(a * 10 ** n), round(b * 10 ** n)
    show = lambda v: f"{v / 10 ** n:.{n}f}"
    total = x + y if plus else x - y
    sa, sb, sv = (f"{v / 10 ** n:.{n}f}".rstrip("0").rstrip(".") for v in (x, y, total))
    sign = "+" if plus else "-"
    steps = add_analysis(x, y, "medium") if plus else subtract_analysis(x, y, "medium")
    asks = ADD_ASK if plus else SUB_ASK
    return Sample(ask(rng, rng.choice(asks[:4]), a=sa, b=sb), f"{sa} {sign} {sb} = {sv}", ("number", sv), f"With {n} decimal{'s' if n > 1 else ''}: {show(x)} and {show(y)}. {steps} With the point: {show(total)}.", sv)


def power(rng, effort):
    base = rng.randint(2, 10)
    exp = rng.randint(2, 10 if base == 2 else 5 if base in (3, 10) else 3)
    value, text = base, ""
    for _ in range(exp - 1):
        text += f"{value}*{base}={value * base}. "
        value *= base
    return Sample(ask(rng, "{What is|What's|Calculate|Compute} {<a> to the power of <b>|<a>^<b>|<a> to the <b>th power|<a>**<b>}{?|}", a=base, b=exp), f"{base}^{exp} = {value}", ("number", str(value)), text + f"So {base}^{exp}={value}.", str(value))


def odd_sums(rng, effort):
    r = rng.random()
    return signed(rng, effort) if r < 0.4 else decimals(rng, effort) if r < 0.8 else power(rng, effort)


def sequence(rng, effort):
    """Counting on or back by a step, and the next number of a row."""
    step = rng.choice([1, 1, 1, 2, 3, 5, 10, rng.randint(2, 20)])
    start, n = rng.randint(0, rng.choice([10, 100, 500])), rng.randint(3, 10)
    nums = [start + i * step for i in range(n)]
    if rng.random() < 0.3:
        nums.reverse()
    shown_nums = ", ".join(map(str, nums))
    r = rng.random()
    if r < 0.45:
        nxt = nums[-1] + (nums[1] - nums[0])
        user = ask(rng, "{What|Which} {number |}{comes next|is next|follows}{: | in the {row|sequence|series} }<l>{, ...||...}?", l=shown_nums)
        diff = nums[1] - nums[0]
        return Sample(user, f"The next number is {nxt}.", ("number", str(nxt)), f"The step is {nums[1]}-{nums[0]}={diff}. {nums[-1]}{diff:+d}={nxt}.", str(nxt))
    back = nums[1] < nums[0]
    if step == 1:
        user = ask(rng, "{Count|Please count|Can you count} {from|starting at} <a> {down |}to <b>{.|}" if back else "{Count|Please count|Can you count|List the numbers} from <a> {up |}to <b>{.|}", a=nums[0], b=nums[-1])
        if nums[0] == 1 and rng.random() < 0.5:
            user = ask(rng, "{Count|Please count|Can you count} to <b>{.|}", b=nums[-1])
    else:
        user = ask(rng, "Count from <a> {down |}to <b> {by|in steps of} <s>{.|}" if back else "Count from <a> {up |}to <b> {by|in steps of} <s>{.|}", a=nums[0], b=nums[-1], s=step)
    return Sample(user, shown_nums, ("exact", shown_nums), f"From {nums[0]} to {nums[-1]} in steps of {step}{' down' if back else ''}.", shown_nums)


STORY_ADD = ["{I|We|You} have <a> <x> and <b> {<x> more|more}. How many {<x> |}do {I|we|you} have{ in total| altogether|}?", "I have <a> <c1> <x> and <b> <c2> <x>. How many <x> do I have?", "<p> {read|ran|walked|saved|earned} <a> {pages|miles|dollars|euros} {on|last} <d1> and <b> on <d2>. How {many|much} in total?", "If {I|you} have <a> <x> and {buy|get|find} <b> more, how many {<x> |}do {I|you} have?", "You have <a> <x> and <b> <y>s. How many things do you have?",
             "<p> has <a> <x> and {buys|finds|gets|picks|wins|receives} <b> more. How many <x> does <p> have{ now| in total|}?", "There are <a> <x> in {the|a} <l>. {<b> more|Another <b>} {arrive|are added|come}. How many <x> are there{ now|}?",
             "<p> {picked|counted|saw|sold|made} <a> <x> on <d1> and <b> {on|more on} <d2>. How many <x> is that {altogether|in all|in total}?", "A {shop|farm|school|box} has <a> <c1> <x> and <b> <c2> <x>. How many <x> {are there|does it have} {in total|altogether|in all}?"]
STORY_SUB = ["If {I|you} have <a> <x> and {give|sell|hand} <b> to {my|a|your} friend, how many {<x> |}do {I|you} have left?", "{I|We} {have|had} <a> <x> and {give away|gave away|eat|ate|lose|lost} <b>. How many are left?", "<p> had <a> {dollars|euros|coins}. {She|He|<p>} {spent|paid|lost|gave away} <b>. How much {is left|remains|does {she|he} have {left|now}}?", "<p> has to {read|walk|drive} <a> {pages|miles|km} and has done <b>. How many {remain|are left}?", "A {bus|train} has <a> {people|passengers}. <b> get off. How many are left?", "<p> is <a> years old. <q> is <b> years younger. How old is <q>?",
             "<p> has <a> <x> and {gives away|loses|eats|sells|uses} <b>{ of them|}. How many <x> {are left|remain|does <p> have left|does <p> still have}?", "There were <a> <x> in the <l>. {<b> were taken away|<b> were removed|<b> left}. How many {are left|remain}?",
             "<p> has <a> <x>. <q> has <b> {fewer|less}. How many <x> does <q> have?", "A box holds <a> <x>. <b> of them are broken. How many are {fine|not broken|good}?"]
STORY_MUL = ["{I|<p>|We} bought <a> <x> {at|for} <b> {dollars|euros} each. How much did {I|<p>|we} {spend|pay}?", "A {train|bus|hall|school} has <a> {cars|rows|rooms} with <b> seats each. How many seats {are there|does it have}?", "How much {do|would} <a> <x> cost at <b> {dollars|euros} {each|apiece}?", "{I|<p>} {work|run|read} <b> {hours|km|pages} {a|every|per} day for <a> days. How {many|much} is that?", "Each of <a> {children|friends|students|people} {has|gets|eats} <b> <x>. How many <x> {is that|are there} {in total|altogether}?",
             "<p> has <a> {boxes|bags|crates|baskets} with <b> <x> {each|in each}. How many <x> {are there in total|does <p> have|are there altogether}?", "There are <a> {rows|shelves|tables} with <b> <x> {each|in each row|on each}. How many <x> are there?",
             "{One <y> costs|Each <y> costs|If one <y> costs} <b> {dollars|euros|coins}{. How much do|, how much do|. What do} <a> <x> cost?", "<p> {reads|makes|sells|paints} <b> <x> {a|per|every} day. How many in <a> days?"]


def story(rng, effort):
    """Word problems of one step."""
    noun = rng.choice(W.FRUITS + W.OBJECTS + W.ANIMALS)
    many = W.plural(noun)
    p, q = W.first_name(rng), W.first_name(rng)
    d1, d2 = rng.sample(W.DAYS, 2)
    c1, c2 = rng.sample(W.COLORS, 2)
    kind = rng.randrange(3)
    if kind == 2:
        a, b = product_operands(rng, [(1, 1), (1, 1), (1, 2), (2, 1), (2, 2)] if effort != "low" else [(1, 1), (1, 2), (2, 1)])
        template, value, sign = rng.choice(STORY_MUL), a * b, "*"
        text = multiply_analysis(a, b, effort)
    else:
        a, b = number(rng, rng.choice([1, 2, 2, 3])), number(rng, rng.choice([1, 2, 2, 3]))
        if kind == 0:
            template, value, sign, text = rng.choice(STORY_ADD), a + b, "+", add_analysis(a, b, effort)
        else:
            a, b = max(a, b), min(a, b)
            template, value, sign, text = rng.choice(STORY_SUB), a - b, "-", subtract_analysis(a, b, effort)
    word = {"+": "Adding", "-": "Taking away", "*": "Multiplying"}[sign]
    user = ask(rng, template, a=a, b=b, x=many, y=noun, p=p, q=q, l=rng.choice(W.PLACES), d1=d1, d2=d2, c1=c1, c2=c2)
    return Sample(user, f"{a} {sign} {b} = {value}, so the answer is {value}.", ("number", str(value)), f"{word}: {text}", str(value))


def digits_line(a, b):
    """Why a is above b, both whole numbers and not negative."""
    if len(str(a)) != len(str(b)):
        big, small = (a, b) if a > b else (b, a)
        return f"{big} has {len(str(big))} digits and {small} has {len(str(small))}, so {big} is larger."
    for i, (x, y) in enumerate(zip(str(a), str(b))):
        if x != y:
            big, small = (a, b) if a > b else (b, a)
            return f"Both have {len(str(a))} digits. Digit {i + 1}: {x} and {y}. They differ, {max(x, y)} is more than {min(x, y)}, so {big} is larger than {small}."
    return f"All digits of {a} and {b} are the same, so they are equal."


def compare(rng, effort):
    kind = rng.random()
    if kind < 0.25:  # decimals
        whole = rng.randint(0, 20)
        a, b = f"{whole}.{rng.randint(1, 99)}", f"{whole if rng.random() < .7 else rng.randint(0, 20)}.{rng.randint(1, 99)}"
        if float(a) == float(b):
            b = f"{whole + 1}.5"
        places = max(len(a.split(".")[1]), len(b.split(".")[1]))
        pa, pb = (f"{x}{'0' * (places - len(x.split('.')[1]))}" for x in (a, b))
        text = f"With {places} decimal{'s' if places > 1 else ''}: {pa} and {pb}. "
        wa, wb = pa.split("."), pb.split(".")
        if wa[0] != wb[0]:
            text += f"The whole parts are {wa[0]} and {wb[0]}, so "
        else:
            text += f"The whole parts are equal. After the point: {wa[1]} and {wb[1]}, so "
        big, small = (a, b) if float(a) > float(b) else (b, a)
        text += f"{big} is larger."
    else:
        n = rng.choice([1, 2, 3, 3, 4, 5])
        a = number(rng, n)
        b = number(rng, n if rng.random() < 0.7 else rng.choice([1, 2, 3, 4]))
        if rng.random() < 0.2 and a > 9:  # swapped digits
            s = list(str(a))
            s[-1], s[-2] = s[-2], s[-1]
            b = int("".join(s))
        text = digits_line(a, b)
        if a == b:
            user = ask(rng, "{Which is {larger|bigger|greater}|Which number is larger}, <a> or <b>?", a=a, b=b)
            return Sample(user, f"{a} and {b} are equal.", ("text", "equal"), text, "equal")
        big, small = max(a, b), min(a, b)
    if kind < 0.7:
        up = rng.random() < 0.6
        user = ask(rng, "{Which {number |one |}is|Which of these is|What is} {larger|bigger|greater|the larger one|higher|the greater number}{, |: |? }<a> or <b>?" if up
                   else "{Which {number |one |}is|Which of these is|What is} {smaller|less|lower|the smaller one|the lesser number}{, |: |? }<a> or <b>?", a=a, b=b)
        v = big if up else small
        return Sample(user, f"{v} is {'larger' if up else 'smaller'} than {small if up else big}.", ("lead", str(v)), text, str(v))
    up = rng.random() < 0.5
    user = ask(rng, "Is <a> {larger|bigger|greater|more|higher} than <b>?" if up else "Is <a> {smaller|less|lower} than <b>?", a=a, b=b)
    yes = (float(a) > float(b)) == up
    return Sample(user, f"{'Yes' if yes else 'No'}, {a} is {'larger' if float(a) > float(b) else 'smaller'} than {b}.", ("lead", "Yes" if yes else "No"), text, "Yes" if yes else "No")


def extreme(rng, effort):
    nums = rng.sample(range(0, rng.choice([20, 100, 1000, 10000])), rng.randint(3, 8))
    up = rng.random() < 0.5
    user = ask(rng, ("{What is|Which is|Find|Give me|Tell me} the {largest|biggest|greatest|highest|maximum} {number |value |}{of|in|among|out of} {these: |}<l>{?|.}" if up else
                     "{What is|Which is|Find|Give me|Tell me} the {smallest|lowest|least|minimum} {number |value |}{of|in|among|out of} {these: |}<l>{?|.}"), l=listed(rng, nums))
    best, text = nums[0], f"Start with {nums[0]}."
    for n in nums[1:]:
        better = n > best if up else n < best
        text += f" {n}: {'yes, new best' if better else f'no, keep {best}'}."
        best = n if better else best
    return Sample(user, f"The {'largest' if up else 'smallest'} number is {best}.", ("number", str(best)), text + f" So {best}.", str(best))


def listed(rng, items):
    r = rng.random()
    items = [str(i) for i in items]
    if r < 0.6:
        return ", ".join(items)
    if r < 0.75:
        return " ".join(items)
    if r < 0.9:
        return ", ".join(items[:-1]) + " and " + items[-1]
    return "[" + ", ".join(items) + "]"


def sort_numbers(rng, effort):
    low = -50 if rng.random() < 0.1 else 0
    nums = [rng.randint(low, rng.choice([20, 100, 100, 1000, 9999])) for _ in range(rng.randint(3, 8))]
    down = rng.random() < 0.35
    how = "{ from {largest to smallest|high to low|highest to lowest|big to small}| in descending order| descending|, largest first|, biggest first}" if down else "{ from {smallest to largest|low to high|lowest to highest|small to big}| in ascending order| ascending|, smallest first| in order||}"
    user = ask(rng, "{Sort|Order|Arrange|Please sort|Can you sort|Put in order} {these numbers|the numbers|the following numbers|this list|these}" + how + "{: |:\n}<l>" if rng.random() < 0.7 else "{Sort|Order|Arrange} <l>" + how + "{.|}", l=listed(rng, nums))
    ordered = sorted(nums, reverse=down)
    left, text = list(nums), ""
    for i, n in enumerate(ordered):
        if effort == "high":
            text += f"From {', '.join(map(str, left))} take the {'largest' if down else 'smallest'}: {n}.\n"
        left.remove(n)
    if effort == "medium":
        text = f"There are {len(nums)} numbers. {'Largest' if down else 'Smallest'} first: " + ", then ".join(map(str, ordered)) + "."
    else:
        text += f"That makes {len(nums)} numbers."
    final = ", ".join(map(str, ordered))
    return Sample(user, final, ("exact", final), text, final)


def sort_words(rng, effort):
    items = list(dict.fromkeys(W.any_word(rng) if rng.random() < 0.6 else rng.choice(W.FRUITS + W.ANIMALS + W.OBJECTS) for _ in range(rng.randint(3, 7))))
    if rng.random() < 0.25:
        items = list(dict.fromkeys(W.first_name(rng) for _ in range(rng.randint(3, 7))))
    down = rng.random() < 0.1
    user = ask(rng, ("{Sort|Order|Arrange|Put} {these {words|names|items}|the following words|the words}{ in reverse alphabetical order| in reverse alphabetical order|, Z to A}{: |:\n}<l>" if down else
                     "{Sort|Order|Arrange|Put} {these {words|names|items}|the following words|this list|the words}{ alphabetically| in alphabetical order| by alphabet| from A to Z|, A to Z}{: |:\n}<l>"), l=listed(rng, items))
    ordered = sorted(items, key=str.lower, reverse=down)
    if effort == "high":
        text = "First letters: " + ", ".join(f"{w} {w[0].lower()}" for w in items) + ".\n"
        text += "In order: " + ", ".join(f"{w[0].lower()} {w}" for w in ordered) + f".\nThat makes {len(items)} words."
    else:
        text = "First letters in order: " + ", ".join(f"{w[0].lower()} {w}" for w in ordered) + "."
    final = ", ".join(ordered)
    return Sample(user, final, ("exact", final), text, final)
