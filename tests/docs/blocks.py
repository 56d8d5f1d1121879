"""Runs the code blocks of one Markdown file, top to bottom, in the current directory.

The convention:

- ``python`` blocks share one namespace. A block whose first line is a comment with a file's name
  (``# conftest.py``) is written to that file instead, for commands to use.
- ``console`` blocks: lines that start with ``$ `` are commands, a backslash at the end continues them. The
  lines after a command are output that it must show, in this order; ``...`` stands for anything in a line.
  ``make``, ``pip install``, ``git clone`` and ``cd`` are only checked: the target, the extra must exist.
- A ``toml`` or ``yaml`` block whose first line is such a comment is written to that file, too.
- Blocks of other kinds (configuration, output) are not run. Kinds that look like code are refused, so that
  nothing escapes by another name.

``python -m tests.docs.blocks FILE [OLD=NEW …]`` replaces texts (broker URLs) first. A failure is a traceback
whose line numbers are the Markdown file's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
COMMAND_TIMEOUT = 400.0
RUN = {"python", "console"}
SHOWN = {"", "text", "ini", "toml", "yaml", "json", "sql", "mermaid", "conf"}

_FENCE = re.compile(r"^( *)(```+|~~~+) *([\w+-]*)")
_FILE_NAME = re.compile(r"# ([\w./-]+\.\w+)$")


class DocsError(AssertionError):
    """A block does not do what the documentation says."""


@dataclass(frozen=True)
class Block:
    """A fenced block; `line` is the number of its first line, counted from 1."""

    kind: str
    line: int
    text: str


def blocks(markdown: str) -> list[Block]:
    """All fenced blocks of a file."""
    found: list[Block] = []
    lines = markdown.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        at += 1
        if fence is None:
            continue
        indent, marks, kind = fence.groups()
        start = at
        while at < len(lines) and lines[at].strip() != marks:
            at += 1
        if at == len(lines):
            raise DocsError(f"line {start}: the block is not closed")
        text = "\n".join(line.removeprefix(indent) for line in lines[start:at])
        found.append(Block(kind, start + 1, text + "\n"))
        at += 1
    return found


def check_kind(block: Block) -> None:
    """Raise :class:`DocsError` for a kind of block that is neither run nor plainly no code."""
    if block.kind not in RUN | SHOWN:
        raise DocsError(f"line {block.line}: call a block of code `python` or `console`, not `{block.kind}`")


def run(path: Path, replacements: dict[str, str]) -> None:
    """Run all blocks of a file in the current directory."""
    markdown = path.read_text()
    for old, new in replacements.items():
        markdown = markdown.replace(old, new)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(markdown):
        check_kind(block)
        if block.kind == "python":
            _run_python(path, block, namespace)
        elif block.kind == "console":
            _run_console(block)
        elif is_file(block):
            _write_file(block)


def is_file(block: Block) -> bool:
    """Whether a block of configuration is written to a file."""
    return block.kind in ("toml", "yaml") and _FILE_NAME.match(block.text.partition("\n")[0]) is not None


def _write_file(block: Block) -> None:
    named = _FILE_NAME.match(block.text.partition("\n")[0])
    assert named is not None
    Path(named[1]).write_text(block.text)


def _run_python(path: Path, block: Block, namespace: dict[str, object]) -> None:
    named = _FILE_NAME.match(block.text.splitlines()[0]) if block.text.strip() else None
    if named is not None:
        Path(named[1]).write_text(block.text)
        return
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, str(path), "exec", dont_inherit=True), namespace)


def _run_console(block: Block) -> None:
    steps: list[tuple[int, str, list[str]]] = []
    continued = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if continued:
            at, command, expected = steps[-1]
            steps[-1] = (at, command + "\n" + line, expected)
        elif line.startswith("$ "):
            steps.append((number, line[2:], []))
        elif steps:
            steps[-1][2].append(line)
        elif line.strip():
            raise DocsError(f"line {number}: output before the first command")
        continued = bool(steps) and line.endswith("\\")
    for number, command, expected in steps:
        try:
            output = _run_command(command)
            _compare(output, expected)
        except DocsError as error:
            raise DocsError(f"line {number}: {command}\n{error}") from None


def _run_command(command: str) -> str | None:
    """The output of a command; None if it is only checked."""
    words = command.split()
    if words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        unknown = [word for word in words[1:] if "=" not in word and word not in targets]
        if unknown:
            raise DocsError(f"the Makefile has no target {', '.join(unknown)}")
        return None
    if words[:2] == ["pip", "install"]:
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = {extra for found in re.findall(r"\[([\w,-]+)\]", command) for extra in found.split(",")}
        if not named <= set(known):
            raise DocsError(f"pyproject.toml has no extra {', '.join(sorted(named - set(known)))}")
        return None
    if words[0] == "cd" or words[:2] == ["git", "clone"]:
        return None
    return _run_shell(command)


def _run_shell(command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            env=os.environ | {"PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DocsError(f"did not end within {error.timeout:.0f} s") from None
    if done.returncode != 0:
        raise DocsError(f"ended with status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def _compare(output: str | None, expected: list[str]) -> None:
    wanted = [line.strip() for line in expected if line.strip()]
    if output is None:
        return
    actual = iter(output.splitlines())
    for line in wanted:
        pattern = ".*".join(map(re.escape, line.replace("…", "...").split("...")))
        if not any(re.fullmatch(pattern, candidate.strip()) for candidate in actual):
            raise DocsError(f"did not print: {line}\nit printed:\n{output[-2000:]}")


if __name__ == "__main__":
    run(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))
