"""The blocks of code of docs/book: each is run, in the order of its chapter, and what it prints is compared with what the chapter shows.

The first word behind a fence says how a block is run, the words behind commas are marks:

    python      run in the namespace of its chapter, in a folder of the chapter's own
    text        what the Python block before it prints
    console     commands behind "$ ", run by bash in that folder; the other lines are what they print
    sh          commands whose output is not shown, run likewise

In what is shown, "…" stands for anything in a line, with the spaces around it, and a line of "…" for any lines. A command that fails
has to be followed by "$ echo $?". A block with a mark of NEEDS is skipped where that is lacking; one with a mark of NEVER is compiled
and not run. There are no other marks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import subprocess
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import warprow
from built import ROOT, command

BOOK = ROOT / "docs" / "book" / "src"


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def has_gpu() -> bool:
    if not has("torch"):
        return False
    import torch

    return torch.cuda.is_available()


#: What a block needs by its marks: whether it is there, and what is said where it is not.
NEEDS = {
    "torch": (lambda: has("torch"), "torch is not installed"),
    "safetensors": (lambda: has("safetensors"), "the package safetensors is not installed"),
    "gpu": (has_gpu, "there is no GPU that torch can use"),
    "command": (lambda: command() is not None, "the command is not built (cargo build -p warprow), and WARPROW_BINARY names none"),
}
#: Why a block with such a mark is not run.
NEVER = {
    "install": "it installs software; tests/python.sh builds and installs the package",
    "drive": "it needs a real NVMe drive that may be overwritten",
    "model": "it needs a serving engine, and a model that it serves",
    "drawing": "it is a drawing",
}
#: Marks that say how a block is run.
HOW = {"raises"}
LANGUAGES = {"python", "text", "console", "sh"}


@dataclass
class Block:
    """A block of code of a chapter."""

    page: Path
    #: The number of its first line.
    line: int
    language: str
    marks: set[str]
    code: str
    #: The output that the chapter shows for it.
    shown: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(BOOK)}:{self.line}"

    def needs(self) -> set[str]:
        return self.marks & set(NEEDS) | ({"command"} if self.language in ("console", "sh") else set())


def chapters() -> list[Path]:
    """The pages that SUMMARY.md names, in its order."""
    return [BOOK / path for path in re.findall(r"\]\(([^)]+\.md)\)", (BOOK / "SUMMARY.md").read_text())]


def blocks_of(page: Path, text: str) -> list[Block]:
    """The blocks that are run, with what is shown of their output."""
    blocks: list[Block] = []
    fence = re.compile(r"^( *)```(.*)$")
    opened: Block | None = None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = fence.match(line)
        if opened is None and found:
            indent, (language, *marks) = found[1], found[2].split(",")
            opened, lines = Block(page, number + 1, language, set(marks), ""), []
            unknown = opened.marks - set(NEEDS) - set(NEVER) - HOW
            assert not indent, f"{opened.place}: a block stands at the beginning of a line, so that it is found"
            assert language in LANGUAGES, f"{opened.place}: nobody knows how to run {language!r}"
            assert not unknown, f"{opened.place}: nobody knows the marks {unknown}"
        elif opened is not None and found:
            opened.code = "\n".join(lines) + "\n"
            if opened.language != "text":
                blocks.append(opened)
            elif "drawing" not in opened.marks:
                before = blocks[-1] if blocks else None
                is_shown = before is not None and before.language == "python" and before.shown is None
                assert is_shown, f"{opened.place}: this output follows no Python block"
                before.shown = opened.code
            opened = None
        elif opened is not None:
            lines.append(line)
    assert opened is None, f"{page}: the last block has no end"
    return blocks


def matches(shown: str, printed: str) -> bool:
    """Whether an output is what is shown."""

    def lines_of(text: str) -> list[str]:
        return [line.rstrip() for line in text.strip("\n").splitlines()]

    pattern = ""
    for line in lines_of(shown):
        parts = re.split(" *… *", line)
        pattern += r"(?:.*\n)*?" if line == "…" else ".*".join(re.escape(part) for part in parts) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines_of(printed))) is not None


def commands_of(code: str) -> list[tuple[str, str]]:
    """The commands of a console, each with the lines that it prints."""
    found: list[tuple[str, str]] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and found[-1][0].endswith("\\") and found[-1][1] == "":
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            assert found, f"a console begins with a command: {line}"
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


@dataclass
class Chapter:
    """A chapter that is being run."""

    folder: Path
    blocks: list[Block]
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    #: How many blocks were run or skipped.
    at: int = 0
    failed: str | None = None

    def run_to(self, block: Block) -> None:
        """Runs the blocks up to this one that were not run yet."""
        if self.failed is not None:
            pytest.fail(f"the block before, {self.failed}, failed")
        while self.at <= self.blocks.index(block):
            this = self.blocks[self.at]
            self.at += 1
            why = lacking(this)
            if why and this is block:
                pytest.skip(why)
            if not why:
                self.failed = this.place
                self.run(this)
                self.failed = None

    def run(self, block: Block) -> None:
        before, path = Path.cwd(), os.environ["PATH"]
        os.chdir(self.folder)
        os.environ["PATH"] = self.environment["PATH"]
        try:
            self.run_python(block) if block.language == "python" else self.run_bash(block)
        finally:
            os.chdir(before)
            os.environ["PATH"] = path

    def run_python(self, block: Block) -> None:
        # Lines keep their numbers, so that a traceback leads to the page.
        program = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
        printed, raised = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(printed):
                exec(program, self.names)
        except Exception as error:
            if "raises" not in block.marks:
                raise
            raised = error
        text = printed.getvalue()
        if "raises" in block.marks:
            assert raised is not None, f"{block.place} raises nothing"
            assert block.shown is not None, f"{block.place}: the chapter does not show what is raised"
            text += "".join(traceback.format_exception_only(raised))
        # What is printed is shown.
        shown = block.shown or ""
        assert matches(shown, text), f"{block.place} prints\n{text}\nand the chapter shows\n{shown}"

    def run_bash(self, block: Block) -> None:
        is_console = block.language == "console"
        commands = commands_of(block.code) if is_console else [(block.code, "")]
        environment = self.folder / ".environment"
        # Behind each command its exit code, between characters that no command prints; the next command finds it in $?.
        script = "".join(f"{text}\ncode=$?; printf '\\x1e%d\\x1f' $code; (exit $code)\n" for text, _ in commands)
        script += f"env -0 >'{environment}'\n"
        ran = subprocess.run(
            ["bash", "-c", script], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
        )
        parts = ran.stdout.split("\x1f")
        assert len(parts) == len(commands) + 1, f"{block.place} ended early:\n{ran.stdout}"
        for at, (text, shown) in enumerate(commands):
            printed, code = parts[at].split("\x1e")
            is_asked = at + 1 < len(commands) and commands[at + 1][0] == "echo $?"
            assert code == "0" or is_asked, f"{block.place}: exit code {code} of\n{text}\n{printed}"
            is_right = not is_console or matches(shown, printed)
            assert is_right, f"{block.place}: {text}\nprints\n{printed}\nand the chapter shows\n{shown}"
        found = environment.read_bytes().decode().split("\0")
        self.environment = dict(entry.split("=", 1) for entry in found if "=" in entry)


def lacking(block: Block) -> str | None:
    """Why a block is not run."""
    for mark in sorted(block.marks & set(NEVER)):
        return NEVER[mark]
    return next((text for need, (is_there, text) in NEEDS.items() if need in block.needs() and not is_there()), None)


def all_blocks() -> list[Block]:
    return [block for page in chapters() for block in blocks_of(page, page.read_text())]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Path, Chapter]]:
    """Chapters by their pages, as far as they were run."""
    made: dict[Path, Chapter] = {}
    # The command by its name, whatever the file is called.
    folder = tmp_path_factory.mktemp("command")
    found = command()
    if found is not None:
        (folder / "warprow").symlink_to(found)
    for block in all_blocks():
        chapter = made.setdefault(block.page, Chapter(tmp_path_factory.mktemp(block.page.stem), []))
        chapter.blocks.append(block)
        chapter.environment.pop("WARPROW_DRIVES", None)
        chapter.environment["PATH"] = f"{folder}:{os.environ['PATH']}"
    yield made
    for chapter in made.values():
        for value in chapter.names.values():
            if isinstance(value, warprow.Store):
                value.close()
            elif isinstance(value, subprocess.Popen):
                value.kill()
                value.wait()


@pytest.mark.parametrize("block", all_blocks(), ids=lambda block: block.place)
def test_blocks_of_the_book(running: dict[Path, Chapter], block: Block) -> None:
    if block.language == "python":
        compile(block.code, block.place, "exec")
    else:
        code = "\n".join(text for text, _ in commands_of(block.code)) if block.language == "console" else block.code
        subprocess.run(["bash", "-n", "-c", code], check=True)
    chapter = running[block.page]
    chapter.run_to(chapter.blocks[[it.line for it in chapter.blocks].index(block.line)])


def quoted() -> list[tuple[Path, str]]:
    """What stands between backticks in the prose of the chapters."""
    found = []
    for page in chapters():
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        found += [(page, text) for text in re.findall(r"`([^`]+)`", prose)]
    return found


def sources() -> str:
    """The sources that have messages, without the breaks in texts that go over several lines."""
    folders = ["store", "lookup", "layout", "formats", "gpu", "gpu-queues", "driver", "soft-controller", "vfio-user", "layout-tool", "modules", "python"]
    found = [path for folder in folders for end in ("rs", "py") for path in (ROOT / folder).rglob(f"*.{end}")]
    text = "\n".join(path.read_text() for path in found if "tests" not in path.parts and "target" not in path.parts)
    # As Rust continues a line, and as Python puts texts together.
    return re.sub(r'"\n\s*f?"', "", re.sub(r"\\\n\s*", "", text)).replace(r'\"', '"')


def test_messages_that_no_block_raises_are_in_the_sources() -> None:
    if not (ROOT / "driver" / "src").is_dir():
        pytest.skip("the sources of Rust are not there")
    page = BOOK / "troubleshooting.md"
    text = page.read_text()
    known = sources() + "\n".join(block.shown or block.code for block in blocks_of(page, text))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^### (?:[A-Z]\w+: )?(.*)$", prose, flags=re.MULTILINE)
    cells = re.findall(r"^\| `(?:[A-Z]\w+: )?([^`|]+)`", prose, flags=re.MULTILINE)
    # Headings without a message name exceptions, or say what they are about.
    messages = [it for it in headings if "…" in it or " " in it and not re.match(r"[A-Z]", it)] + cells
    parts = [(it, part.strip(" :,;")) for it in messages for part in re.split(r"…| / |\bN\b", it)]
    unknown = [(message, part) for message, part in parts if len(part) > 7 and part not in known]
    assert len(messages) > 40 and unknown == [], unknown


def test_names_in_the_prose_are_there() -> None:
    count = 0
    for page, text in quoted():
        for owner, name in re.findall(r"^(Store|Executor|Plan|warprow)\.(\w+)", text):
            count += 1
            assert name in ("torch", "vllm", "sglang") or hasattr(warprow if owner == "warprow" else getattr(warprow, owner), name), f"{page}: {text}"
    assert count > 50


def test_modules_in_the_prose_are_there() -> None:
    torch = pytest.importorskip("warprow.torch", reason="torch is not installed")
    names = {name for _, text in quoted() for name in re.findall(r"^warprow\.torch\.(\w+)", text)}
    assert "replace" in names and [name for name in names if not hasattr(torch, name)] == []


def test_commands_in_the_prose_are_there() -> None:
    found = command()
    if found is None:
        pytest.skip(NEEDS["command"][1])
    names = {name for _, text in quoted() for name in re.findall(r"^warprow ([a-z-]+)", text)}
    assert len(names) > 15
    for name in sorted(names):
        subprocess.run([found, name, "--help"], check=True, stdout=subprocess.DEVNULL)


def test_a_chapter_runs_in_order(tmp_path: Path) -> None:
    page = BOOK / "example.md"
    text = '```python\nx = 1\n```\n```python,raises\nprint(x)\n{}["y"]\n```\n```text\n1\nKeyError: …\n```\n```sh\nexport Z=2\n```\n'
    text += "```console\n$ false\n$ echo $?\n1\n$ echo a b; echo \\\n  $Z\n…\n2\n```\n"
    blocks = blocks_of(page, text)
    assert [(it.line, it.language) for it in blocks] == [(2, "python"), (5, "python"), (13, "sh"), (16, "console")]
    chapter = Chapter(tmp_path, blocks)
    for block in blocks:
        chapter.run(block)
    assert chapter.names["x"] == 1 and chapter.environment["Z"] == "2"


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n```text\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\nx\n```\n",
        "```python,raises\n1\n```\n```text\nNameError\n```\n",
        "```python,raises\nx\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ echo 1\n2\n```\n",
        "```console\n$ echo 1\n```\n",
        "```sh\nfalse\n```\n",
    ],
)
def test_what_is_not_shown_is_found(tmp_path: Path, text: str) -> None:
    (block,) = blocks_of(BOOK / "example.md", text)
    with pytest.raises((AssertionError, NameError)):
        Chapter(tmp_path, [block]).run(block)


@pytest.mark.parametrize("text", ["```\n```\n", "```rust\n```\n", "```python,ignore\n```\n", "```text\n```\n", "  ```sh\n  ```\n", "```sh\n"])
def test_blocks_that_nobody_would_run_are_found(text: str) -> None:
    with pytest.raises(AssertionError):
        blocks_of(BOOK / "example.md", text)


@pytest.mark.parametrize(
    ("shown", "printed", "is_right"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a b d\n", False),
        ("a …     c\n", "a seven c\n", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
        ("", "a\n", False),
    ],
)
def test_outputs_are_compared(shown: str, printed: str, is_right: bool) -> None:
    assert matches(shown, printed) is is_right
