"""Write requirements/lock.txt, the installed versions of the packages that hpcfwi needs to run.

    python requirements/lock.py

Run it in an environment in which all tests have passed. setup.cfg has open ranges of versions; the
file is one choice from these, which pip takes as constraints:
`PIP_CONSTRAINT=$PWD/requirements/lock.txt make setup`.
"""

from __future__ import annotations

from collections.abc import Iterable
from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "lock.txt"

HEAD = """\
# Versions that were tested together, of all that hpcfwi needs to run: constraints for pip.
# Made by `python requirements/lock.py`; docs/centre.md says how they are used.
"""


def read_ranges() -> list[Requirement]:
    """Return the requirements in setup.cfg, without the extras."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return [Requirement(line) for line in setup["options"]["install_requires"].split("\n") if line]


def find_versions(needed: Iterable[Requirement]) -> dict[str, str]:
    """Return the installed versions of packages and of all that these need, by name.

    They are without the local part of a version (2.13.0+cpu), which differs from node to node.
    """
    found: dict[str, str] = {}
    left, seen = list(needed), set()
    while left:
        asked = left.pop()
        name = canonicalize_name(asked.name)
        if (name, *asked.extras) in seen:
            continue
        seen.add((name, *asked.extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{asked} is not installed here: make setup") from None
        found[name] = Version(package.version).public
        for more in map(Requirement, package.requires or ()):
            if more.marker is None or any(
                more.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras)
            ):
                left.append(more)
    return found


if __name__ == "__main__":
    versions = sorted(find_versions(read_ranges()).items())
    LOCK.write_text(HEAD + "".join(f"{name}=={version}\n" for name, version in versions))
