"""Where deepinv cannot be imported, one sentence says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_one_sentence_says_what_to_install_where_torchvision_is_missing(monkeypatch):
    monkeypatch.delitem(sys.modules, "hpcfwi.interop.deepinv", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepinv"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"pip install 'hpcfwi\[deepinv\]', with the torchvision"):
        importlib.import_module("hpcfwi.interop.deepinv")
