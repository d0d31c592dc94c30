"""Differences of two configs."""

from __future__ import annotations

from hpcfwi.config import Config, changed_keys, load_config


def test_changed_keys_include_added_and_removed_keys(path):
    old = load_config(path)
    settings = ["model.spacing=25", "wave.history.interval=2", "inversion.optimizer.lr=5"]
    expected = [
        "inversion.optimizer.lr",
        "model.spacing",
        "wave.history",
        "wave.history.interval",
        "wave.history.kind",
    ]
    new = load_config(path, settings)
    assert list(changed_keys(old, new)) == list(changed_keys(new, old)) == expected
    assert changed_keys(old, new)["inversion.optimizer.lr"] == 25.0
    assert changed_keys(old, new)["model.spacing"] is None
    assert isinstance(new, Config)
