"""Import of the adapters where deepinv cannot be imported."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_import_without_torchvision_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "hpcfwi.interop.deepinv", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepinv"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"pip install 'hpcfwi\[deepinv\]', with the torchvision"):
        importlib.import_module("hpcfwi.interop.deepinv")
