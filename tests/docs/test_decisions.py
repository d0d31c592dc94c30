"""The list of decisions."""

from __future__ import annotations

import re

from tests.ranks import ROOT

FOLDER = ROOT / "docs" / "decisions"


def test_list_of_decisions_has_all_pages_with_their_titles():
    pages = [
        (page.name[:3], page.name, page.read_text(encoding="utf-8").splitlines()[0])
        for page in sorted(FOLDER.glob("[0-9]*.md"))
    ]
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\d{3})\]\((.+)\) \| (.+) \|$", index, flags=re.MULTILINE)
    assert [(number, name, f"# {number}: {title}") for number, name, title in listed] == pages
