"""How Sphinx builds the site: `make docs`.

The source folder is the repository, so that a link means the same in the site and in the Markdown
itself: a link to another page, to README.md, or to a file such as `../docker/compose.yaml`, which
the site offers for download. Nothing is fetched: no index of another project, no font, no script.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jaxd import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "jaxd"
author = "the jaxd authors"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "examples/README.md",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "build", "dist"]  # not walked

html_theme = "furo"
html_title = f"jaxd {version}"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}

# Anchors of headings are those of a forge.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["myst.header"]  # sections of README.md need not be nested

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autoclass_content = "class"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True

# Names of other projects have no page here, and no index of theirs is asked.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!jaxd\.).*"), ("py:.*", r"jaxd\.\w+\.\w+\..*")]


def _as_rest(_app: Sphinx, what: str, _name: str, *given: Any) -> None:
    """Docstrings have code between single backticks, as Markdown does: "`RemoteArray`s"."""
    lines: list[str] = given[-1]
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(": ", ", ")  # napoleon takes what is before a colon for a type
    code = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w*)")
    lines[:] = [code.sub(r"``\1``\\ \2", line).rstrip() for line in lines]


def _is_left_out(
    _app: Sphinx, _what: str, _name: str, obj: object, skip: bool, _options: object
) -> bool:
    """Fields of named tuples, which the docstring of the class describes."""
    return skip or str(getattr(obj, "__doc__", "")).startswith("Alias for field number")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-skip-member", _is_left_out)
    app.connect("autodoc-process-docstring", _as_rest, priority=400)  # before napoleon, of 500
