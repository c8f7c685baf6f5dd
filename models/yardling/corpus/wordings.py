"""Questions in other forms: what makes two of them the same, and a few more that are made of those at hand."""

import hashlib
import random
import re

VARIANTS = 3  # of a fact's questions

# Names of up to three words after "What is", so that "What is it good for?" is left alone.
FRAMES = [
    (r"What is ((?:an? |the )?(?!in\b)[\w-]+(?: (?!for|like|called|about|used|of)[\w-]+)?)\?",
     ["Describe {}.", "What exactly is {}?", "Could you explain {}?"]),
    (r"Explain (.+)\.", ["Describe {}.", "Could you explain {} to me?", "I would like to know about {}."]),
    (r"What does (.+) do\?", ["What is {} for?", "What is the use of {}?"]),
    (r"Which flag (.+)\?", ["Which option {}?", "What option {}?", "Is there a flag that {}?"]),
    (r"How do I (.+)\?", ["How can I {}?", "I want to {}. How?", "What must I do to {}?"]),
]
GREETINGS = ["Hi, ", "Hello! ", "Hey, ", "So, "]
REQUESTS = ["Please tell me: ", "Quick question: ", "Can you tell me, "]  # before whole questions
FIRST_WORDS = set("Are Can Could Describe Do Does Explain Give How Is List Must Name Show Tell To What When Where "
                  "Which Who Why Will Would".split())  # that lose their capital in the middle of a sentence


def normal(question):
    """What a test question is compared with trained ones by: lower case, no punctuation, one space."""
    text = question.lower()
    # Between numbers a sign is the question, elsewhere it is punctuation.
    for sign, word in (("+", "plus"), ("-", "minus"), ("*", "times"), ("x", "times")):
        text = re.sub(rf"(?<=\d)\s*{re.escape(sign)}\s*(?=\d)", f" {word} ", text)
    return " ".join(re.sub(r"[^a-z0-9]+", " ", text).split())


def same_form(question):
    """What decides whether two facts share a question: as `normal`, but '--ep' is not 'ep'."""
    return normal(re.sub(r"(?<!\S)--(?=[a-z])", "dashes ", question.lower()))


def lower_plain(question, _):
    return question.lower().rstrip("?.!")


def polite(question, rng):
    """With a greeting, a request or thanks around it."""
    if rng.random() < 0.25:
        return question + (" Thanks!" if question[-1] in "?.!" else ", thanks")
    is_sentence = question[0].isupper() and question[-1] == "?"
    if question.split(" ")[0] in FIRST_WORDS:
        question = question[0].lower() + question[1:]
    return rng.choice(GREETINGS + REQUESTS if is_sentence else GREETINGS) + question


def mistyped(question, rng):
    """One slip of the fingers inside a longer word: two letters in the wrong order, or one left out. Names with
    dashes or numbers stay."""
    words = question.split(" ")
    longer = [i for i, word in enumerate(words) if len(word) > 4 and word.isalpha()]
    if not longer:
        return question.upper()
    i = rng.choice(longer)
    word, at = words[i], rng.randrange(1, len(words[i]) - 2)
    swapped = word[at + 1] + word[at] if rng.random() < 0.5 else word[at + 1]
    words[i] = word[:at] + swapped + word[at + 2:]
    return " ".join(words)


def reframed(question, rng):
    """The same in another common frame, where there is one."""
    for form, others in FRAMES:
        match = re.fullmatch(form, question)
        if match:
            return rng.choice(others).format(match[1])
    return question


def vary(name, questions, taken, small_talk):
    """A few more forms of a fact's questions. `taken`: by form, (id, is trained) of all questions; none made here is
    among them, but for one in lower case, which has the form of its own fact's. In small talk "Hello! Goodbye."
    would be odd."""
    rng = random.Random(hashlib.sha256(name.encode()).digest())  # no other fact changes them
    made = []
    for change in [mistyped, lower_plain] if small_talk else [reframed, polite, mistyped, lower_plain]:
        for _ in range(40):  # draws
            question = change(rng.choice(questions), rng)
            owner = taken.get(same_form(question))
            own = owner == (name, True) and change is lower_plain
            if question not in questions + made and (owner is None or own):
                made.append(question)
                break
        if len(made) == VARIANTS:
            break
    return made
