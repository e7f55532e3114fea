"""The reference as a Sphinx extension: pages of the public modules, generated parts of pages, and docstrings.

Nothing that it writes is committed.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import generated
from docstrings import rest
from docutils import nodes
from gallery_order import TILES
from public_names import api_pages
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring

FOLDER = "reference/api"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("config-inited", write_api_pages)
    app.connect("config-inited", draw_tiles)
    app.connect("source-read", expand_parts)
    app.connect("env-get-outdated", changed_parts)
    app.connect("autodoc-process-docstring", to_rest)
    app.connect("missing-reference", without_target, priority=900)
    app.add_role("code_or_link", code_or_link)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "env_version": 1}


# ------------------------------------------------------------ pages of modules


def write_api_pages(app: Sphinx, config: Any) -> None:
    """Write one page for each public module, and remove those of modules that are gone."""
    folder = Path(app.srcdir) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    pages = api_pages()
    for path in folder.glob("*.rst"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # Sphinx reads changed files again
            path.write_text(text, encoding="utf-8")


def draw_tiles(app: Sphinx, config: Any) -> None:
    """Draw the thumbnails of the examples that print and draw nothing: their lines of code."""
    from matplotlib.figure import Figure

    folder = Path(app.srcdir) / "gallery" / "tiles"
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in TILES.items():
        figure = Figure(figsize=(4, 2.8), facecolor="#f6f8fb")
        figure.text(0.07, 0.5, code, family="monospace", fontsize=20, color="#1d3557", va="center", linespacing=1.4)
        figure.savefig(folder / f"{name}.png")


# ------------------------------------------------------------ generated parts


def expand_parts(app: Sphinx, name: str, content: list[str]) -> None:
    """Replace the marks of a page, and remember what they became."""
    if generated.MARK.search(content[0]):
        content[0] = generated.expand(content[0])
        _parts(app.env)[name] = _hash(content[0])


def changed_parts(app: Sphinx, env: BuildEnvironment, added: Any, changed: Any, removed: set[str]) -> list[str]:
    """Return the pages whose generated parts are no longer what they were."""
    return [
        name
        for name, known in _parts(env).items()
        if name not in removed and _hash(generated.expand(env.doc2path(name).read_text(encoding="utf-8"))) != known
    ]


def _parts(env: BuildEnvironment) -> dict[str, str]:
    if not hasattr(env, "swad_parts"):
        env.swad_parts = {}
    return env.swad_parts


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ------------------------------------------------------------ docstrings


def to_rest(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring as reStructuredText, in place."""
    lines[:] = rest("\n".join(lines)).split("\n")
    if what not in ("attribute", "data", "property"):  # there napoleon takes all text before a colon for a type
        lines[:] = GoogleDocstring(lines, NAPOLEON, app, what, name, obj, options).lines()


NAPOLEON = Config(napoleon_use_param=True, napoleon_use_rtype=True)


def code_or_link(
    role: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = ()
) -> Any:
    """Show text as code, and link it if it is a name of the reference: the role of single backticks in docstrings."""
    code = nodes.literal(rawtext, text, classes=["py", "py-obj"])
    env = inliner.document.settings.env
    target = text.removesuffix("()")
    if not re.fullmatch(r"[A-Za-z_][\w.]*", target):
        return [code], []
    link = pending_xref(rawtext, code, refdomain="py", reftype="obj", reftarget=target, refwarn=False)
    link["optional"] = True
    link["py:module"] = env.ref_context.get("py:module")
    link["py:class"] = env.ref_context.get("py:class")
    return [link], []


def without_target(app: Sphinx, env: BuildEnvironment, node: pending_xref, code: Any) -> Any:
    """Leave types and names in docstrings without a link if the reference has none; a page that links must find it."""
    optional = "optional" in node or node.get("refdoc", env.docname).startswith(f"{FOLDER}/")
    return code if optional and node.get("refdomain") == "py" else None
