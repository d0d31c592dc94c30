"""The configuration of one inversion: TOML in, frozen and validated objects out.

`sections` and `inversion` have the sections of the input file, with their keys, the values these
may have, and their defaults. The string under a key is its description, which users read in
messages and in docs/input.md. Everything that can be checked without reading a model or a survey is
checked here; `inversion.preparation` checks the rest.
"""

from hpcfwi.config.read import Config, changed_keys, import_own, load_config

__all__ = ["Config", "changed_keys", "import_own", "load_config"]
