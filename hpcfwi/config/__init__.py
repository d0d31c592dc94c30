"""The input file: TOML files are read into validated, immutable `Config` objects.

`survey`, `inversion` and `read` define the sections of the input file: their keys, the values that
are allowed, and the defaults. The string under a key is its description, which users see in
error messages and in docs/input.md. This package checks everything that can be checked without
reading a model or a survey; `hpcfwi.inversion.preparation` checks the rest.
"""

from hpcfwi.config.read import Config, changed_keys, import_plugins, load_config

__all__ = ["Config", "changed_keys", "import_plugins", "load_config"]
