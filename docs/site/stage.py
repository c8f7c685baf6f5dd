#!/usr/bin/env python3
"""Collects the pages of the site: docs/site/stage.py DIRECTORY.

Copies README.md, docs/README.md, the pages that docs/README.md lists, and the other files that they link to. Paths stay as
they are, so links stay valid. Writes index.md, whose navigation has the sections of docs/README.md.
"""

import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_links  # noqa: E402


def sections(text):
    """Pairs of heading and pages, from the sections of docs/README.md."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        targets = [docs_links.target_of(docs_links.INDEX, link)[0] for link in docs_links.links(body)]
        yield title, list(dict.fromkeys(target for target in targets if target.suffix == ".md"))


def toctree(caption, pages):
    lines = ["```{toctree}", f":caption: {caption}", ":maxdepth: 1", "", *[f"/{page.with_suffix('')}" for page in pages], "```"]
    return "\n".join(lines)


def main():
    target = pathlib.Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    start = [pathlib.PurePosixPath("README.md"), docs_links.INDEX]
    parts = [("Start", start), *sections((ROOT / docs_links.INDEX).read_text())]
    parts = [(title, [page for page in pages if title == "Start" or page not in start]) for title, pages in parts]
    pages = [page for _, listed in parts for page in listed]
    files = {docs_links.target_of(page, link)[0] for page in pages for link in docs_links.links((ROOT / page).read_text())}
    for path in {*pages, *(path for path in files if path.suffix != ".md" and (ROOT / path).is_file())}:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target / path)
    (target / "index.md").write_text("# Switchyard\n\n" + "\n\n".join(toctree(*part) for part in parts) + "\n")
    print(f"{len(pages)} pages")


if __name__ == "__main__":
    main()
