"""One page of a run that needs no other file: figures, numbers, input and versions, as HTML.

What it shows is read by `run.summary`; the figures are those of the run directory, within the page.
"""

from __future__ import annotations

import platform
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy
import torch

from hpcfwi import __version__
from hpcfwi.report.progress import say_duration

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1, h2 { line-height: 1.2; font-weight: 600; } h2 { margin-top: 2.5rem; }
figure { margin: 1.5rem 0; overflow-x: auto; break-inside: avoid; }
img { width: 100%; min-width: 40rem; height: auto; }
figcaption { color: #555; font-size: 0.9rem; position: sticky; left: 0; }
@media print { img { min-width: 0; } pre { white-space: pre-wrap; } }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block;
        overflow-x: auto; }
th, td { text-align: right; padding: 0.2rem 0.9rem 0.2rem 0; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
.warning { border-left: 4px solid #d62f1f; padding-left: 0.8rem; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: 0.85rem; }
"""
CITATION = "The hpcfwi authors: hpcfwi, seismic full-waveform inversion as an HPC batch application"


def make_page(
    name: str,
    history: Sequence[Mapping[str, Any]],
    unit: str,
    config: str,
    figures: Sequence[tuple[str, bytes]],
    told: Sequence[tuple[str, Sequence[str], Sequence[str]]],
) -> str:
    """Return the whole page.

    history: of the metrics; unit: of the model's error; config: TOML; figures: names
    and PNG images; told: of the data, titles, lines and warnings.
    """
    parts = [
        f"<h1>{escape(name)}</h1>",
        _say_where_it_is(history, unit),
        *_tabulate(history, unit),
        *(["<h2>Data</h2>"] if told else []),
        *(_tell(*part) for part in told),
        "<h2>Figures</h2>",
        *(_show(title, image) for title, image in figures),
        "<h2>Input</h2>",
        f"<pre>{escape(config)}</pre>",
        "<h2>Made with</h2>",
        f"<p>hpcfwi {__version__}, torch {torch.__version__}, NumPy {numpy.__version__}, "
        f"Python {platform.python_version()}. How to cite: {escape(CITATION)}, "
        f"version {__version__}.</p>",
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(parts) + "\n</body>\n</html>\n"


def _say_where_it_is(history: Sequence[Mapping[str, Any]], unit: str) -> str:
    if not history:
        return "<p>No epoch is done yet.</p>"
    last = history[-1]
    error = last.get("model_error")
    known = (
        "" if error is None else f" The root mean square error of the model is {error:.1f} {unit}."
    )
    return (
        f"<p>{last['epoch']} epochs are done, with {last.get('simulations', 'unknown')} "
        f"simulations, in {say_duration(sum(entry['seconds'] for entry in history))}.{known}</p>"
    )


def _tabulate(history: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """Return a heading and the last epoch of each stage, or of a run without stages."""
    ends = {str(entry.get("stage", 0)): entry for entry in history}
    named = [*ends] != ["0"]  # as a run without stages calls its only part
    rows = "".join(
        f"<tr>{f'<td>{escape(stage)}</td>' * named}<td>{entry['epoch']}</td>"
        f"<td>{entry.get('simulations', '')}</td><td>{entry['loss']:.4g}</td>"
        f"<td>{_number(entry.get('model_error'))}</td></tr>"
        for stage, entry in ends.items()
    )
    heads = ["stage"] * named + ["last epoch", "simulations", "misfit", f"error ({unit})"]
    table = f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"
    note = "<p>Misfits of different stages are of different data.</p>" * (len(ends) > 1)
    return [f"<h2>{'Stages' if named else 'Result'}</h2>", table + note]


def _tell(title: str, lines: Sequence[str], warnings: Sequence[str]) -> str:
    """Return what was found of the data in paragraphs, with the warnings first."""
    parts = [f'<p class="warning">{escape(warning)}</p>' for warning in warnings]
    parts += [f"<p>{escape(line)}</p>" for line in lines]
    return f"<h3>{escape(title)}</h3>{''.join(parts)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _show(title: str, image: bytes) -> str:
    data = b64encode(image).decode("ascii")
    name = escape(title)
    return (
        f'<figure><img alt="{name}" src="data:image/png;base64,{data}">'
        f"<figcaption>{name}</figcaption></figure>"
    )
