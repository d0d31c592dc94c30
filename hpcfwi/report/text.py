"""The text of a run: its log, progress and metrics, and an HTML page that shows the run.

The whole program writes messages with `logging.getLogger("hpcfwi")`. The progress is a live bar on
a terminal, and plain lines in the log of a batch job. The metrics file (`metrics.jsonl`) has one
JSON object on one line for each epoch, with its number as "epoch"; `inversion` measures the values.
The page contains figures, metrics, input and versions, which `run.drawing` reads, and needs no
other file.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import statistics
import sys
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import escape
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import torch

from hpcfwi import __version__
from hpcfwi.errors import InputError, WriteFailure, refusing
from hpcfwi.model import PARAMETERS
from hpcfwi.system import open_own, open_regular, written_whole

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

logger = logging.getLogger(__name__)

# A record with this attribute has already been shown and is written to the file only.
ALREADY_SHOWN = "already_shown"


@contextmanager
def start_log(path: Path | None, rank: int, quiet: bool = False) -> Iterator[None]:
    """Direct messages to the screen and a file; an outer log pauses within the block.

    Rank 0 writes messages to the screen (`quiet`: only warnings and errors) and, with the time,
    appends them to the file `path` (None: no file). Other ranks write only warnings and errors to
    stderr, after "rank N:", and none of `hpcfwi.wave`. The stream is looked up for each message,
    because a live bar replaces stdout to print messages above itself. Raises `InputError`, on rank
    0 only, if the file cannot be opened or is a link.
    """
    logger = logging.getLogger("hpcfwi")
    handlers: list[logging.Handler] = [_Screen(rank, quiet)]
    if rank == 0 and path is not None:
        remedy = "Choose another output directory or change its permissions."
        with refusing(str(path), "the log cannot be written", remedy):
            file = _File(path, encoding="utf-8", errors="backslashreplace")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        handlers.append(file)
    before = logger.handlers, logger.propagate
    others = [h for h in logger.handlers if not isinstance(h, _Screen | _File)]
    # Otherwise each message would appear twice if a library configures the root logger.
    logger.handlers, logger.propagate = [*others, *handlers], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
        for handler in handlers:
            handler.close()


class _Screen(logging.Handler):
    def __init__(self, rank: int, quiet: bool) -> None:
        super().__init__(logging.WARNING if quiet or rank > 0 else logging.INFO)
        self._rank = rank

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, ALREADY_SHOWN, False):
            return
        # Messages of `wave` are the same on all ranks
        if self._rank > 0 and record.name.startswith("hpcfwi.wave."):
            return
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING:
                text = f"{record.levelname}: {text}"
            if self._rank > 0:
                text = f"rank {self._rank}: {text}"
            stream = sys.stderr if self._rank > 0 else sys.stdout
            # A file name may have characters that are not in the terminal's encoding.
            encoding = getattr(stream, "encoding", None) or "utf-8"
            # A single write, so that lines of several ranks do not mix.
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
            stream.flush()
        except Exception:
            self.handleError(record)


class _File(logging.FileHandler):
    """A handler that ignores a full disk, because the run itself reports that it cannot write."""

    def _open(self) -> TextIOWrapper:
        return open(
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_own
        )

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


# The time left is estimated from the median of this number of last steps, which ignores a single
# slow one.
STEPS_REMEMBERED = 9
WIDTH_WHERE_UNKNOWN = 80


class Progress:
    """The progress of a run in units (epochs, shots); use it in a `with` statement.

    total: number of units; done: number of units that an earlier run has done; unit: name of a
    unit, in the singular; every: without a terminal, a line is printed when at least this part of
    the total has been done since the last line, and at the end; 0 for a line at each `advance`;
    enabled: if False, as on all ranks but one, nothing is shown or logged; quiet: if True, nothing
    is shown, but lines are written to the log's file; stream: output, by default the value of
    `sys.stdout` on entry.
    """

    def __init__(
        self,
        total: int,
        unit: str = "epoch",
        *,
        done: int = 0,
        every: float = 0.0,
        enabled: bool = True,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._total, self._unit, self._done = total, unit, done
        self._step = every * total
        self._told = done
        self._enabled, self._quiet = enabled, quiet
        self._stream = stream
        self._bar: RichProgress | None = None
        self._seconds: deque[float] = deque(maxlen=STEPS_REMEMBERED)

    def __enter__(self) -> Progress:
        self._last = time.monotonic()
        if self._enabled and not self._quiet:
            self._stream = self._stream or sys.stdout
            width = terminal_width(self._stream)
            if width is not None:
                self._bar = _live_bar(self._stream, width)
                self._bar.add_task(self._count, total=self._total, completed=self._done)
                self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(
        self,
        units: int = 1,
        *,
        misfit: float | None = None,
        errors: str | None = None,
        note: str | None = None,
    ) -> None:
        """Count more units; report the misfit, the model errors and a note if given."""
        if not self._enabled or units == 0:
            return
        now = time.monotonic()
        self._seconds.append((now - self._last) / units)
        self._last = now
        self._done += units
        line = self._line(misfit, errors)
        if note is not None:
            line += f"  ({note})"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, description=line)
        if self._done - self._told >= self._step or self._done >= self._total:
            self._told = self._done
            if self._bar is None and not self._quiet:
                print(line, file=self._stream, flush=True)
            logger.info("%s", line, extra={ALREADY_SHOWN: True})

    @property
    def _count(self) -> str:
        return f"{self._unit} {self._done:{len(str(self._total))}d}/{self._total}"

    def _line(self, misfit: float | None, errors: str | None) -> str:
        parts = [self._count]
        if misfit is not None:
            parts.append(f"misfit {misfit:.4e}")
        if errors is not None:
            parts.append(f"error {errors}")
        parts.append(f"{self._seconds[-1]:.3g} s/{self._unit}")
        left = (self._total - self._done) * statistics.median(self._seconds)
        parts.append(f"left {say_duration(left)}")
        return "  ".join(parts)


def _live_bar(stream: TextIO, width: int) -> RichProgress:
    # Imported here, because batch jobs have no terminal and do not need it
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as RichProgress

    console = Console(file=stream, force_terminal=True, width=width)
    return RichProgress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        console=console,
        expand=True,
        refresh_per_second=4,
        # The bar prints stderr above itself, unless stderr goes to a file.
        redirect_stderr=sys.stderr.isatty(),
    )


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal of `stream`; None for a file, a pipe or a batch log.

    It is also None for a terminal without a size. Open MPI gives such a terminal to every rank even
    if its output goes to a file, which a live bar would fill.
    """
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:
        return WIDTH_WHERE_UNKNOWN


def say_duration(seconds: float) -> str:
    """Return a duration as text, such as "2 h 05 min"."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole:02d} s" if minutes else f"{whole} s"


def metric_keys(metric: str, names: Iterable[str]) -> dict[str, str]:
    """Return the keys of a metric of each parameter, by name; the first has no suffix."""
    first, *others = names
    return {first: metric, **{name: f"{metric}_{name}" for name in others}}


def say_errors(errors: Mapping[str, float]) -> str:
    """Return the errors of parameters with their units; a single one is not named."""
    said = []
    for name, error in errors.items():
        unit = PARAMETERS[name].unit
        value = f"{error:.1f} {unit}" if unit else f"{error:.4f}"
        said.append(value if len(errors) == 1 else f"{name} {value}")
    return ", ".join(said)


def append_metrics(path: Path, record: Mapping[str, Any]) -> None:
    """Add one line to the file, which is created if it is missing.

    Numbers that are not finite become null, because JSON cannot represent them. After a crash the
    file may end within a line; `mend_metrics` repairs it before the first line is appended. Raises
    `WriteFailure`, and `InputError` for a link.
    """
    try:
        with open(path, "ab", opener=open_own) as file:
            file.write(_line(record))
    except OSError as error:
        raise WriteFailure.of(path, error) from error


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the records in their order, or an empty list if there is no file.

    An incomplete last line is ignored. Raises `InputError` if an earlier line is not a JSON object.
    """
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
            lines = [line for line in file.read().split("\n") if line]
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif number < len(lines):
            raise InputError(
                f"{path}, line {number}",
                f"is not a JSON object: {line[:40]!r}",
                "Correct or delete this line.",
            )
    return records


def mend_metrics(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Make the file agree with these records, which are the history of a checkpoint.

    Lines that agree with the records, except for the numbers of their shots, are not changed. Lines
    after them are removed, and missing ones are written. Raises `WriteFailure`.
    """
    lines = None
    with suppress(OSError, InputError), open(path, "rb", opener=open_own) as file:
        lines = file.readlines()  # unless the file is missing, or a link
    pairs = zip(lines or (), records, strict=False)
    kept = [line for line, _ in takewhile(lambda pair: _agrees(*pair), pairs)]
    if lines is not None and len(kept) == len(lines) == len(records):
        return
    with written_whole(path) as file:
        file.writelines(kept)
        file.writelines(map(_line, records[len(kept) :]))


def _agrees(line: bytes, record: Mapping[str, Any]) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    if not isinstance(found, dict) or not line.endswith(b"\n"):
        return False
    return {**found, "shots": None} == {**_plain(record), "shots": None}


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(_plain(record), allow_nan=False).encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    """Return a value for JSON, with Python numbers and lists, and None if it is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


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
    names: Sequence[str],
    config: str,
    figures: Sequence[tuple[str, bytes]],
    findings: Sequence[tuple[str, Sequence[str], Sequence[str]]],
) -> str:
    """Return the whole page.

    history: the metrics; names: of the inverted parameters; config: the input in TOML; figures:
    names and PNG images; findings: titles, lines and warnings about the data.
    """
    parts = [
        f"<h1>{escape(name)}</h1>",
        _say_where_it_is(history, metric_keys("model_error", names)),
        *_tabulate(history, metric_keys("model_error", names)),
        *(["<h2>Data</h2>"] if findings else []),
        *(_show_findings(*part) for part in findings),
        "<h2>Figures</h2>",
        *(_show(title, image) for title, image in figures),
        "<h2>Input</h2>",
        f"<pre>{escape(config)}</pre>",
        "<h2>Software</h2>",
        f"<p>hpcfwi {__version__}, torch {torch.__version__}, NumPy {np.__version__}, "
        f"Python {platform.python_version()}. How to cite: {escape(CITATION)}, "
        f"version {__version__}.</p>",
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(parts) + "\n</body>\n</html>\n"


def _say_where_it_is(history: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> str:
    if not history:
        return "<p>No epoch is done yet.</p>"
    last, known = history[-1], ""
    if errors := _find_errors(last, keys):
        known = f" The root mean square error of the model is {say_errors(errors)}."
    return (
        f"<p>{last['epoch']} epochs are done, with {last.get('simulations', 'unknown')} "
        f"simulations, in {say_duration(sum(entry['seconds'] for entry in history))}.{known}</p>"
    )


def _find_errors(entry: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, float]:
    """Return the known errors of an epoch by parameter; keys: see `metric_keys`."""
    return {name: entry[key] for name, key in keys.items() if entry.get(key) is not None}


def _tabulate(history: Sequence[Mapping[str, Any]], keys: Mapping[str, str]) -> list[str]:
    """Return a heading and the last epoch of each stage, or of a run without stages."""
    ends = {str(entry.get("stage", 0)): entry for entry in history}
    named = [*ends] != ["0"]  # the name in a run without stages
    rows = "".join(
        f"<tr>{f'<td>{escape(stage)}</td>' * named}<td>{entry['epoch']}</td>"
        f"<td>{entry.get('simulations', '')}</td><td>{entry['loss']:.4g}</td>"
        f"<td>{say_errors(_find_errors(entry, keys))}</td></tr>"
        for stage, entry in ends.items()
    )
    heads = ["stage"] * named + ["last epoch", "simulations", "misfit", "error"]
    table = f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"
    note = "<p>Misfits of different stages are of different data.</p>" * (len(ends) > 1)
    return [f"<h2>{'Stages' if named else 'Result'}</h2>", table + note]


def _show_findings(title: str, lines: Sequence[str], warnings: Sequence[str]) -> str:
    """Return the findings about the data as paragraphs, with the warnings first."""
    parts = [f'<p class="warning">{escape(warning)}</p>' for warning in warnings]
    parts += [f"<p>{escape(line)}</p>" for line in lines]
    return f"<h3>{escape(title)}</h3>{''.join(parts)}"


def _show(title: str, image: bytes) -> str:
    data = b64encode(image).decode("ascii")
    name = escape(title)
    return (
        f'<figure><img alt="{name}" src="data:image/png;base64,{data}">'
        f"<figcaption>{name}</figcaption></figure>"
    )
