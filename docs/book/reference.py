"""A preprocessor of mdBook: appends the pages of docs/ to the book, and leads the links between chapters and pages there.

In the repository a chapter links to ../../python.md; in the built book that page is reference/python.html. Links to what is no page,
such as a source file, keep their text alone.
"""

from __future__ import annotations

import json
import os.path
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE = "docs/book/src"
#: Pages that users read first; all others follow by their titles.
FIRST = ["python", "command", "store", "formats", "keys", "traces", "plan", "updates", "passes", "gpu", "hardware", "glossary"]
#: Pages outside of docs/, by their names in the book.
OUTSIDE = {
    "README.md": "readme",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "examples/README.md": "examples",
}


def title(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("# "))[2:].replace("`", "")


def pages() -> dict[str, str]:
    """Every page of the reference: its path in the repository, and its path in the book."""
    found = {path: f"reference/{name}.md" for path, name in OUTSIDE.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith("docs/book/"):
            found[name] = f"reference/{name.removeprefix('docs/')}"
    return found


def relink(text: str, at: str, place: Callable[[str], str | None], here: str) -> str:
    """A page with its links led to where pages are in the book. It lies at `at` in the repository, and at `here` in the book."""

    def target(link: re.Match[str]) -> str:
        whole, words, to = link[0], link[1], link[2]
        if "://" in to or to.startswith(("#", "mailto:")):
            return whole
        file, mark, heading = to.partition("#")
        there = place(os.path.normpath(os.path.join(os.path.dirname(at), file)))
        if there is None:
            return words
        return f"[{words}]({os.path.relpath(there, os.path.dirname(here) or '.')}{mark}{heading})"

    # Blocks of code and what stands between backticks are left alone, but for backticks in the words of a link.
    parts = re.split(r"(^```.*?^```[^\n]*$)", text, flags=re.MULTILINE | re.DOTALL)
    link = re.compile(r"(?<!!)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s]+)\)|`[^`]*`")
    parts[::2] = [link.sub(lambda it: target(it) if it[2] else it[0], part) for part in parts[::2]]
    return "".join(parts)


def main() -> None:
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    _, book = json.load(sys.stdin)
    items: list[Any] = book.get("items", book.get("sections"))
    inside = pages()

    def place(path: str) -> str | None:
        if path == f"{SOURCE}/SUMMARY.md":
            return "introduction.md"
        if path.startswith(SOURCE + "/"):
            return path.removeprefix(SOURCE + "/")
        return inside.get(path)

    def visit(items: list[Any]) -> None:
        for item in items:
            if isinstance(item, dict) and "Chapter" in item:
                chapter = item["Chapter"]
                path = chapter["path"]
                chapter["content"] = relink(chapter["content"], f"{SOURCE}/{path}", place, path)
                visit(chapter["sub_items"])

    visit(items)
    made = []
    for path, there in inside.items():
        text = (ROOT / path).read_text()
        name = Path(path).stem
        order = (FIRST.index(name) if name in FIRST else len(FIRST), path in OUTSIDE, title(text).lower())
        chapter = {
            "name": title(text),
            "content": relink(text, path, place, there),
            "number": None,
            "sub_items": [],
            "path": there,
            "source_path": there,
            "parent_names": [],
        }
        made.append((order, {"Chapter": chapter}))
    items += [{"PartTitle": "Reference"}, *(chapter for _, chapter in sorted(made, key=lambda it: it[0]))]
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
