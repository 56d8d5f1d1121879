"""What self-contained HTML pages have in common."""

from __future__ import annotations

import base64
import hashlib

__all__ = ["content_policy"]


def content_policy(script: str, style: str) -> str:
    """The content security policy of a page that consists of its text, one script and one style sheet, which are
    identified by their hashes: nothing else runs or is loaded, whatever names the text contains.

    See `Content Security Policy Level 3 <https://www.w3.org/TR/CSP3/>`__.
    """
    return (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; base-uri 'none';"
        " form-action 'none'"
    )


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
