"""Words and numbers that requests contain, and made-up words, so that copying is learned and not a list of words."""

import json

CITIES = """Rome Paris Oslo Tokyo Berlin Madrid Lisbon Vienna Prague Athens Dublin London Zurich Geneva Warsaw Budapest
Helsinki Stockholm Copenhagen Brussels Amsterdam Hamburg Munich Milan Naples Turin Venice Seville Porto Lyon Nice Bergen
Cairo Nairobi Lagos Accra Tunis Delhi Mumbai Beijing Seoul Osaka Kyoto Bangkok Hanoi Manila Jakarta Sydney Perth Boston
Chicago Denver Dallas Seattle Austin Houston Toronto Montreal Lima Quito Bogota Santiago Havana Kiev Riga Vilnius
Tallinn Sofia Bucharest Belgrade Zagreb Krakow Basel Bern Ghent Utrecht Leeds York Oxford Bristol""".split()
PEOPLE = """Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karl Laura Maria Nils Olga Paul Rosa Sara Tom Ursula
Victor Wanda Xaver Yara Zoe Alice Bob Carol Dan Eve Frank Grace Henry Irene Jack Kate Leo Mia Noah Oscar Peter Quentin
Ruth Sam Tina Uwe Vera Walter Yusuf Ada Bruno Cora Dora Erik Fiona Georg Hanna Ivan Julia Kim Lena Mark Nora""".split()
THINGS = """lamp chair table book pen bottle bag phone radio clock camera bike ticket shirt coat shoe hat ring cup plate
knife spoon pillow blanket mirror brush key box basket candle vase rug sofa desk shelf printer laptop keyboard mouse
tablet speaker drone tent rope drill hammer ladder bucket pump fan heater kettle toaster guitar violin piano drum ball
kite puzzle doll helmet glove scarf belt wallet umbrella""".split()
FOODS = """milk bread eggs rice butter cheese apples bananas pears grapes tomatoes onions carrots potatoes beans lentils
pasta flour sugar salt honey jam tea coffee juice water soup fish chicken tofu nuts olives yogurt cake cookies
chocolate""".split()
COLORS = "red blue green yellow black white brown gray orange purple pink silver".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday today tomorrow tonight".split()
EVENTS = """lunch dinner meeting call workshop party concert review interview training dentist yoga football chess
breakfast trip visit exam lecture rehearsal""".split()
TOPICS = """trains boats birds stars gardens rivers castles volcanoes whales robots maps bridges forests deserts islands
history physics music painting chess cooking sailing running weather football painting horses dinosaurs windmills
lighthouses glaciers""".split()
JOBS = """teacher doctor baker farmer pilot nurse lawyer painter driver engineer singer writer cook gardener carpenter
plumber dentist librarian""".split()
LANGUAGES = """German French Spanish Italian Dutch Polish Danish Swedish Finnish Greek Turkish Arabic Hindi Japanese
Korean Chinese""".split()
CURRENCIES = "EUR USD GBP JPY CHF SEK NOK DKK PLN INR CAD AUD".split()
ROOMS = "kitchen bedroom bathroom office garage hall cellar attic garden library".split()

FIRST = "b c d f g h j k l m n p r s t v w z bl br cl dr fl gr kr pl pr sk sl sn sp st tr".split()
MIDDLE = "a e i o u a e i o u ai au ea ee io oo ou".split()
LAST = "b d g k l m n p r s t x nd ng nt rk rm rn st".split() + [""] * 12


def made_up(rng, syllables=None):
    """A word that no list has, such as "zorbel"."""
    count = syllables or rng.choice([1, 2, 2, 2, 3])
    word = "".join(rng.choice(FIRST) + rng.choice(MIDDLE) + rng.choice(LAST) for _ in range(count))
    return word if len(word) > 2 else word + rng.choice("aeiou") + rng.choice("lmnrst")


def word(rng):
    """A noun in lower case."""
    return made_up(rng) if rng.random() < 0.5 else rng.choice(rng.choice([THINGS, FOODS, TOPICS, EVENTS, COLORS, JOBS]))


def name(rng, known):
    """One of `known` or a made-up name with a capital."""
    return made_up(rng).capitalize() if rng.random() < 0.4 else rng.choice(known)


def integer(rng):
    return rng.choice([rng.randrange(1, 10), rng.randrange(10, 100), rng.randrange(100, 1000), rng.randrange(1000, 10000)])


def decimal(rng):
    return rng.randrange(1, 1000) + rng.choice([0.5, 0.25, 0.75, rng.randrange(1, 10) / 10])


def time(rng):
    return f"{rng.randrange(6, 23)}:{rng.choice(['00', '15', '30', '45'])}"


def code(rng):
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXZ") for _ in range(rng.choice([1, 2, 3])))
    return f"{letters}{rng.choice(['-', ''])}{rng.randrange(10, 1000)}"


def phrase(rng):
    """One to three words."""
    words = [word(rng) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    return " ".join(words)


def sum_of(rng):
    return f"{integer(rng)} {rng.choice('+-*/')} {integer(rng)}"


def file_name(rng):
    ending = rng.choice(["txt", "md", "json", "csv", "py", "log", "yaml"])
    folder = rng.choice(["", "", f"{word(rng)}/", "docs/", "data/"])
    return f"{folder}{word(rng)}.{ending}"


VALUES = {
    "city": lambda rng: name(rng, CITIES),
    "person": lambda rng: name(rng, PEOPLE),
    "thing": lambda rng: made_up(rng) if rng.random() < 0.3 else rng.choice(THINGS),
    "food": lambda rng: made_up(rng) if rng.random() < 0.2 else rng.choice(FOODS),
    "event": lambda rng: made_up(rng) if rng.random() < 0.2 else rng.choice(EVENTS),
    "topic": lambda rng: made_up(rng) if rng.random() < 0.3 else rng.choice(TOPICS),
    "color": lambda rng: rng.choice(COLORS),
    "day": lambda rng: rng.choice(DAYS),
    "time": time,
    "job": lambda rng: rng.choice(JOBS),
    "language": lambda rng: rng.choice(LANGUAGES),
    "currency": lambda rng: rng.choice(CURRENCIES),
    "room": lambda rng: rng.choice(ROOMS),
    "code": code,
    "word": word,
    "phrase": phrase,
    "sum": sum_of,
    "file": file_name,
    "small": lambda rng: rng.randrange(1, 13),
    "integer": integer,
    "age": lambda rng: rng.randrange(5, 95),
    "degrees": lambda rng: rng.randrange(-12, 39),
    "percent": lambda rng: rng.randrange(1, 101),
    "decimal": decimal,
    "number": lambda rng: decimal(rng) if rng.random() < 0.4 else integer(rng),
}
JSON_TYPES = {"small": "integer", "integer": "integer", "age": "integer", "percent": "integer", "degrees": "integer",
              "decimal": "number", "number": "number", "boolean": "boolean"}


def draw(rng, kind):
    return VALUES[kind](rng)


def json_type(kind):
    return JSON_TYPES.get(kind, "string")


def spoken(key):
    """The words of a key: start_time and startTime are "start time"."""
    return "".join(" " + c.lower() if c.isupper() else c for c in key).replace("_", " ").strip()


def said(value):
    """A value as an answer prints it."""
    return value if isinstance(value, str) else json.dumps(value)
