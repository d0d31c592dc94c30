"""Tests that any SEG-Y file is converted correctly, or refused with one message.

Converted files are compared with `convert.reading`; refused files must not be written.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.convert.examples import (
    DTYPES,
    N_SAMPLES,
    N_TRACES,
    PLACES,
    line_fields,
    line_traces,
    write_segy,
)
from tests.convert.reading import check_gathers, check_model
from tests.fuzz import damage
from tests.fuzz.commands import call, message_of
from tests.fuzz.test_inputs import some_folder, tries


def columns(n_rows: int) -> dict[str, np.ndarray | int]:
    """Return headers of a model of rows of columns, 10 m apart along x and 20 m along y."""
    row, rank = np.divmod(np.arange(N_TRACES), N_TRACES // n_rows)
    return {
        "inline": 1 + row,
        "crossline": 1 + rank,
        "cdp_x": 100 + 100 * rank,
        "cdp_y": 200 * row,
        "coordinate_scalar": -10,
        "samples": N_SAMPLES,
        "interval": 5000,
    }


with some_folder() as _folder:
    GOOD = write_segy(_folder / "good.sgy").read_bytes()
    TRACES = line_traces()
    # Every field that revision 2 adds to the file header
    NEWER = write_segy(
        _folder / "newer.sgy",
        {**line_fields(), "delay": 4, "time_scalar": 10},
        TRACES,
        texts=1,
        extra=1,
        tail=b"((SEG: Any)) 1".ljust(3200),
        header={
            3217: ("u2", 4001),
            3221: ("u2", 7),
            3269: ("u4", N_SAMPLES),
            3273: ("f8", 4000.0),
            3297: ("u4", 0x01020304),
            3501: ("u1", 2),
            3507: ("u4", 1),
            3513: ("u8", N_TRACES),
            3521: ("u8", 6800),
            3529: ("i4", 1),
        },
    ).read_bytes()
    SECTION, VOLUME = (
        write_segy(
            _folder / "model.sgy", columns(n), 1500.0 + TRACES, header={3217: ("u2", 5000)}
        ).read_bytes()
        for n in (1, 2)
    )

# Any numbers, and some with a meaning: feet, degrees, a few metres
shorts = st.integers(-(2**15), 2**15 - 1) | st.sampled_from([0, 1, -1, 2, 3, -10, 100, 32767])
longs = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, -1, 20, 500, 10**6, 2**31 - 1])
Options = tuple[str, ...]
# Options with which the good file is converted
FITTING: list[Options] = [
    (),
    ("--axes", "zyx"),
    ("--axes", "zx"),
    ("--line", "50,-20,350,380"),
    ("--dt", "0.001"),
    ("--keep", "time=0.012:0.1"),
    ("--keep", "shots=1:3"),
    ("--keep", "traces=4::2", "--keep", "offset=60:120.2"),
    ("--value", "coordinate_scalar=-100", "--datum", "100"),
    ("--value", "record=0"),
]
OPTIONS = st.sampled_from(
    [
        *FITTING,
        ("--bytes", "source_x=197:f4"),
        ("--endian", "little"),
        ("--model", "--spacing", "10"),
    ]
)
# Options with which good models are converted
FITTING_MODELS: list[Options] = [
    ("--model",),
    ("--model", "--spacing", "10", "--scale", "2"),
    ("--model", "--shape", "50,17,2", "--spacing", "5,20,10"),
    ("--model", "--shape", "50,34", "--spacing", "5", "--origin", "2.5,-100"),
]


WHOLE = {3217: 2, 3221: 2, 3225: 2, 3255: 2, 3269: 4, 3273: 8, 3297: 4, 3501: 1, 3502: 1}
WHOLE |= {3505: 2, 3507: 4, 3513: 8, 3521: 8, 3529: 4}


@st.composite
def damaged_headers(draw: st.DrawFn, good: bytes, first: int = 3600, last: int = 0) -> bytes:
    """Draw a good file with a few changed numbers in the headers of one or all traces.

    first, last: byte of the first trace, and number of bytes after the last.
    """
    content = bytearray(good)
    size = len(content) - first - last
    rows = np.frombuffer(content, np.uint8, size, first).reshape(N_TRACES, -1)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            at = draw(st.sampled_from([*WHOLE]) | st.integers(3201, 3599))
            width = WHOLE.get(at, 2)
            number = draw(shorts if width > 1 else st.integers(0, 3))
            if width == 8 and draw(st.booleans()):
                content[at - 1 : at + 7] = np.array(number / 7.0, ">f8").tobytes()
            else:
                content[at - 1 : at - 1 + width] = number.to_bytes(width, "big", signed=True)
            rows = np.frombuffer(content, np.uint8, size, first).reshape(N_TRACES, -1)
            continue
        at, kind = draw(st.sampled_from(list(PLACES.values())))
        number = draw(shorts if kind[1] == "2" else longs)
        harm = np.frombuffer(number.to_bytes(int(kind[1]), "big", signed=True), np.uint8)
        which = draw(
            st.sampled_from([slice(None), slice(0, 1), slice(-1, None), slice(0, None, 3)])
        )
        rows[which, at - 1 : at - 1 + len(harm)] = harm
    return bytes(content)


def check(content: bytes, options: Options, *, fits: bool = False) -> None:
    """Convert a file and check the result; fits: True if it must be converted."""
    with some_folder() as folder:
        path = folder / "line.sgy"
        path.write_bytes(content)
        end = call("convert", path, folder / "line.h5", "--quiet", *options)
        if end.code == 0:
            assert end.errors == ""
            compare = check_model if "--model" in options else check_gathers
            compare(folder / "line.h5", content, options)
        else:
            message_of(end)
            assert not fits, end.errors
            assert [file.name for file in folder.iterdir()] == ["line.sgy"]


@pytest.mark.parametrize("options", FITTING)
@pytest.mark.parametrize("content", [GOOD, NEWER], ids=["old", "new"])
def test_good_segy_file_is_converted(content, options):
    check(content, options, fits=True)


@pytest.mark.parametrize("options", FITTING_MODELS)
@pytest.mark.parametrize("content", [SECTION, VOLUME], ids=["section", "volume"])
def test_good_segy_model_is_converted(content, options):
    check(content, options, fits=True)


@given(damaged_headers(GOOD) | damaged_headers(NEWER, 6800, 3200), OPTIONS)
@tries(160)
def test_segy_file_with_wrong_headers_is_converted_or_refused(content, options):
    check(content, options)


@given(damaged_headers(SECTION) | damaged_headers(VOLUME), st.sampled_from(FITTING_MODELS))
@tries(30)
def test_segy_model_with_wrong_headers_is_converted_or_refused(content, options):
    check(content, options)


@given(damage.damaged_bytes(GOOD) | damage.flipped_bytes(GOOD), OPTIONS)
@tries(60)
def test_segy_file_with_wrong_bytes_is_converted_or_refused(content, options):
    check(content, options)


@given(st.sampled_from(list(DTYPES)), st.binary(min_size=0, max_size=3 * 440), OPTIONS)
@tries(40)
def test_segy_file_with_random_traces_is_converted_or_refused(code, body, options):
    with some_folder() as folder:
        head = write_segy(folder / "a.sgy", line_fields(), TRACES, code=code).read_bytes()[:3600]
    check(head + body, options)
