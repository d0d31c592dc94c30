"""The page about operators is a program."""

from __future__ import annotations

import re
from pathlib import Path

from tests.ranks import run_ranks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"

CHECKS = """
assert len(mine) == len(own.mine) == len(parts)
assert torch.equal(mean["vp"], shots.vjp(model, data)["vp"] / 4)
assert torch.allclose(picture[0, 0], smooth(vp[None, None])[0, 0])
"""


def test_its_code_runs_on_several_ranks():
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S))
    done = run_ranks(
        2, code.replace("context.close()", CHECKS + "context.close()"), warm=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
