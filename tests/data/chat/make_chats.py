#!/usr/bin/env python3
"""Writes chats.json: what transformers makes of each template in shapes/ with each conversation of conversations.json.

Needs transformers (5.24 wrote the file), jinja2 3.1 and the tokenizer of the qwen3 fixture, to which the markers of the
templates are added as special tokens. Each entry is a pair of FNV-1a hashes: one of the text, and one of its ids as
little-endian 32-bit integers. If the template fails, the entry is the message of the error.
`make_chats.py SHAPE CONVERSATION` prints the text instead.

The templates were written for this test. They have the names and the constructs of published templates. Messages are
passed to transformers unchanged, except where a template does not read the form of a value. Traits below detects this
by the rules of src/text/chat/template_traits.h, and converts the value to the form that the template reads.
`apply_chat_template` of transformers 5 drops keys that are null. Older versions keep them, and so does this script.
"""

import copy
import json
import pathlib
import re
import sys

import jinja2
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
BOS, EOS = "<s>", "</s>"
# The form of tool-call arguments that a template reads, by template. Templates in neither list read both forms or none.
OBJECTS = {"qwen2_5", "harmony", "llama3_1", "llama4", "mistral_v3", "command_r7b", "granite_moe", "jamba"}
ONLY_OBJECTS = {"qwen3_coder", "glm4_5", "minimax_m2", "seed_oss"}  # these fail on texts
TEXTS = {"deepseek_v3", "deepseek_r1", "deepseek_v3_1", "functionary_v2", "functionary_v3_1", "olmo3"}


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def special_tokens(sources):
    """The markers of all templates, in order of appearance, and the markers that contain a role."""
    found = [BOS, EOS] + [f"<|{role}|>" for role in ("system", "user", "assistant", "tool", "observation")]
    for source in sources:
        found += re.findall(r"<\|[^|<>{}'\n]+\|>|<｜[^｜]+｜>|\[/?INST\]|\[/?[A-Z_]{4,}\]|</?s>", source)
    return list(dict.fromkeys(found))


def render(source, chat, messages):
    extra = dict(chat.get("chat_template_kwargs", {}))
    return render_jinja_template(
        [copy.deepcopy(messages)], tools=chat.get("tools"), chat_template=source,
        add_generation_prompt=chat.get("add_generation_prompt", True),
        continue_final_message=chat.get("continue_final_message", False), bos_token=BOS, eos_token=EOS, **extra,
    )[0][0]


class Traits:
    def __init__(self, name, source):
        self.source = source
        self.arguments = "object" if name in OBJECTS | ONLY_OBJECTS else "text" if name in TEXTS else "any"
        self.fails = name in ONLY_OBJECTS
        arguments = '{"k": 1}' if self.arguments == "text" else {"k": 1}
        self.calls = [{"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        tool = {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "-"}
        user = {"role": "user", "content": "-"}
        as_user = self.probe([user], 0)
        if as_user[0] == "parts":
            user = {"role": "user", "content": [{"type": "text", "text": "-"}]}
        call = {"role": "assistant", "content": "", "tool_calls": self.calls}
        assistant = {"role": "assistant", "content": ""}
        self.content = {
            "user": as_user, "system": self.probe([{"role": "system", "content": ""}, user], 0),
            "assistant": self.probe([user, assistant, user], 1), "tool": self.probe([user, call, tool], 2),
            "calls": self.probe([user, call, tool], 1),
        }

    def show(self, messages, at, content, missing=False):
        messages = copy.deepcopy(messages)
        messages[at]["content"] = content
        if missing:
            del messages[at]["content"]
        try:
            return render(self.source, {"add_generation_prompt": False}, messages)
        except Exception:
            return None

    def probe(self, messages, at):
        """(the form of content that is read: any, text or parts; whether null becomes ""; whether missing content does)"""
        text = self.show(messages, at, "Quail5")
        parts = self.show(messages, at, [{"type": "text", "text": "Quail5"}, {"type": "text", "text": "Teal6"}])
        reads_text = text is not None and "Quail5" in text
        reads_parts = parts is not None and "Quail5" in parts and "{'type'" not in parts
        shape = "any" if reads_text == reads_parts else "text" if reads_text else "parts"
        empty = self.show(messages, at, [{"type": "text", "text": ""}] if shape == "parts" else "")
        if empty is None:
            return shape, False, False
        null = self.show(messages, at, None)
        return (shape, null is None or null.count("None") > empty.count("None"),
                self.show(messages, at, "", missing=True) is None)

    def adapt(self, messages):
        out = copy.deepcopy(messages)
        for message in out:
            role = {"developer": "system", "function": "tool"}.get(message["role"], message["role"])
            shape, null, missing = self.content.get("calls" if message.get("tool_calls") else role, self.content["user"])
            if missing if "content" not in message else message["content"] is None and null:
                message["content"] = ""
            content = message.get("content")
            if isinstance(content, list) and shape == "text":
                message["content"] = " ".join(part["text"] for part in content)
            elif isinstance(content, str) and shape == "parts":
                message["content"] = [{"type": "text", "text": content}]
            for call in message.get("tool_calls") or []:
                call["function"]["arguments"] = self.adapt_arguments(call["function"]["arguments"])
        return out

    def adapt_arguments(self, arguments):
        if isinstance(arguments, str) and self.arguments == "object":
            try:
                parsed = json.loads(arguments or "{}")
                if isinstance(parsed, dict) or not self.fails:
                    return parsed
            except ValueError:
                pass
            return {"arguments": arguments} if self.fails else arguments
        if not isinstance(arguments, str) and self.arguments == "text":
            return json.dumps(arguments, ensure_ascii=False)
        return arguments


def main():
    shapes = {path.stem: path.read_text() for path in sorted((HERE / "shapes").glob("*.jinja"))}
    chats = json.loads((HERE / "conversations.json").read_text())
    tokens = special_tokens(shapes.values())
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE.parent / "fixtures" / "qwen3" / "tokenizer.json"))
    added = [token for token in tokens if tokenizer.convert_tokens_to_ids(token) is None]
    tokenizer._tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in added])
    if len(sys.argv) == 3:
        source, chat = shapes[sys.argv[1]], chats[sys.argv[2]]
        sys.stdout.write(render(source, chat, Traits(sys.argv[1], source).adapt(chat["messages"])))
        return
    out, unchanged, errors = {}, 0, 0
    for name, source in shapes.items():
        traits = Traits(name, source)
        for title, chat in chats.items():
            messages = traits.adapt(chat["messages"])
            unchanged += messages == chat["messages"]
            try:
                text = render(source, chat, messages)
                ids = tokenizer.encode(text, add_special_tokens=False)
                entry = [fnv(text.encode()), fnv(b"".join(i.to_bytes(4, "little") for i in ids))]
            except Exception as error:
                errors += 1
                entry = str(error) if type(error) is jinja2.exceptions.TemplateError else ""
            out.setdefault(name, {})[title] = entry
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in out.items())
    (HERE / "chats.json").write_text(
        f'{{"special_tokens": {json.dumps(added, ensure_ascii=False)},\n"chats": {{\n{lines}\n}}}}\n')
    print(f"{len(shapes)} shapes x {len(chats)} conversations; {unchanged} as sent, {errors} errors")


if __name__ == "__main__":
    main()
