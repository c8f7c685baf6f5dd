"""Questions of arithmetic: sums and differences within 20, products of 0 to 10, and tasks that Yardling refuses."""

import random

from wordings import normal

SAID = {"+": "plus", "-": "minus", "*": "times"}
ANY = ["{a} {s} {b}", "{a}{s}{b}", "{a} {s} {b} = ?", "What is {a} {s} {b}?", "what is {a} {w} {b}",
       "What is {a} {w} {b}?", "How much is {a} {w} {b}?", "how much is {a} {s} {b}", "Compute {a} {s} {b}.",
       "{a} {w} {b}?", "What does {a} {s} {b} make?", "Can you work out {a} {w} {b}?"]
OWN = {"+": ["Add {a} and {b}.", "What is the sum of {a} and {b}?"],
       "-": ["Subtract {b} from {a}.", "Take {b} away from {a}."],
       "*": ["Multiply {a} by {b}.", "What is the product of {a} and {b}?"]}
UNSEEN = ["Calculate {a} {s} {b}, please.", "tell me {a} {w} {b}", "What do you get for {a} {s} {b}?"]
DIVIDE = ["What is {a} divided by {b}?", "{a} / {b}", "Divide {a} by {b}.", "{a} divided by {b}"]

FORMS_OF_A_TASK = 3  # number of trained wordings of a task
TESTS = 80
TOO_LARGE, QUOTIENTS = 56, 20  # numbers of trained questions whose answer is a refusal


def tasks():
    for a in range(21):
        for b in range(21):
            if a + b <= 20:
                yield a, "+", b, a + b
            if b <= a:
                yield a, "-", b, a - b
            if a <= 10 and b <= 10:
                yield a, "*", b, a * b


def solved():
    """Returns trained [(question, answer)] and tests [(id, question, answer)]. Half of the tests have a wording that is
    trained only with other numbers. The other half have a wording that is never trained."""
    rng = random.Random(7)
    trained, tests = [], []
    for a, sign, b, result in tasks():
        fill = {"a": a, "b": b, "s": sign, "w": SAID[sign]}
        answer = f"{a} {sign} {b} = {result}."
        forms = rng.sample(ANY + OWN[sign], len(ANY) + 2)
        seen = set()
        for form in forms:
            question = form.format(**fill)
            if normal(question) not in seen and len(seen) < FORMS_OF_A_TASK:
                trained.append((question, answer))
                seen.add(normal(question))
        other = next(q for q in (form.format(**fill) for form in forms) if normal(q) not in seen)
        name = f"arithmetic-{a}-{SAID[sign]}-{b}"
        tests.append(((name, other, answer), (name, rng.choice(UNSEEN).format(**fill), answer)))
    picked = rng.sample(tests, TESTS)
    return trained, [pair[0] for pair in picked[:TESTS // 2]] + [pair[1] for pair in picked[TESTS // 2:]]


def refused():
    """Returns trained [(question, id of the fact with the refusal)] for numbers out of range and for quotients."""
    rng = random.Random(11)
    known = {(a, sign, b) for a, sign, b, _ in tasks()}
    asked = {}
    while len(asked) < TOO_LARGE:
        sign, most = rng.choice(list(SAID)), rng.choice([40, 100, 1000])
        b, a = sorted(rng.randrange(2, most) for _ in range(2))
        if (a, sign, b) not in known:
            form = rng.choice(ANY + OWN[sign])
            asked[form.format(a=a, b=b, s=sign, w=SAID[sign])] = "r-big-numbers"
    while len(asked) < TOO_LARGE + QUOTIENTS:
        asked[rng.choice(DIVIDE).format(a=rng.randrange(1, 100), b=rng.randrange(2, 11))] = "r-math-hard"
    return list(asked.items())
