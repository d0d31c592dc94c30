"""One inversion as the user wrote it: TOML in, frozen and validated objects out.

A section of the input file is a module here, with its keys, what values these may have, and their
defaults. What the strings under the keys say is what users read, in messages and in docs/input.md,
which is made of them. What can be checked without reading a model or a survey is checked here; the
rest is checked in `inversion.preparation`.
"""

from hpcfwi.config.file import Config, changed_keys
from hpcfwi.config.read import import_own, load_config

__all__ = ["Config", "changed_keys", "import_own", "load_config"]
