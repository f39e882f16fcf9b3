"""Follows the links of the book's pages: each leads to a file of the book, and to an element there that has the name.

    python3 tests/book_links.py target/book
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote


class Page(HTMLParser):
    """The links of a page, and the names of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names.add(given.get("id") or "")
        for name in ("href", "src"):
            if given.get(name):
                self.links.append(given[name] or "")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text()) for path in folder.rglob("*.html")}
    count, wrong = 0, []
    for path, page in pages.items():
        # A print of all chapters has links that are meant for the chapters' own pages, and the page for what is not found has none of a place.
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            if "://" in link or link.startswith(("mailto:", "data:", "javascript:")):
                continue
            count += 1
            file, _, name = unquote(link).partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists():
                wrong.append(f"{path.relative_to(folder)}: {link}: there is no such file")
            elif name and there in pages and name not in pages[there].names:
                wrong.append(f"{path.relative_to(folder)}: {link}: there is no such heading")
    print(f"the book: {len(pages)} pages, {count} links")
    assert count > 100, "the links were not understood"
    assert not wrong, "links that lead nowhere:\n" + "\n".join(wrong)


if __name__ == "__main__":
    main()
