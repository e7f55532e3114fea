"""The site: `make docs` builds it into docs/_build/html."""

import os
import sys
import warnings
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "src"), str(DOCS / "_ext")]

# Examples run in this process and in processes that they start; nothing is fetched.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")
warnings.filterwarnings("ignore", category=FutureWarning, module="sphinx")
warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec")  # Lightning's, in its example

from swad.util.version import __version__  # noqa: E402

project = "swad"
author = "the authors of swad"
version = release = __version__
html_title = f"swad {version}"
language = "en"
smartquotes = False  # options begin with two hyphens

extensions = [
    "sphinx.ext.autodoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "swad_reference",
]
nitpicky = True
exclude_patterns = [
    "_build",
    "gallery/*.py",
    "gallery/*.ipynb",
    "gallery/*.zip",
    "gallery/*.json",
    "**/sg_execution_times.rst",
    "sg_execution_times.rst",
]

# ------------------------------------------------------------ pages

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4

# ------------------------------------------------------------ reference

default_role = "code_or_link"
add_module_names = False
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# ------------------------------------------------------------ gallery

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": "",  # every example runs
    "within_subsection_order": "gallery_order.ReadersOrder",
    "download_all_examples": False,
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 0,
    "reference_url": {"swad": None},
    "backreferences_dir": None,
    "capture_repr": (),
    "matplotlib_animations": False,
}

# ------------------------------------------------------------ look

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["swad.css"]
html_theme_options = {
    "light_css_variables": {"color-api-name": "var(--color-brand-content)", "color-api-pre-name": "#555"},
    "dark_css_variables": {"color-api-name": "var(--color-brand-content)", "color-api-pre-name": "#aaa"},
}
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
