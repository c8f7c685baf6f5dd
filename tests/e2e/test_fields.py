"""Request fields of OpenAI, SGLang and vLLM clients: supported, or refused with the field's name."""
import json
import threading
import time
import urllib.request

import openai
import pytest

from server import FIXTURES, Server

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
HELLO = [{"role": "user", "content": "Hello!"}]
START = "<|im_start|>"


@pytest.fixture(scope="module")
def server():
    with Server(FIXTURES / "qwen3_moe", "--dtype", "float32", "--max-total-tokens", 8192) as s:
        yield s


def body_of(path, **more):
    prompt = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "Hello"}, GENERATE: {"text": "Hello"}}[path]
    limit = {"sampling_params": {"max_new_tokens": 2}} if path == GENERATE else {"max_tokens": 2}
    return {**prompt, **limit, **more}


def ask(server, path, **more):
    status, answer = server.request(path, body_of(path, **more))
    assert status == 200, answer
    return answer


def stream(server, path, **more):
    request = urllib.request.Request(server.url + path, json.dumps(body_of(path, stream=True, **more)).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        kind = response.headers["Content-Type"]
        events = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return kind, [json.loads(event) for event in events[:-1]]


def ids_of(server, text):
    return server.request("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
REFUSED = [
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    (CHAT, {"tools": TOOLS, "parallel_tool_calls": "few"}, "parallel_tool_calls"),
    (CHAT, {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    (CHAT, {"separate_reasoning": "some"}, "separate_reasoning"),
    (CHAT, {"reasoning_effort": "extreme"}, "reasoning_effort"),
    (CHAT, {"response_format": {"type": "yaml"}}, "response_format.type"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {"chat_template": "{{ messages }}"}, "chat_template"),
    (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens"),
    (CHAT, {"max_tokens": -1}, "max_tokens"),
    (CHAT, {"min_tokens": 5}, "min_tokens"),
    (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    (CHAT, {"top_k": -2}, "top_k"),
    (CHAT, {"input_ids": [1, 2], "echo": True}, "echo"),
    (CHAT, {"input_ids": [1, 2], "add_special_tokens": True}, "add_special_tokens"),
    (CHAT, {"input_ids": [1, 2], "return_prompt_text": True}, "return_prompt_text"),
    (COMPLETIONS, {"return_prompt_text": True}, "return_prompt_text"),
    (COMPLETIONS, {"guided_json": {"type": "objekt"}}, "guided_json"),
    (COMPLETIONS, {"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    (COMPLETIONS, {"logit_processors": ["x"]}, "logit_processors"),
    (COMPLETIONS, {"best_of": 3}, "best_of"),
    (COMPLETIONS, {"suffix": "x"}, "suffix"),
    (COMPLETIONS, {"bad_words": [""]}, "bad_words"),
    (COMPLETIONS, {"allowed_token_ids": [99999]}, "allowed_token_ids"),
    (COMPLETIONS, {"truncate_prompt_tokens": 99999}, "truncate_prompt_tokens"),
    (COMPLETIONS, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    (COMPLETIONS, {"truncation_side": "middle"}, "truncation_side"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": [1, 99999]}, "prompt"),
    (COMPLETIONS, {"data_parallel_rank": 9}, "data_parallel_rank"),
    (COMPLETIONS, {"routed_dp_rank": 9}, "routed_dp_rank"),
    (GENERATE, {"session_params": {"id": "x"}}, "session_params.id"),
    (GENERATE, {"sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens"),
    (GENERATE, {"sampling_params": {"regex": "("}}, "sampling_params.regex"),
    (GENERATE, {"sampling_params": {"stop": [""]}}, "sampling_params.stop"),
    (GENERATE, {"return_logprob": True, "top_logprobs_num": 1000}, "top_logprobs_num"),
]


@pytest.mark.parametrize("path, change, param", REFUSED)
def test_refusals_name_the_field(server, path, change, param):
    status, answer = server.request(path, body_of(path, **change))
    error = answer["error"]
    assert status == 400 and error["param"] == param and error["type"] == "invalid_request_error", answer
    assert param in error["message"] and str(FIXTURES) not in json.dumps(answer)


NOTHING = {"best_of": 1, "suffix": "", "top_k": 0, "stop": "", "bad_words": [], "allowed_token_ids": [], "logit_bias": {},
           "guided_json": None, "structured_outputs": {"json": None}, "use_beam_search": False, "length_penalty": 1.0,
           "priority": 0, "user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "store": False, "lora_path": "",
           "custom_params": {}, "logits_processors": [], "stream_options": {}, "ignore_eos": "true", "max_tokens": "2",
           "temperature": 1, "return_cached_tokens_details": False, "return_prompt_text": False, "add_special_tokens": False,
           "not_a_field": 5}


def test_values_that_ask_for_nothing_pass(server):
    ask(server, COMPLETIONS, **NOTHING)
    del NOTHING["suffix"]
    ask(server, CHAT, **NOTHING, tools=[], tool_choice="auto", parallel_tool_calls=True, functions=[], function_call="none",
        modalities=["text"], verbosity="medium", reasoning_effort=None, echo=False, documents=[])
    ask(server, CHAT, not_a_field=6)
    assert server.text().count('"not_a_field"') == 1


def test_codes_that_clients_act_on(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0)
    name = client.models.list().data[0].id
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    assert missing.value.code == "model_not_found" and missing.value.param == "model"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-4/turbo")
    assert missing.value.code == "model_not_found"
    long = "a b " * 2000
    for call, param in ((lambda: client.chat.completions.create(model=name, messages=[{"role": "user", "content": long}]), "messages"),
                        (lambda: client.completions.create(model=name, prompt=long), "prompt")):
        with pytest.raises(openai.BadRequestError) as over:
            call()
        assert over.value.code == "context_length_exceeded" and over.value.param == param
        assert "maximum context length" in over.value.message
    assert server.request(GENERATE, {"text": long})[1]["error"]["code"] == "context_length_exceeded"


def test_model_ids_with_slashes(server):
    name = server.request("/v1/models/")[1]["data"][0]["id"]
    assert "/" in name
    assert server.request("/v1/models/" + name)[1]["id"] == name
    assert server.request("/v1/models/" + name.replace("/", "%2F"))[1]["id"] == name


def test_answers_have_a_fingerprint_and_a_matched_stop(server):
    prints = set()
    for path in (CHAT, COMPLETIONS):
        answer = ask(server, path)
        assert answer["choices"][0]["matched_stop"] is None
        prints.add(answer["system_fingerprint"])
        kind, events = stream(server, path, stream_options={"include_usage": True})
        assert kind == "text/event-stream; charset=utf-8"
        prints |= {event["system_fingerprint"] for event in events}
        assert all("matched_stop" in choice for event in events for choice in event["choices"])
    assert len(prints) == 1 and prints.pop().startswith("fp_")
    assert stream(server, GENERATE)[0] == "text/event-stream; charset=utf-8"


def test_usage_with_every_event(server):
    for path in (CHAT, COMPLETIONS):
        events = stream(server, path, max_tokens=4, ignore_eos=True, stream_options={"continuous_usage_stats": True})[1]
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts) and counts[-1] == 4
        assert all(e["usage"]["total_tokens"] == e["usage"]["prompt_tokens"] + e["usage"]["completion_tokens"] for e in events)
        none = stream(server, path, stream_options={"continuous_usage_stats": True, "include_usage": False})[1]
        assert all("usage" not in event for event in none)


def test_token_ids_are_returned(server):
    prompt = ids_of(server, "Hello")
    whole = ask(server, COMPLETIONS, return_token_ids=True, temperature=0, logprobs=1, return_tokens_as_token_ids=True)["choices"][0]
    assert whole["prompt_token_ids"] == prompt and len(whole["token_ids"]) == 2
    assert whole["logprobs"]["tokens"] == [f"token_id:{t}" for t in whole["token_ids"]]
    events = stream(server, COMPLETIONS, return_token_ids=True, temperature=0)[1]
    assert sum((e["choices"][0]["token_ids"] for e in events), []) == whole["token_ids"]
    assert [e["choices"][0].get("prompt_token_ids") for e in events][0] == prompt
    chat = ask(server, CHAT, return_token_ids=True, temperature=0, logprobs=True, return_tokens_as_token_ids=True)
    assert chat["prompt_token_ids"] == server.request("/tokenize", {"messages": HELLO})[1]["tokens"]
    assert [t["token"] for t in chat["choices"][0]["logprobs"]["content"]] == \
        [f"token_id:{t}" for t in chat["choices"][0]["token_ids"]]
    again = ask(server, CHAT, input_ids=chat["prompt_token_ids"], temperature=0, return_token_ids=True)
    assert again["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"]
    events = stream(server, CHAT, return_token_ids=True, temperature=0)[1]
    assert events[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert sum((c.get("token_ids", []) for e in events for c in e["choices"]), []) == chat["choices"][0]["token_ids"]


def test_echo_repeats_the_message_that_the_answer_continues(server):
    body = dict(messages=HELLO + [{"role": "assistant", "content": "Once upon"}], continue_final_message=True, temperature=0)
    plain = ask(server, CHAT, **body)["choices"][0]["message"]["content"]
    for n in (1, 2):
        choices = ask(server, CHAT, echo=True, n=n, **body)["choices"]
        assert [choice["message"]["content"] for choice in choices] == ["Once upon" + plain] * n
    choices = [event["choices"][0] for event in stream(server, CHAT, echo=True, **body)[1]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""} and choices[1]["delta"] == {"content": "Once upon"}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Once upon" + plain
    assert ask(server, CHAT, echo=True, temperature=0)["choices"] == ask(server, CHAT, temperature=0)["choices"]


def test_prompt_text_is_what_the_template_gives(server):
    answer = ask(server, CHAT, return_prompt_text=True, return_token_ids=True)
    ids = {"tokens": answer["prompt_token_ids"], "skip_special_tokens": False}
    assert answer["prompt_text"] == server.request("/detokenize", ids)[1]["text"]
    assert "Hello!" in answer["prompt_text"] and answer["prompt_text"].startswith(START)
    events = stream(server, CHAT, return_prompt_text=True)[1]
    assert [event.get("prompt_text") for event in events] == [answer["prompt_text"]] + [None] * (len(events) - 1)
    assert "prompt_text" not in ask(server, CHAT)


def test_allowed_and_bad_words(server):
    word = ids_of(server, "the")
    out = ask(server, COMPLETIONS, allowed_token_ids=word, max_tokens=6, return_token_ids=True)["choices"][0]["token_ids"]
    assert len(out) == 6 and set(out) <= set(word)
    greedy = ask(server, COMPLETIONS, temperature=0, max_tokens=8, return_token_ids=True)["choices"][0]
    text = server.request("/detokenize", {"tokens": greedy["token_ids"][:1]})[1]["text"]
    bad = ask(server, COMPLETIONS, temperature=0, max_tokens=8, bad_words=[text], return_token_ids=True)["choices"][0]["token_ids"]
    assert bad[0] != greedy["token_ids"][0]


def test_truncated_prompts(server):
    ids = list(range(20, 40))
    for change, want in (({"truncate_prompt_tokens": 5}, ids[-5:]),
                         ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, ids[:5]),
                         ({"truncate_prompt_tokens": 50}, ids)):
        choice = ask(server, COMPLETIONS, prompt=ids, return_token_ids=True, **change)["choices"][0]
        assert choice["prompt_token_ids"] == want
    long = [30] * 5000
    choice = ask(server, COMPLETIONS, prompt=long, return_token_ids=True, truncate_prompt_tokens=-1)["choices"][0]
    assert len(choice["token_ids"]) == 2 and choice["finish_reason"] == "length"


def test_prompt_logprobs(server):
    prompt = list(range(30, 40))
    answer = ask(server, COMPLETIONS, prompt=prompt, prompt_logprobs=2, temperature=0)["choices"][0]
    assert answer["logprobs"] is None
    native = ask(server, GENERATE, text=None, input_ids=prompt, return_logprob=True, logprob_start_len=0)["meta_info"]
    assert answer["prompt_logprobs"][0] is None
    for position, (logprob, token, _) in list(zip(answer["prompt_logprobs"], native["input_token_logprobs"]))[1:]:
        assert position[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-5)
        better = [p for p in position.values() if p["logprob"] > position[str(token)]["logprob"]]
        assert position[str(token)]["rank"] > len(better) and 2 <= len(position) <= 3
    chat = ask(server, CHAT, prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert all(len(p) == 1 for p in chat["prompt_logprobs"][1:])
    assert ask(server, CHAT)["prompt_logprobs"] is None
    assert ask(server, COMPLETIONS)["choices"][0]["prompt_logprobs"] is None


def test_stop_strings_and_special_tokens(server):
    start = ids_of(server, START)
    assert len(start) == 1
    force = {"logit_bias": {str(start[0]): 100}, "temperature": 0, "ignore_eos": True}
    for path in (CHAT, COMPLETIONS):
        answer = ask(server, path, max_tokens=6, stop=[START], **force)
        assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["matched_stop"] == START
        late = ask(server, path, max_tokens=6, min_tokens=3, stop=[START], **force)
        assert late["usage"]["completion_tokens"] == 4
    kept = ask(server, COMPLETIONS, max_tokens=6, stop=[START], include_stop_str_in_output=True, **force)
    assert kept["choices"][0]["text"] == START


def test_log_probabilities_say_where_tokens_are(server):
    prompt = START + "user\nwhat is 专家? \U0001F9D1"
    for ask_for in (prompt, ids_of(server, prompt)):
        for top in (0, 3):
            body = dict(prompt=ask_for, echo=True, max_tokens=24, logprobs=top, temperature=1.0, seed=7, ignore_eos=True)
            whole = ask(server, COMPLETIONS, **body)["choices"][0]
            lists = whole["logprobs"]
            assert whole["text"].startswith(prompt)
            for token, offset in zip(lists["tokens"], lists["text_offset"]):
                assert "\ufffd" in token or token in ("<|im_end|>", START, "<|endoftext|>") or \
                    whole["text"][offset:offset + len(token)] == token
            for token, logprob, tops in list(zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"]))[1:]:
                assert tops[token] == logprob and top <= len(tops) <= top + 1 or top == 0 and list(tops) == [token]
            events = stream(server, COMPLETIONS, **body)[1]
            for key in lists:
                assert sum((e["choices"][0]["logprobs"][key] for e in events), []) == lists[key], key
            assert "".join(e["choices"][0]["text"] for e in events) == whole["text"]


def test_bytes_of_partial_characters(server):
    part = ids_of(server, "\U0001F9D1")[0]
    answer = ask(server, CHAT, max_tokens=1, temperature=0, logprobs=True, top_logprobs=1, logit_bias={str(part): 100})
    entry = answer["choices"][0]["logprobs"]["content"][0]
    assert bytes(entry["bytes"]) == "\U0001F9D1".encode()[:len(entry["bytes"])]
    assert entry["top_logprobs"][-1]["logprob"] == entry["logprob"]
    for none in ({}, {"top_logprobs": 0}):
        assert ask(server, CHAT, logprobs=True, **none)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_cache_salts_keep_caches_apart(server):
    prompt = list(range(50, 150))

    def cached(**more):
        return ask(server, COMPLETIONS, prompt=prompt, **more)["usage"]["prompt_tokens_details"]["cached_tokens"]

    server.request("/flush_cache", method="POST")
    assert cached(cache_salt="a") == 0 and cached(cache_salt="a") > 0
    assert cached(cache_salt="b") == 0 and cached() == 0 and cached(extra_key="a") == 0
    assert cached(cache_salt="", extra_key="") > 0
    native = ask(server, GENERATE, text=None, input_ids=prompt, cache_salt="a")
    assert native["meta_info"]["cached_tokens"] > 0


def test_details_of_cached_tokens(server):
    prompt = list(range(60, 160))
    details = {"return_cached_tokens_details": True}
    for path, body in ((COMPLETIONS, {"prompt": prompt}), (CHAT, {"input_ids": prompt})):
        server.request("/flush_cache", method="POST")
        assert "sglext" not in ask(server, path, **body, **details)
        answer = ask(server, path, **body, **details)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0 and answer["sglext"] == {"cached_tokens_details": {"device": cached, "host": 0}}
        assert "sglext" not in ask(server, path, **body)
        events = stream(server, path, **body, **details, stream_options={"include_usage": True})[1]
        cached = events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0 and events[-2]["choices"] == []
        assert events[-2]["sglext"] == {"cached_tokens_details": {"device": cached, "host": 0}}
        assert not any("sglext" in event for event in events[:-2] + events[-1:])
    meta = ask(server, GENERATE, text=None, input_ids=prompt)["meta_info"]
    assert meta["cached_tokens_details"] == {"device": meta["cached_tokens"], "host": 0}


def test_tokenize_lists_and_strings(server):
    texts = ["Hello", "Hello world", ""]
    answer = server.request("/tokenize", {"prompt": texts, "return_token_strs": True})[1]
    assert answer["count"] == [len(t) for t in answer["tokens"]] == [len(t) for t in answer["token_strs"]]
    one = server.request("/tokenize", {"prompt": "Hello"})[1]
    assert one["count"] == len(one["tokens"])
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        status, answer = server.request(path, {**body, "model": "gpt-4"})
        assert status == 404 and answer["error"]["code"] == "model_not_found"
    status, answer = server.request("/tokenize", {})
    assert status == 400 and answer["error"]["param"] == "prompt"


def test_native_lists_for_each_prompt(server):
    answers = ask(server, GENERATE, text=["Hello", "world"], return_logprob=True, token_ids_logprob=[[5], [7, 8]], rid="both",
                  return_prompt_token_ids=True)
    assert [[t[1] for t in a["meta_info"]["output_token_ids_logprobs"][0]] for a in answers] == [[5], [7, 8]]
    assert [a["meta_info"]["id"] for a in answers] == ["both_0", "both_1"]
    assert answers[0]["meta_info"]["prompt_token_ids"] == ids_of(server, "Hello")
    same = ask(server, GENERATE, text=["Hello", "world"], return_logprob=True, token_ids_logprob=[5, 6])
    assert all([t[1] for t in a["meta_info"]["output_token_ids_logprobs"][0]] == [5, 6] for a in same)
    status, answer = server.request(GENERATE, body_of(GENERATE, text=["Hello", "world"], rid=["same", "same"]))
    assert status == 400 and answer["error"]["param"] == "rid"


def test_native_streams_send_input_log_probabilities_once(server):
    events = stream(server, GENERATE, return_logprob=True, logprob_start_len=0, top_logprobs_num=2,
                    sampling_params={"max_new_tokens": 5, "ignore_eos": True})[1]
    counts = [len(e["meta_info"]["input_token_logprobs"]) for e in events]
    assert counts[0] == events[0]["meta_info"]["prompt_tokens"] and not any(counts[1:]) and len(events) > 1
    assert [len(e["meta_info"]["output_token_logprobs"]) for e in events] == [e["meta_info"]["completion_tokens"] for e in events]


def test_a_name_is_open_once(server):
    thread = threading.Thread(target=lambda: server.request(GENERATE, {
        "text": "Hello", "rid": "twice", "sampling_params": {"max_new_tokens": 480, "ignore_eos": True, "n": 32}}))
    thread.start()
    server.wait_busy(32)
    status, answer = server.request(GENERATE, body_of(GENERATE, rid="twice"))
    assert status == 400 and answer["error"]["param"] == "rid"
    server.request("/abort_request", {"rid": "twice"})
    thread.join(20)
    assert ask(server, GENERATE, rid="twice")["meta_info"]["id"] == "twice"
    assert ask(server, CHAT, rid="mine")["id"] == "mine"
    assert ask(server, COMPLETIONS, request_id="mine")["id"] == "cmpl-mine"


def test_reasoning_effort_reaches_the_template(tmp_path):
    for file in (FIXTURES / "qwen3_moe").iterdir():
        if file.name not in ("chat_template.jinja", "chat_template.json"):
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ 'effort ' + reasoning_effort|default('none given') + (' on' if enable_thinking is defined and enable_thinking else '') }}"
        "{%- for d in documents or [] -%}{{ d.text }}{%- endfor -%}{%- for m in messages -%}{{ m.content }}{%- endfor -%}")
    with Server(tmp_path, "--dtype", "float32", "--max-total-tokens", 2048) as s:
        def prompt(**more):
            status, answer = s.request("/tokenize", {"messages": HELLO, **more})
            assert status == 200, answer
            return s.request("/detokenize", {"tokens": answer["tokens"]})[1]["text"]

        assert prompt() == "effort none givenHello!"
        assert prompt(reasoning_effort="high") == "effort high onHello!"
        assert prompt(reasoning_effort="none") == "effort noneHello!"
        assert prompt(reasoning={"effort": "low"}, documents=[{"text": "doc"}]) == "effort low ondocHello!"
        assert prompt(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"}) == "effort high onHello!"
        ids = s.request("/tokenize", {"messages": HELLO, "reasoning_effort": "high"})[1]["tokens"]
        chat = s.request(CHAT, {"messages": HELLO, "reasoning_effort": "high", "max_tokens": 1, "return_token_ids": True})[1]
        assert chat["prompt_token_ids"] == ids
