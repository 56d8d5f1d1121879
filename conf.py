"""Sphinx: the site of ``make docs``, from README.md, the other Markdown pages and the docstrings.

The pages are plain Markdown that any viewer of the repository shows. So the sources of the site are the whole
repository, and whatever only the site needs is here: the navigation, and the links of docstrings.
"""

from __future__ import annotations

import functools
import pydoc
import re
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import reliamsg
import reliamsg.aio
import reliamsg.otel.tracing

# Its annotations name what it imports for type checkers alone.
vars(reliamsg.otel.tracing).update(
    {name: getattr(reliamsg, name) for name in ("Consumer", "Producer", "Receipt", "aio")}
)

project = "reliamsg"
version = release = reliamsg.__version__
copyright = "the authors of reliamsg; Apache-2.0"
html_title = f"reliamsg {version}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/**.rst"]
exclude_patterns = [".*", "benchmarks", "build", "dist", "examples", "src", "tests"]
nitpicky = True
# Names in annotations that can't be evaluated, since their modules import some types for type checkers alone.
nitpick_ignore = [("py:class", "BlockingChannel"), ("py:class", "Credentials")]
default_role = "literal"
myst_heading_anchors = 6

html_theme = "furo"
html_extra_path = ["docs/site/index.html"]
html_static_path = ["docs/site/site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # it would fetch the pages that were found, which browsers refuse for files
html_show_sphinx = False
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

NAVIGATION = {
    "Tutorial": ["docs/tutorial", "docs/examples"],
    "How-to guides": ["docs/how-to/*"],
    "Reference": ["docs/reference/*"],
    "Explanation": ["docs/explanation/*"],
    "Project": ["CONTRIBUTING", "CHANGELOG", "SECURITY"],
}
PACKAGES = [
    "reliamsg", "reliamsg.aio", "reliamsg.prometheus", "reliamsg.otel", "reliamsg.cloudevents", "reliamsg.testing",
    "reliamsg.checker", "reliamsg.lab", "reliamsg.plan",
]  # fmt: skip


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append what plain Markdown can't contain: other viewers would show it as text."""
    if page == root_doc:
        # The site has a page for the directory.
        source[0] = source[0].replace("](examples)", "](docs/examples.rst)")
        source[0] += "".join(tree(pages, caption) for caption, pages in NAVIGATION.items())
    elif page == "docs/reference/api":
        source[0] += tree([f"api/{package.removeprefix('reliamsg.')}" for package in PACKAGES])


def tree(pages: list[str], caption: str = "") -> str:
    options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["\n```{toctree}", *options, "", *pages, "```", ""])


def resolve(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.Element) -> Any:
    """Docstrings refer to objects as the sources of their module do: link to where the site documents the same object.
    Internal objects, and those of other packages, are shown without a link. What does not exist is a mistake."""
    if node.get("refdomain") != "py":
        return None
    for place in places(node):
        path = f"{place}.{node['reftarget']}".removeprefix(".")
        thing = pydoc.locate(path)
        if thing is None:
            continue
        owner, _, member = path.rpartition(".")
        name = documented(env).get(id(thing))
        if name is None and (parent := documented(env).get(id(pydoc.locate(owner)))):
            name = f"{parent}.{member}"
        domain = env.domains.python_domain
        found = name and domain.resolve_xref(
            env, node["refdoc"], app.builder, node["reftype"], name, node, text
        )
        return found or text
    return None


def places(node: addnodes.pending_xref) -> list[str]:
    """Where the name of a reference may be looked up, the innermost place first."""
    module, owner = node.get("py:module") or "", node.get("py:class") or ""
    parts = (node.source or "").partition("docstring of ")[2].split(".")
    found = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    found += [f"{module}.{owner}", module]
    defined_in = [getattr(pydoc.locate(place), "__module__", "") for place in found if place]
    return list(dict.fromkeys([*found, *defined_in, "reliamsg", ""]))


@functools.cache
def documented(env: BuildEnvironment) -> dict[int, str]:
    """The names of classes, functions and constants in the site, by the ``id()`` of each."""
    kinds = {"class", "data", "exception", "function"}
    objects = env.domains.python_domain.objects.items()
    return {id(pydoc.locate(name)): name for name, entry in objects if entry.objtype in kinds}


def readable(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Leave out what is no Python in the signatures of dataclasses and structs, and private parameters."""
    if signature is not None:
        signature = re.sub(r", _\w+: [^,]+(?=\)$)", "", re.sub(r"<[^>]*>", "...", signature))
    return signature, returned


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", add_navigation)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-signature", readable)
    app.add_lexer("conf", TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
