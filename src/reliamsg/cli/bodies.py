"""How commands show the bodies of messages."""

from __future__ import annotations

import base64

__all__ = ["body_fields", "preview"]

_SHOWN = 200
"""Characters, or bytes that are not text."""


def body_fields(body: bytes) -> dict[str, str]:
    """For JSON: ``body``, or ``body_base64`` if the body is not UTF-8 text."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def preview(body: bytes) -> str:
    """The beginning of a body for people: its text or, if it is not UTF-8, ``0x`` and hexadecimal digits."""
    if not body:
        return "(empty)"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text, shown = "0x" + body[:_SHOWN].hex(), len(body)
    else:
        text, shown = text[:_SHOWN], len(text)
    return text + "…" if shown > _SHOWN else text
