"""Whatever is in a SEG-Y file, it is converted, or refused with one message and nothing written."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.convert.examples import DTYPES, PLACES, line_fields, line_traces, write_segy
from tests.fuzz import damage
from tests.fuzz.commands import call, message_of
from tests.fuzz.test_inputs import some_folder, tries

with some_folder() as _folder:
    GOOD = write_segy(_folder / "good.sgy").read_bytes()
    TRACES = line_traces()
    N_TRACES = len(TRACES)

shorts = st.integers(-(2**15), 2**15 - 1) | st.sampled_from([0, 1, -1, -10, 100, 32767])
longs = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([0, 1, -1, 10**6, 2**31 - 1])
OPTIONS = st.sampled_from(
    [
        (),
        ("--axes", "zyx"),
        ("--axes", "zx"),
        ("--dt", "0.001"),
        ("--keep", "time=0.01:0.1"),
        ("--keep", "shots=1:3"),
        ("--value", "coordinate_scalar=-100"),
        ("--value", "record=0"),
        ("--bytes", "source_x=197:f4"),
        ("--endian", "little"),
        ("--model", "--spacing", "10"),
    ]
)


@st.composite
def damaged_headers(draw: st.DrawFn) -> bytes:
    """A good file, of which a few numbers of the headers are others, in one trace or in all."""
    content = bytearray(GOOD)
    rows = np.frombuffer(content, np.uint8, -1, 3600).reshape(N_TRACES, -1)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            at = draw(
                st.sampled_from([3217, 3221, 3225, 3255, 3269, 3501, 3505])
                | st.integers(3201, 3599)
            )
            content[at - 1 : at + 1] = draw(shorts).to_bytes(2, "big", signed=True)
            rows = np.frombuffer(content, np.uint8, -1, 3600).reshape(N_TRACES, -1)
            continue
        at, kind = draw(st.sampled_from(list(PLACES.values())))
        number = draw(shorts if kind[1] == "2" else longs)
        harm = np.frombuffer(number.to_bytes(int(kind[1]), "big", signed=True), np.uint8)
        which = draw(
            st.sampled_from([slice(None), slice(0, 1), slice(-1, None), slice(0, None, 3)])
        )
        rows[which, at - 1 : at - 1 + len(harm)] = harm
    return bytes(content)


def check(content: bytes, options: tuple[str, ...]) -> None:
    with some_folder() as folder:
        path = folder / "line.sgy"
        path.write_bytes(content)
        end = call("convert", path, folder / "line.h5", "--quiet", *options)
        if end.code == 0:
            assert end.errors == ""
            check_readable(folder / "line.h5")
        else:
            message_of(end)
            assert [file.name for file in folder.iterdir()] == ["line.sgy"]


def check_readable(path: Path) -> None:
    """What was written is a good file: positions are finite, and traces are there."""
    with h5py.File(path) as file:
        for name in ("sources", "receivers"):
            if name in file:
                assert np.isfinite(file[name][...]).all()
        if "mask" in file:
            assert file["mask"][...].any(axis=1).all()


@given(damaged_headers(), OPTIONS)
@tries(150)
def test_a_segy_file_of_wrong_headers(content, options):
    check(content, options)


@given(damage.damaged_bytes(GOOD) | damage.flipped_bytes(GOOD), OPTIONS)
@tries(60)
def test_a_segy_file_of_wrong_bytes(content, options):
    check(content, options)


@given(st.sampled_from(list(DTYPES)), st.binary(min_size=0, max_size=3 * 440), OPTIONS)
@tries(40)
def test_a_segy_file_of_any_traces(code, body, options):
    with some_folder() as folder:
        head = write_segy(folder / "a.sgy", line_fields(), TRACES, code=code).read_bytes()[:3600]
    check(head + body, options)
