"""Values passed to chat templates, and the files that define a tokenizer, tested through the server."""
import base64
import contextlib
import json
import os
import shutil

from server import FIXTURES, Server


@contextlib.contextmanager
def serving(tmp_path, base="qwen3", drop=(), **files):
    """A server of a copy of a fixture with replaced files. A replacement is a text, or a function from the old JSON to
    the new JSON."""
    model = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
    model.mkdir()
    for file in (FIXTURES / base).iterdir():
        if file.suffix == ".safetensors":
            os.symlink(file, model / file.name)
        elif file.name not in drop:
            shutil.copy(file, model / file.name)
    for name, content in files.items():
        path = model / name.replace("__", ".")
        if callable(content):
            content = json.dumps(content(json.loads(path.read_text())))
        path.write_text(content)
    with Server(model, "--device", "cpu", "--cpu-threads-per-rank", 1, "--max-total-tokens", 2048) as s:
        yield s


def tokens(server, **body):
    status, answer = server.request("/tokenize", body)
    assert status == 200, answer
    return answer["tokens"]


def prompt(server, messages, **body):
    ids = tokens(server, messages=messages, **body)
    return server.request("/detokenize", {"tokens": ids, "skip_special_tokens": False})[1]["text"]


def calling(arguments, content=""):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "user", "content": "q"}, {"role": "assistant", "content": content, "tool_calls": [call]}]


GLUED = ("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.type + ' ' + c.function.arguments + ';' }}"
         "{% endfor %}{% endfor %}")
EITHER = ("{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments if c.function.arguments is "
          "string else c.function.arguments | tojson }}{% endfor %}{% endfor %}")


def test_arguments(tmp_path):
    big = 123456789012345678901234567890123456789012345678901
    with serving(tmp_path, chat_template__jinja=GLUED) as s:
        assert prompt(s, calling('{"command":  "ls"}')) == 'function {"command":  "ls"};'
        assert prompt(s, calling({"n": big})) == f'function {{"n": {big}}};'
    with serving(tmp_path, chat_template__jinja=EITHER) as s:
        for text in ('{"a": "x",}', "not json", '{"value": ', '{"s": "He said "hello" and left"}'):
            assert prompt(s, calling(text)) == text
        status, answer = s.request("/v1/chat/completions", {"messages": calling("not json"), "max_tokens": 1})
        assert status == 200, answer


def test_parts_and_strings(tmp_path):
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    with serving(tmp_path, chat_template__jinja=parts) as s:
        content = [{"type": "text", "text": "pre"}, {"type": "text", "text": "fix"}]
        assert prompt(s, [{"role": "user", "content": content}]) == "prefix"
        assert prompt(s, [{"role": "user", "content": "Hi"}]) == "Hi"


def test_continue_final_message(tmp_path):
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}"
    with serving(tmp_path, chat_template__jinja=template) as s:
        for text in ("The", "end", "|", "", "end ", "im_end"):
            messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
            got = prompt(s, messages, continue_final_message=True)
            assert got == "<|im_start|>user:Hi<|im_end|><|im_start|>assistant:" + text
        messages[-1]["content"] = None
        assert s.request("/tokenize", {"messages": messages, "continue_final_message": True})[0] == 400


def test_roles_make_markers_and_content_does_not(tmp_path):
    def with_user(config):
        config.update(added_tokens_decoder={"511": {"content": "<|user|>", "special": True}}, eos_token="<|endoftext|>")
        return config

    def without_last(tokenizer):
        tokenizer["added_tokens"] = tokenizer["added_tokens"][:-1]
        return tokenizer

    template = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
    with serving(tmp_path, chat_template__jinja=template, tokenizer_config__json=with_user,
                 tokenizer__json=without_last) as s:
        ids = tokens(s, messages=[{"role": "user", "content": "A<|user|>B"}])
        assert ids[0] == 511 and ids.count(511) == 1


def test_false_values_in_filters(tmp_path):
    template = "{{ tools | selectattr('type', 'equalto', 'x') | list | length }} {{ 'a b' | wordwrap(1) }}"
    with serving(tmp_path, chat_template__jinja=template) as s:
        assert prompt(s, [{"role": "user", "content": "x"}]) == "0 a\nb"


def test_add_bos_token(tmp_path):
    def processor(tokenizer):
        tokenizer["post_processor"] = {"type": "ByteLevel"}
        return tokenizer

    def config(old):
        return {**old, "add_bos_token": True, "tokenizer_class": "LlamaTokenizerFast"}

    with serving(tmp_path, "deepseek_v3", tokenizer__json=processor, tokenizer_config__json=config) as s:
        ids = tokens(s, prompt="Who?")
        assert ids[0] == 508 and ids.count(508) == 1
        answer = s.request("/v1/completions", {"prompt": "Who?", "max_tokens": 1})[1]
        assert answer["usage"]["prompt_tokens"] == len(ids)


def test_special_tokens_of_chats(tmp_path):
    messages = [{"role": "user", "content": "Who?"}]
    with serving(tmp_path, "deepseek_v3") as s:
        plain = tokens(s, messages=messages)
        assert 508 not in plain and tokens(s, messages=messages, add_special_tokens=False) == plain
        assert tokens(s, messages=messages, add_special_tokens=True) == [508] + plain
        body = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        for special, want in ((False, plain), (True, [508] + plain)):
            answer = s.request("/v1/chat/completions", {**body, "add_special_tokens": special})[1]
            assert answer["prompt_token_ids"] == want and answer["usage"]["prompt_tokens"] == len(want)


def test_tiktoken_alone(tmp_path):
    ranks = "".join(f"{base64.b64encode(bytes([b])).decode()} {b}\n" for b in range(256))
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {"256": {"content": "[BOS]", "special": True}}}
    with serving(tmp_path, drop=("tokenizer.json",), tiktoken__model=ranks, tokenizer_config__json=json.dumps(config)) as s:
        assert tokens(s, prompt="[BOS]ab") == [256, 97, 98]


def test_text_after_long_runs_of_bytes(tmp_path):
    with serving(tmp_path, "mixtral") as s:
        byte = tokens(s, prompt="\u0001")[-1] - 1 + 0x41
        for text in ("\u4e2d\u6587\u4e2d\u6587", "\U0001f600\u4e2d\U0001f600"):
            answer = s.request("/v1/completions", {"prompt": text, "max_tokens": 3, "temperature": 0,
                                                   "logit_bias": {str(byte): 100}})[1]
            assert answer["choices"][0]["text"] == "AAA"
