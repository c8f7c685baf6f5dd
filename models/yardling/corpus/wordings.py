"""Forms of questions: compares questions, and generates further forms of a fact's questions."""

import hashlib
import random
import re

VARIANTS = 3  # number of generated forms per fact

# After "What is", the pattern accepts short names only, so that it does not match "What is it good for?".
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
                  "Which Who Why Will Would".split())  # written in lower case in the middle of a sentence


def normal(question):
    """The form in which test questions and trained questions are compared: lower case, no punctuation, single spaces."""
    text = question.lower()
    # Between numbers a sign is an operation, so it becomes a word. Elsewhere it is punctuation.
    for sign, word in (("+", "plus"), ("-", "minus"), ("*", "times"), ("x", "times")):
        text = re.sub(rf"(?<=\d)\s*{re.escape(sign)}\s*(?=\d)", f" {word} ", text)
    return " ".join(re.sub(r"[^a-z0-9]+", " ", text).split())


def same_form(question):
    """Two facts may not have questions of the same form. As `normal`, but '--ep' differs from 'ep'."""
    return normal(re.sub(r"(?<!\S)--(?=[a-z])", "dashes ", question.lower()))


def lower_plain(question, _):
    return question.lower().rstrip("?.!")


def polite(question, rng):
    """Adds a greeting or request before the question, or thanks after it."""
    if rng.random() < 0.25:
        return question + (" Thanks!" if question[-1] in "?.!" else ", thanks")
    is_sentence = question[0].isupper() and question[-1] == "?"
    if question.split(" ")[0] in FIRST_WORDS:
        question = question[0].lower() + question[1:]
    return rng.choice(GREETINGS + REQUESTS if is_sentence else GREETINGS) + question


def mistyped(question, rng):
    """Adds a typing error to a word of more than four letters: swaps two letters or omits one. Words with dashes or
    digits are not changed."""
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
    """The question in another frame of FRAMES, or unchanged if no frame matches."""
    for form, others in FRAMES:
        match = re.fullmatch(form, question)
        if match:
            return rng.choice(others).format(match[1])
    return question


def vary(name, questions, taken, small_talk):
    """Returns further forms of a fact's questions. `taken` maps the form of each question of the corpus to (id, is
    trained). A new question must have a new form. Only a question in lower case may have the form of a trained
    question of the same fact. Small talk gets no greetings: "Hello! Goodbye." would be odd."""
    rng = random.Random(hashlib.sha256(name.encode()).digest())  # forms do not depend on other facts
    made = []
    for change in [mistyped, lower_plain] if small_talk else [reframed, polite, mistyped, lower_plain]:
        for _ in range(40):  # attempts
            question = change(rng.choice(questions), rng)
            owner = taken.get(same_form(question))
            own = owner == (name, True) and change is lower_plain
            if question not in questions + made and (owner is None or own):
                made.append(question)
                break
        if len(made) == VARIANTS:
            break
    return made
