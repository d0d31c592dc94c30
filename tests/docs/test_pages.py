"""The text of all pages."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from tests.ranks import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/decisions/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_of_each_table_have_equally_many_cells(page):
    """A bar within a formula or a piece of code ends the cell."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for in_table, lines in groupby(text.splitlines(), lambda line: line.startswith("|")):
        if in_table:
            rows = list(lines)
            counts = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
            assert [row for row, n in zip(rows, counts, strict=True) if n != counts[0]] == []
