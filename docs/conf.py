"""Sphinx's settings: the pages of this folder as a site, by ``make docs``; a warning is an error there."""
# ruff: noqa: INP001 - Sphinx reads it as a script

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx

from tachograph.version import __version__

project = "Tachograph"
author = "Tachograph's authors"
project_copyright = f"{author}, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_heading_anchors = 4  # as GitHub makes them
myst_enable_extensions = ["colon_fence"]

napoleon_use_rtype = False  # a sentence with a colon is no type
napoleon_use_ivar = True  # the fields of records are described with their class, once
autodoc_typehints = "none"  # signatures say them, and the types of others lead nowhere without a network
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": False}  # docs/api.md names the public members
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Tachograph {__version__}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b57d0",
        "color-brand-content": "#0b57d0",
        "toc-item-spacing-vertical": "0.7rem",  # WCAG 2.2: targets 24 pixels from each other
    },
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
}
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

# Of a file or folder beside docs/: it is named, and not linked to, as the site does not have it.
_BESIDE = r"\[([^\]]+)\]\(((?:\.\./){%d}[^)\s]+)\)"
_OF_THE_README = re.compile(r"\]\(docs/([^)\s]+)\)")


def _within_the_site(_app: Sphinx, name: str, source: list[str]) -> None:
    """Take the links out of a page that lead to files which the site does not have."""
    up = 1 + name.count("/")  # folders from the page to the one beside docs/
    source[0] = re.sub(_BESIDE % up, lambda found: f"{found[1]} (`{found[2][3 * up :]}`)", source[0])


def _included(_app: Sphinx, _path: str, _parent: str, source: list[str]) -> None:
    """Make the links of an included file, which lies beside this folder, those of this folder."""
    source[0] = _OF_THE_README.sub(r"](\1)", source[0])


def _unbroken(_app: Sphinx, doctree: nodes.document) -> None:
    """Keep a per cent sign in the line of its number."""
    for text in list(doctree.findall(nodes.Text)):
        if not isinstance(text.parent, nodes.literal | nodes.literal_block):
            text.parent.replace(text, nodes.Text(re.sub(r"(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", text)))


def _levels(_app: Sphinx, _name: str, _template: str, context: dict[str, object], _doctree: object) -> None:
    """Give the headings of the side bar the level that WAI-ARIA requires, and Sphinx leaves out."""
    tree = context.get("furo_navigation_tree")
    if isinstance(tree, str):
        context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


# Parts of the theme that axe-core refuses: landmarks of one kind without a name, parts that scroll for a mouse alone,
# headings of columns without a word, a page without a heading.
_ACCESSIBLE = (
    ('<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Pages">'),
    ('<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'),
    ("<pre>", '<pre tabindex="0">'),
    ('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'),
    ('<th class="head"><p></p></th>', "<td></td>"),
    ('<div id="search-results">', '<h1>Search</h1><div id="search-results">'),
)


def _accessible(app: Sphinx, exception: Exception | None) -> None:
    """Mend the pages that were written."""
    for path in Path(app.outdir).rglob("*.html") if exception is None else ():
        page = mended = path.read_text(encoding="utf-8")
        for theirs, ours in _ACCESSIBLE:
            mended = mended.replace(theirs, ours)
        if mended != page:
            path.write_text(mended, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Load what autodoc shows by its public name, and hook into the reading of pages."""
    import_module("tachograph.elastic")
    app.connect("source-read", _within_the_site)
    app.connect("include-read", _included)
    app.connect("build-finished", _accessible)
    app.connect("doctree-read", _unbroken)
    app.connect("html-page-context", _levels, priority=900)  # the theme makes the tree before
