"""Commands in the code blocks of documents."""
import pathlib
import re
import shlex
import sys
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

DOCUMENTS = ["README.md", "docs/quickstart.md", "docs/install.md", "docs/hosts.md", "docs/python.md", "docs/gguf.md"]
PROMPT = re.compile(r"(?:host\d)?\$ ")
# A model for --dry-run with up to 16 ranks: sizes of a real one, without weights. Memory of two layers is checked.
LAYOUT_MODEL = ROOT / "bench/models/olmoe-1b-7b"
LAYOUT_FLAGS = ["--load-format", "dummy", "--tokenizer-path", str(ROOT / "models/yardling"), "--json-model-override-args",
                '{"num_hidden_layers": 2}']


@dataclass(frozen=True)
class Command:
    """`text`: without prompt, comment and line continuations. `output`: the lines below it in a console block."""
    page: str
    line: int
    language: str  # sh or python
    text: str
    output: str = ""

    def __str__(self):
        return f"{self.page}:{self.line} {self.text.splitlines()[0][:70]}"


def blocks(text):
    """Code blocks as (language, number of the first line, lines)."""
    lines, at = text.split("\n"), 0
    blank, in_list = True, False
    while at < len(lines):
        line = lines[at]
        in_list = (in_list and (not line.strip() or line.startswith(" "))) or bool(re.match(r"([-*+]|\d+\.)\s", line))
        fence = re.match(r"\s*```(\S*)", line)
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            yield fence[1] or "sh", at + 2, lines[at + 1:end]
            at = end + 1
            continue
        indent = 7 if in_list else 4
        if blank and line.startswith(" " * indent):
            end = at
            while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" " * indent)):
                end += 1
            yield "sh", at + 1, [code[indent:] for code in lines[at:end]]
            at, blank = end, True
            continue
        blank = not line.strip()
        at += 1


def complete(text):
    """Whether a shell command has no open quote."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return not text.endswith("\\")


def without_comment(text):
    """Removes a comment at the end of a command."""
    found = re.search(r"\s+# .*$", text)
    return text[:found.start()] if found and complete(text[:found.start()]) else text


def commands(page):
    for language, first, lines in blocks((ROOT / page).read_text()):
        if language == "python":
            yield Command(page, first, language, "\n".join(lines))
            continue
        if language not in ("sh", "console", "bash"):
            continue
        at = 0
        while at < len(lines):
            start, text = at, lines[at]
            at += 1
            while not complete(text) and at < len(lines):
                text = text[:-1] + lines[at].strip() if text.endswith("\\") else text + "\n" + lines[at]
                at += 1
            while text.rstrip().endswith("|"):
                text += " " + lines[at].strip()
                at += 1
            output = []
            while language == "console" and at < len(lines) and not PROMPT.match(lines[at]):
                output.append(lines[at])
                at += 1
            text = without_comment(PROMPT.sub("", text, count=1)).strip()
            if text:
                yield Command(page, first + start, "sh", text, "\n".join(output).strip())


def all_commands():
    return [command for page in DOCUMENTS for command in commands(page)]


def other_pages():
    """The pages whose commands are not in DOCUMENTS."""
    return [page for path in sorted(ROOT.glob("docs/*.md")) if (page := f"docs/{path.name}") not in DOCUMENTS]
