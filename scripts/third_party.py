#!/usr/bin/env python3
"""Downloads sources of libraries that Debian 12 lacks: scripts/third_party.py. Called by scripts/setup.

Each library is a source package of PyPI with a pinned version and SHA-256. The sources stay in build/third_party, so
later calls do nothing. The archive is kept in ~/.cache/switchyard (or below XDG_CACHE_HOME) for other checkouts,
which then need no network. CMake builds the sources as a static library (cmake/xgrammar.cmake). PIP_INDEX_URL, or
index-url in pip's configuration, selects another index.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build/third_party"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "switchyard"
TIMEOUT = 60  # seconds, of one connection

# XGrammar (Apache License 2.0, Copyright 2024 XGrammar Contributors): masks of tokens by grammar. Also contains picojson
# (BSD 2-Clause) and the header of DLPack (Apache License 2.0).
XGRAMMAR = {
    "name": "xgrammar",
    "version": "0.2.8",
    "sha256": "8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80",
    "kept": ("LICENSE", "NOTICE", "include/", "cpp/", "3rdparty/picojson/picojson.h", "3rdparty/dlpack/include/",
             "3rdparty/dlpack/LICENSE"),
    "dropped": ("cpp/tvm_ffi/",),
    # (file, text, replacement). Each text occurs once in its file.
    "changes": (
        # JSON strings contain no control characters. The original class excludes only two of them.
        ("cpp/json_schema_converter.cc",
         R"""builder_.AddCharacterClass({{'"', '"'}, {'\\', '\\'}, {'\r', '\r'}, {'\n', '\n'}}, true);""",
         R"""builder_.AddCharacterClass({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}, true);"""),
        # Adds a limit of time and memory, defined in src/grammar/compile_budget.cc.
        ("cpp/grammar_compiler.cc",
         "auto cur_adaptive_token_mask_cache = grammar_matcher.GetAdaptiveTokenMask(is_root_rule);",
         "auto cur_adaptive_token_mask_cache = grammar_matcher.GetAdaptiveTokenMask(is_root_rule);\n"
         "    extern void SpendCompileBudget(std::size_t);\n"
         "    SpendCompileBudget(MemorySize(cur_adaptive_token_mask_cache));"),
        # A mask with many accepted and rejected tokens is a set of bits; others are lists of indices. The original limit is
        # 1000 indices. In a vocabulary below 32 000 tokens, bits take less memory and time than so long a list.
        ("cpp/compiled_grammar_impl.h",
         "static constexpr int USE_BITSET_THRESHOLD = 1000;\n",
         "static constexpr int USE_BITSET_THRESHOLD = 1000;\n"
         "  static std::size_t BitsetThreshold(std::size_t vocab_size) {\n"
         "    return vocab_size / 32 < USE_BITSET_THRESHOLD ? vocab_size / 32 : USE_BITSET_THRESHOLD;\n"
         "  }\n"),
        ("cpp/compiled_grammar.cc",
         "size_acc >= USE_BITSET_THRESHOLD && size_rej >= USE_BITSET_THRESHOLD\n",
         "size_acc >= BitsetThreshold(vocab_size) && size_rej >= BitsetThreshold(vocab_size)\n"),
        ("cpp/grammar_compiler.cc",
         "if (cache.accepted_indices.size() + tmp_accepted_indices_.size() <\n"
         "          AdaptiveTokenMask::USE_BITSET_THRESHOLD) {\n",
         "if (cache.accepted_indices.size() + tmp_accepted_indices_.size() <\n"
         "          AdaptiveTokenMask::BitsetThreshold(tokenizer_info_.GetVocabSize())) {\n"),
        # In the trie, token A is below token B if B is a prefix of A. The original also accepts B at another position of
        # A, so masks exclude tokens that the grammar allows.
        ("cpp/tokenizer_info.cc",
         "(token.find(prefix_stack.top().first) == std::string::npos)",
         "(token.rfind(prefix_stack.top().first, 0) != 0)"),
        # An optional or repeated expression may itself end in a loop. The original shortcuts lead into that loop, so that
        # (ab+)? also accepts b, and (a(bc)*|d){2,} also accepts adbc.
        ("cpp/fsm_builder.cc",
         "return ResultOk(child.Optional());",
         "{\n        int skip = child.AddState();\n"
         "        child.GetFsm().AddEpsilonEdge(skip, child.GetStart());\n"
         "        child.SetStartState(skip);\n"
         "        child.AddEndState(skip);\n"
         "        return ResultOk(std::move(child));\n      }"),
        ("cpp/fsm_builder.cc",
         "  // Handling {n,}\n  if (!has_upper_bound) {\n",
         "  // Handling {n,}\n  if (!has_upper_bound) {\n"
         "    result = child.Star();\n"
         "    for (int i = 0; i < state.lower_bound; ++i) result = FSMWithStartEnd::Concat({child, result});\n"
         "    return ResultOk(std::move(result));\n"),
        # Bounds the forced text, which is without end in a grammar such as root ::= "a" root. GrammarMatcher::ForcedText
        # relies on the bound.
        ("cpp/grammar_matcher.cc",
         "  while (can_find_next_char) {\n",
         "  while (can_find_next_char && num_accepted_chars < 256) {\n"),
    ),
}


class Failure(Exception):
    pass


def index_url():
    url = os.environ.get("PIP_INDEX_URL")
    if not url:
        asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True,
                               text=True, check=False)
        url = asked.stdout.strip() if asked.returncode == 0 else ""
    return (url or "https://pypi.org/simple").rstrip("/")


def fetch(url, accept="*/*"):
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return response.read()
    except (OSError, urllib.error.URLError) as error:
        raise Failure(f"cannot download {url}: {error}") from error


def download(library, archive):
    """Downloads `archive`. Its address is in the file list of the package index (PEP 691)."""
    listing = fetch(f"{index_url()}/{library['name']}/", "application/vnd.pypi.simple.v1+json")
    try:
        files = json.loads(listing)["files"]
    except (ValueError, KeyError) as error:
        raise Failure(f"{index_url()} has no file list in JSON (PEP 691) for {library['name']}") from error
    address = next((f["url"] for f in files if f["filename"] == archive.name), None)
    if not address:
        raise Failure(f"{index_url()} has no {archive.name}")
    data = fetch(urllib.parse.urljoin(f"{index_url()}/{library['name']}/", address))
    part = archive.with_suffix(f".part{os.getpid()}")
    part.write_bytes(data)
    check_hash(library, part)
    part.rename(archive)


def archive_of(library):
    """Returns the path of the archive. Looks in build/third_party, where a user may have copied it, then in the cache;
    else downloads it."""
    name = f"{library['name']}-{library['version']}.tar.gz"
    for archive in (FOLDER / name, CACHE / name):
        if archive.exists():
            check_hash(library, archive)
            return archive
    folder = CACHE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # no home directory, or a read-only one
        folder = FOLDER
    if not os.access(folder, os.W_OK):
        folder = FOLDER
    print(f"setup: downloading {name}", flush=True)
    try:
        download(library, folder / name)
    except Failure as failure:
        raise Failure(f"{failure}. Without network access, copy {name} into {FOLDER} (from ~/.cache/switchyard of another "
                      f"machine, or https://pypi.org/project/{library['name']}/{library['version']}/#files)") from failure
    return folder / name


def check_hash(library, file):
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != library["sha256"]:
        file.unlink()
        raise Failure(f"{file.name} has SHA-256 {found}, want {library['sha256']}. It was deleted; run this again")


def is_kept(library, name):
    return any(name == kept or (kept.endswith("/") and name.startswith(kept)) for kept in library["kept"]) and not any(
        name.startswith(dropped) for dropped in library["dropped"])


def unpack(library, archive, folder):
    top = f"{library['name']}-{library['version']}/"
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix(top)
            if not member.isfile() or ".." in pathlib.PurePath(name).parts or not is_kept(library, name):
                continue
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())
    for file, text, replacement in library["changes"]:
        source = (folder / file).read_text()
        if source.count(text) != 1:
            raise Failure(f"{file} has {source.count(text)} occurrences of the text to change, want 1: {text}")
        (folder / file).write_text(source.replace(text, replacement))


def provide(library):
    """Unpacks the library's sources into FOLDER/NAME, unless they are there. The stamp file has a hash of `library`, so
    that a new version or new changes unpack the sources again."""
    folder, stamp = FOLDER / library["name"], FOLDER / f"{library['name']}.stamp"
    wanted = hashlib.sha256(repr(library).encode()).hexdigest() + "\n"
    if stamp.exists() and stamp.read_text() == wanted and folder.is_dir():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    archive = archive_of(library)
    fresh = FOLDER / f"{library['name']}.new"
    for stale in (fresh, folder):
        shutil.rmtree(stale, ignore_errors=True)
    unpack(library, archive, fresh)
    fresh.rename(folder)
    stamp.write_text(wanted)


def main():
    try:
        provide(XGRAMMAR)
    except Failure as failure:
        sys.exit(f"setup: {failure}")


if __name__ == "__main__":
    main()
