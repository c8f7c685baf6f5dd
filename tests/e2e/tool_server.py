"""A server of the bundled model for tests with clients, and requests to which its answers are correct.

Most tests force a call with tool_choice, which works with any question. After the call, the model answers freely. The
schema of arguments allows only short values, because the model might continue a free string up to the token limit.
"""
from typing import Literal

import pydantic

from server import ROOT, Server

MODEL = "small"
QUESTION = "What is a router?"
# Given WEATHER_QUESTION, the model calls get_weather(city) by itself. Given WEATHER_RESULT, it answers WEATHER_ANSWER.
WEATHER_QUESTION = "What is the weather in Rome?"
WEATHER_RESULT = '{"temperature": 21, "sky": "sunny"}'
WEATHER_ANSWER = "It is sunny in Rome, at 21 degrees."
# Parameters of a tool, as a JSON Schema that allows only a few values.
CITIES = ["Oslo", "Rome"]
WEATHER = {"type": "object", "additionalProperties": False, "required": ["city", "days"], "properties": {
    "city": {"type": "string", "enum": CITIES}, "days": {"type": "integer", "enum": [1, 2, 3]}}}


class Place(pydantic.BaseModel):
    """The parameters of WEATHER as a pydantic model."""

    city: Literal["Oslo", "Rome"]
    days: Literal[1, 2, 3]


def tool_server(*flags):
    return Server(ROOT / "models/yardling", "--max-total-tokens", 8192, "--device", "cpu", "--served-model-name", MODEL,
                  "--constrained-json-disable-any-whitespace", *flags)


def is_weather(arguments):
    return set(arguments) == {"city", "days"} and arguments["city"] in CITIES and arguments["days"] in (1, 2, 3)
