"""Tests that requirements/lock.txt agrees with setup.cfg and the setup script."""

from __future__ import annotations

import re
from configparser import ConfigParser

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.ranks import ROOT

LOCKED = {
    requirement.name: requirement
    for line in (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    if not line.startswith("#")
    for requirement in [Requirement(line)]
}


def version_of(name: str) -> str:
    (pin,) = LOCKED[canonicalize_name(name)].specifier
    assert pin.operator == "=="
    return pin.version


def test_every_required_package_is_locked_within_its_range():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    asked = [Requirement(line) for line in setup["options"]["install_requires"].split()]
    for requirement in asked:
        assert requirement.specifier.contains(version_of(requirement.name)), requirement


def test_setup_script_installs_the_locked_torch_and_h5py():
    script = (ROOT / ".ci" / "setup.sh").read_text()
    for name in ("torch", "h5py"):
        assert set(re.findall(rf"{name}==([\d.]+\d)", script)) == {version_of(name)}
