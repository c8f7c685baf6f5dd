"""Links of the documents lead to files and headings."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_links  # noqa: E402


def test_all_links_lead_to_files_and_headings():
    assert list(docs_links.problems()) == []


def test_links_in_code_are_no_links():
    text = "[a](x.md)\n\n    [b](y.md)\n\n`[c](z.md)` [d](w.md#e) [f](https://g)\n```\n[h](v.md)\n```\n![i](u.svg)\n"
    assert docs_links.links(text) == ["x.md", "w.md#e", "u.svg"]


def test_anchors_follow_the_rules_of_code_hosts():
    text = "# One *engine*, on `several` hosts\n## A [link](b.md) (2)\n```\n# no heading\n```\n# Same\n# Same\n## NVLink & NCCL\n"
    assert docs_links.anchors(text) == ["one-engine-on-several-hosts", "a-link-2", "same", "same-1", "nvlink--nccl"]


def test_a_missing_file_or_heading_is_found(tmp_path, monkeypatch):
    pages = {"docs/README.md": "[a](a.md) [b](b.md) [c](../src)", "docs/a.md": "# A\n[b](b.md#b) [b](b.md#c) [self](#a)",
             "docs/b.md": "# B", "docs/lost.md": "", "src/x.cc": ""}
    for path, text in pages.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(docs_links, "ROOT", tmp_path)
    monkeypatch.setattr(docs_links, "tracked", lambda *_: [pathlib.PurePosixPath(path) for path in pages])
    assert list(docs_links.problems()) == [
        "docs/README.md: ../src: is a directory; link to a file in it",
        "docs/a.md: b.md#c: docs/b.md has no heading with this anchor",
        "docs/lost.md: is not listed in docs/README.md"]
