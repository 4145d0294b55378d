"""The tasks that the model's card states accuracies of, beside those of generate.py; needs no torch."""
import tasks_json
import tasks_math
import tasks_recall
import tasks_tools


def two_numbers(maker):
    """Addition or subtraction of numbers of one to four digits."""
    def make(rng, effort):
        a, b = (tasks_math.number(rng, rng.choice([1, 2, 3, 4, 4])) for _ in range(2))
        asks = tasks_math.ADD_ASK if maker == "+" else tasks_math.SUB_ASK
        value = a + b if maker == "+" else a - b
        user = tasks_math.ask(rng, rng.choice(asks), a=tasks_math.shown(rng, a), b=tasks_math.shown(rng, b))
        return tasks_math.Sample(user, "", ("number", str(value)))
    return make


def unseen_product(rng, effort):
    """Two-digit by two-digit products that are held out of training."""
    while True:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        if tasks_math.is_held_out(a, b):
            return tasks_math.product(rng, a, b, effort)


def any_product(rng, effort):
    return tasks_math.product(rng, rng.randint(10, 99), rng.randint(10, 99), effort)


def far_recall(rng, effort):
    """A fact in a text of 1,000 words or more, that is beyond 2,000 tokens."""
    return tasks_recall.recall(rng, effort, rng.randint(1000, 1500))


AIMS = {"sums to 4 digits": two_numbers("+"), "differences to 4 digits": two_numbers("-"), "2x2 digit products": any_product, "2x2 products held out": unseen_product,
        "tool calls": tasks_tools.tool_call, "answers from tool results": tasks_tools.from_result, "recall": tasks_recall.recall, "recall beyond 2000 tokens": far_recall, "JSON": tasks_json.to_json}
