"""Requests of the official openai client to a server of two ranks."""
import concurrent.futures

import openai
import pytest

from server import FIXTURES, Server


@pytest.fixture(scope="module")
def server():
    with Server(FIXTURES / "qwen3_moe", "--tp", 2, "--ep", 2, "--moe-a2a-backend", "deepep", "--served-model-name", "tiny",
                "--api-key", "secret", "--max-total-tokens", 16384) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0)


HELLO = [{"role": "user", "content": "Hello!"}]


def test_models(client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_chat_streams_what_it_answers(client):
    ask = dict(model="tiny", messages=HELLO, max_tokens=24, temperature=0)
    whole = client.chat.completions.create(**ask)
    assert whole.usage.completion_tokens <= 24 and whole.usage.prompt_tokens > 0
    assert whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_completion_with_echo_logprobs_and_several_prompts(client):
    answer = client.completions.create(model="tiny", prompt=["Hello", "The router"], max_tokens=4, echo=True, logprobs=2, n=2,
                                       temperature=0)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text and answer.choices[0].text.startswith("Hello")
    assert answer.choices[2].text.startswith("The router")
    lists = answer.choices[0].logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset)
    assert lists.token_logprobs[0] is None and all(x < 0 for x in lists.token_logprobs[1:])
    assert "".join(lists.tokens) == answer.choices[0].text


def test_chat_logprobs(client):
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, temperature=0, logprobs=True,
                                            top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3
        assert abs(token.logprob - token.top_logprobs[0].logprob) < 1e-6  # greedy sampling takes the most likely token


def test_seed_decides_whatever_else_runs(client):
    def ask(seed, n=1):
        return client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=20, temperature=1.0, seed=seed, n=n)

    alone = ask(5).choices[0].message.content
    assert ask(6).choices[0].message.content != alone
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(lambda i: ask(5 if i % 2 else 100 + i).choices[0].message.content, range(16)))
    assert all(text == alone for text in crowd[1::2])
    copies = [c.message.content for c in ask(5, n=3).choices]
    assert copies[0] == alone and len(set(copies)) == 3


def test_stop_strings_and_ids(client):
    whole = client.completions.create(model="tiny", prompt="Hello", max_tokens=32, temperature=0,
                                      extra_body={"ignore_eos": True}).choices[0].text
    stop = whole[5:8]
    cut = client.completions.create(model="tiny", prompt="Hello", max_tokens=32, temperature=0, stop=[stop],
                                    extra_body={"ignore_eos": True}).choices[0]
    assert cut.text == whole[:whole.index(stop)] and cut.finish_reason == "stop"
    streamed = client.completions.create(model="tiny", prompt="Hello", max_tokens=32, temperature=0, stop=[stop], stream=True,
                                         extra_body={"ignore_eos": True})
    assert "".join(c.choices[0].text for c in streamed) == cut.text


def test_a_minimum_beyond_the_context_is_cut_with_the_maximum(client):
    answer = client.completions.create(model="tiny", prompt="Hello", max_tokens=5000, extra_body={"min_tokens": 2000})
    assert answer.choices[0].finish_reason == "length"


def test_users_cannot_spell_special_tokens(server, client):
    key = {"Authorization": "Bearer secret"}
    plain = server.request("/tokenize", {"messages": HELLO}, key)[1]["tokens"]
    end = server.request("/tokenize", {"prompt": "<|im_end|>", "add_special_tokens": False}, key)[1]["tokens"]
    assert len(end) == 1
    sly = server.request("/tokenize", {"messages": [{"role": "user", "content": "a<|im_end|>b"}]}, key)[1]["tokens"]
    assert sly.count(end[0]) == plain.count(end[0])


@pytest.mark.parametrize("change, expected", [
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "narrator", "content": "x"}]}, "unknown role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"max_tokens": -1}, "max"),
    ({"n": 0}, "n"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logit_bias": {"99999": 1}}, "99999"),
    ({"stop": [""]}, "stop"),
    ({"tools": "hammer"}, "tools"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
])
def test_wrong_bodies_get_400(client, change, expected):
    with pytest.raises(openai.BadRequestError) as error:
        client.post("/chat/completions", body={"model": "tiny", "messages": HELLO, "max_tokens": 1, **change}, cast_to=object)
    assert expected in error.value.message


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-4", messages=HELLO, max_tokens=1)
    assert "gpt-4" in error.value.message and error.value.code == "model_not_found"


def test_other_refusals(server):
    key = {"Authorization": "Bearer secret"}
    chat = "/v1/chat/completions"
    assert server.request(chat, {"messages": HELLO})[0] == 401
    assert server.request(chat, {"messages": HELLO}, {"Authorization": "Bearer wrong"})[0] == 401
    for raw in (b"{", b"[]", b"\xff\xfe", b"", b'{"messages": ' + b"[" * 5000):
        status, answer = server.request(chat, headers=key, raw=raw)
        assert status == 400 and answer["error"]["message"], raw[:20]
    assert server.request("/v1/nothing", headers=key)[0] == 404
    assert server.request(chat, headers=key, method="GET")[0] == 405
    long = server.request("/v1/completions", {"prompt": "x " * 600}, key)
    assert long[0] == 400 and "context" in long[1]["error"]["message"]
    ids = server.request("/generate", {"input_ids": [1, 512]}, key)
    assert ids[0] == 400 and "512" in ids[1]["error"]["message"]
    empty = server.request("/generate", {"input_ids": []}, key)
    assert empty[0] == 400 and "empty" in empty[1]["error"]["message"]
