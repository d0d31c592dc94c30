"""How `make docs` makes pages of README.md, docs/, examples/ and the docstrings, with Sphinx.

The source directory is that of the checkout, so that links lead where they lead on GitHub.
"""

import warnings
from importlib.util import find_spec

import mpi4py
from sphinx.application import Sphinx

import hpcfwi

# h5py may import MPI, which is not to start here.
mpi4py.rc(initialize=False, finalize=False)

project, version = "hpcfwi", hpcfwi.__version__
extensions = [
    *("myst_parser", "sphinx.ext.apidoc", "sphinx.ext.autodoc", "sphinx.ext.napoleon"),
    "sphinx_gallery.gen_gallery",
]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "build/api/**", "build/gallery/*.rst"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

apidoc_modules = [{"path": "../hpcfwi", "destination": "build/api"}]
exclude_patterns = ["build/api/modules.rst"]
# What a package offers is told where it is defined.
autodoc_default_options = {"ignore-module-all": True}
autodoc_mock_imports = ["deepinv", "triton"]
# Sections "Attributes" are fields of the class, whose members are listed anyway.
napoleon_use_ivar = True
default_role = "code"

# Examples begin with the name of the package that they need. Where it is not here, they are shown
# and not run.
MISSING = [name for name in ("deepinv", "pylops") if find_spec(name) is None]
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "build/gallery",
    "filename_pattern": rf"/(?!({'|'.join(MISSING) or ' '})_)\w+\.py$",
    "capture_repr": (),
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "notebook_extensions": set(),
}
# Of libraries for images, which no example reads.
warnings.filterwarnings("ignore", category=UserWarning, module="torchvision")

html_theme = "furo"
html_title = f"hpcfwi {version}"

# Of pages that have no need of a list of pages where they are read as files.
CONTENTS = {
    "README": """
```{toctree}
:hidden:
:titlesonly:
:caption: Use

docs/quickstart
docs/input
docs/formats
docs/convert
docs/cluster
docs/centre
docs/physics
docs/equations
docs/misfits
docs/data
docs/mutes
docs/sources
docs/optimizers
docs/stages
docs/field
docs/streamer
docs/priors
docs/networks
docs/elastic
docs/migration
docs/resolution
docs/figures
docs/performance
```

```{toctree}
:hidden:
:titlesonly:
:caption: Python

docs/operators
docs/torch
docs/splitting
docs/gpu
build/gallery/index
build/api/hpcfwi
```

```{toctree}
:hidden:
:titlesonly:
:caption: Contribute

CONTRIBUTING
docs/decisions/README
CHANGELOG
```
""",
    "docs/decisions/README": """
```{toctree}
:hidden:
:titlesonly:
:glob:

[0-9]*
```
""",
}


def add_contents(_: Sphinx, page: str, source: list[str]) -> None:
    """Called for each page that is read."""
    source[0] += CONTENTS.get(page, "")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
