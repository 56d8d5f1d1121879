"""Safe output to a terminal: untrusted text is shown and has no effect.

Names, journals, errors of brokers and messages may contain control sequences that move the cursor, change the window's
title or hide a line, and invisible characters or characters that reverse the text direction. All commands print through
this module.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, TextIO

__all__ = ["ascii_json", "printable", "printable_lines", "rewrite", "say", "say_json", "say_text"]

_INVISIBLE = (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc\U0001d159"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters that Unicode classifies as printable but that are invisible: fillers and variation selectors."""
_suspect = re.compile(f"[{_INVISIBLE}]").search
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")


def printable(text: object) -> str:
    """`text` in one line, with escapes such as ``\\x1b`` for everything that is not visible.

    Escapes control characters (C0, DEL, C1, line breaks and tabs), characters that change the text direction, have no
    width or are blank (except the space), surrogates, and private and unassigned code points.
    """
    shown = str(text)
    if shown.isprintable() and (shown.isascii() or _suspect(shown) is None):
        return shown
    return "".join(c if c.isprintable() and _suspect(c) is None else _escape(c) for c in shown)


def printable_lines(text: object) -> str:
    """The same for text with several lines, whose line breaks are trusted."""
    return "\n".join(map(printable, str(text).split("\n")))


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def ascii_json(encoded: str | bytes) -> str:
    """Equivalent JSON in printable ASCII."""
    text = encoded.decode() if isinstance(encoded, bytes) else encoded
    return _NOT_ASCII.sub(_json_escape, text) if not (text.isascii() and text.isprintable()) else text


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2], 'big'):04x}" for at in range(0, len(units), 2))


def say(*lines: object, err: bool = False) -> None:
    """Print lines on standard output or standard error. Line breaks within a line are escaped."""
    _write("".join(f"{printable(line)}\n" for line in lines), err)


def say_text(text: object, *, err: bool = False) -> None:
    """Print text with several lines, whose line breaks are trusted."""
    _write(printable_lines(text) + "\n", err)


def say_json(value: Any, *, flush: bool = True) -> None:
    """Print a value as one line of JSON on standard output; bytes are encoded JSON."""
    encoded = value if isinstance(value, bytes) else json.dumps(value, separators=(", ", ": "))
    _write(ascii_json(encoded) + "\n", False, flush)


def rewrite(text: object, width: int) -> None:
    """Replace the last line on standard error, which must be a terminal."""
    _write("\r\x1b[K" + printable(text)[:width], True)


def _write(text: str, err: bool, flush: bool = True) -> None:
    stream: TextIO = sys.stderr if err else sys.stdout
    stream.write(text)
    if flush:
        stream.flush()
