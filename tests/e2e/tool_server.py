"""A server for tests with clients: the bundled model, and requests that it is right on.

Most tests force a call with tool_choice, whatever the question, and the model answers freely after it. Values of
arguments are short by their schema: the model might write a free string up to the token limit.
"""
from typing import Literal

import pydantic

from server import ROOT, Server

MODEL = "small"
QUESTION = "What is a router?"
# The model calls get_weather(city) for the first text by itself, and gives the last one from its result.
WEATHER_QUESTION = "What is the weather in Rome?"
WEATHER_RESULT = '{"temperature": 21, "sky": "sunny"}'
WEATHER_ANSWER = "It is sunny in Rome, at 21 degrees."
# A tool as JSON schema, with its possible values.
CITIES = ["Oslo", "Rome"]
WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "days"], "properties": {
    "city": {"type": "string", "enum": CITIES}, "days": {"type": "integer", "enum": [1, 2, 3]}}}


class Place(pydantic.BaseModel):
    """A place, with the values of WEATHER."""

    city: Literal["Oslo", "Rome"]
    days: Literal[1, 2, 3]


def tool_server(*flags):
    return Server(ROOT / "models/yardling", "--max-total-tokens", 8192, "--device", "cpu", "--served-model-name", MODEL,
                  "--constrained-json-disable-any-whitespace", *flags)


def is_weather(arguments):
    return set(arguments) == {"city", "days"} and arguments["city"] in CITIES and arguments["days"] in (1, 2, 3)
