"""Tests of the file headers of every SEG-Y revision, and of the remedies in errors."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hpcfwi.convert.segy import find_layout, read_headers, read_traces
from hpcfwi.errors import InputError
from tests.convert.examples import N_SAMPLES, N_TRACES, line_fields, line_traces, rules, write_segy

PLAIN = rules()
REVISION_1, REVISION_2 = {3501: ("u1", 1)}, {3501: ("u1", 2)}
TRAILER = b"((SEG: Something)) 1".ljust(3200)
END = b"((SEG: EndText))".ljust(3200)


def check_read(path, headers=PLAIN):
    """Assert that a file has the traces and headers of the line; return its layout."""
    layout = find_layout(path, headers)
    assert layout.n_traces == N_TRACES
    np.testing.assert_array_equal(read_traces(layout, np.arange(N_TRACES)), line_traces())
    found = read_headers(layout, ["receiver_x"])["receiver_x"]
    np.testing.assert_array_equal(found, line_fields()["receiver_x"])
    return layout


def check_remedy(path, told):
    """Assert that a file is refused, and read it with the first option of the remedy."""
    with pytest.raises(InputError, match=told) as refused:
        find_layout(path, PLAIN)
    (option, *_) = re.findall(r"--value (\w+=[\d.]+)", refused.value.remedy)
    return check_read(path, rules(option))


def write_texts(path, blocks, header):
    """Write the line with blocks of text before its first trace."""
    content = write_segy(path, header=header).read_bytes()
    path.write_bytes(content[:3600] + b"".join(blocks) + content[3600:])
    return path


# The text headers


@pytest.mark.parametrize("number", [2, -1, 8224])
def test_number_of_text_headers_is_ignored_in_revision_0(number, tmp_path):
    check_read(write_segy(tmp_path / "a.sgy", header={3505: ("i2", number)}))


def test_text_headers_in_revision_0_are_refused_and_can_be_given(tmp_path):
    path = write_texts(tmp_path / "a.sgy", [TRAILER] * 2, {})
    check_remedy(
        path, r"3505-3506: found 0 additional text headers .*2 blocks of 3200 bytes of text"
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp037"])
@pytest.mark.parametrize("last", ["((SEG: EndText))", "((SEG:ENDTEXT)) "])
def test_variable_number_of_text_headers_ends_with_the_end_stanza(last, encoding, tmp_path):
    blocks = [text.ljust(3200).encode(encoding) for text in ("((SEG: Layout v1.0))", last)]
    path = write_texts(tmp_path / "a.sgy", blocks, {**REVISION_1, 3505: ("i2", -1)})
    assert check_read(path).first == 3600 + 2 * 3200


def test_text_headers_without_the_end_stanza_are_refused_with_a_remedy(tmp_path):
    header = {**REVISION_1, 3505: ("i2", -1)}
    check_remedy(
        write_texts(tmp_path / "a.sgy", [TRAILER] * 3, header), r"EndText.*not have.*texts=3"
    )
    check_remedy(write_segy(tmp_path / "b.sgy", header=header), r"--value texts=0")


@pytest.mark.parametrize("number", [1, 2, 30000, -7])
def test_missing_text_headers_are_refused_with_a_remedy(number, tmp_path):
    path = write_segy(tmp_path / "a.sgy", header={**REVISION_1, 3505: ("i2", number)})
    check_remedy(path, rf"3505-3506: found {number} additional text headers")


# The revision


def test_bytes_of_later_revisions_are_ignored_in_revision_1(tmp_path):
    blanks = dict.fromkeys((*range(3261, 3501), *range(3507, 3601)), ("u1", 32))
    assert check_read(write_segy(tmp_path / "a.sgy", header=REVISION_1 | blanks)).revision == 1


def test_blanks_in_the_revision_field_are_refused_with_a_remedy(tmp_path):
    blanks = dict.fromkeys(range(3261, 3601), ("u1", 32))
    path = write_segy(tmp_path / "a.sgy", header=blanks)
    check_remedy(path, r"bytes 3501-3502: found revision 32.32 of SEG-Y, expected 0 to 2.1")


@pytest.mark.parametrize("endian", ["<", ">"])
def test_revision_written_as_one_number_is_read(endian, tmp_path):
    path = write_segy(tmp_path / "a.sgy", endian=endian, header={3501: ("u2", 0x0100)})
    assert check_read(path).revision == 1


# Revision 2


@pytest.mark.parametrize("endian", ["<", ">"])
def test_extended_fields_of_revision_2_override_the_standard_ones(endian, tmp_path):
    header = {
        **REVISION_2,
        3217: ("u2", 7),
        3221: ("u2", 7),
        3269: ("u4", N_SAMPLES),
        3273: ("f8", 1333.25),
    }
    layout = check_read(write_segy(tmp_path / "a.sgy", endian=endian, header=header))
    assert (layout.n_samples, layout.interval) == (N_SAMPLES, 1333.25)


def test_byte_order_is_found_from_the_constant_of_revision_2(tmp_path):
    """The sample format is 0x0100, which is invalid, in one byte order, and 1 in the other."""
    path = write_segy(tmp_path / "a.sgy", endian="<", code=1, header=REVISION_2)
    content = bytearray(path.read_bytes())
    content[3296:3300] = b"\1\2\3\4"
    path.write_bytes(content)
    with pytest.raises(InputError, match="3225-3226: found 256"):
        find_layout(path, PLAIN)
    content[3296:3300] = b"\4\3\2\1"
    path.write_bytes(content)
    assert check_read(path).endian == "<"


@pytest.mark.parametrize(
    ("minor", "kind", "extra"), [(0, "u4", 1), (0, "u4", 3), (1, "i2", 1), (1, "i2", 2)]
)
def test_additional_trace_headers_are_skipped(minor, kind, extra, tmp_path):
    """Their number has four bytes in revision 2.0, and two bytes in 2.1."""
    header = {**REVISION_2, 3502: ("u1", minor), 3507: (kind, extra)}
    if minor:
        header[3509] = ("i2", 12)
    path = write_segy(tmp_path / "a.sgy", header=header, extra=extra)
    assert check_read(path).header == 240 * (1 + extra)


def test_undeclared_additional_trace_headers_can_be_given(tmp_path):
    path = write_segy(tmp_path / "a.sgy", header=REVISION_1, extra=1)
    check_read(path, rules("extra_headers=1"))


def test_missing_additional_trace_headers_are_refused_with_a_remedy(tmp_path):
    path = write_segy(tmp_path / "a.sgy", header={**REVISION_2, 3507: ("u4", 70000)})
    check_remedy(path, r"bytes 3507-3510: found 70000 additional headers.*extra_headers=0")


def test_first_trace_is_read_at_the_offset_of_revision_2(tmp_path):
    header = {**REVISION_2, 3521: ("u8", 3600 + 3200 + 512)}
    path = write_texts(tmp_path / "a.sgy", [TRAILER, bytes(512)], header)
    assert check_read(path).first == 7312


@pytest.mark.parametrize("offset", [1, 3600 + 440, 3600 + 3200, 2**40, 2**64 - 1])
def test_wrong_offset_of_the_first_trace_is_refused_with_a_remedy(offset, tmp_path):
    path = write_segy(tmp_path / "a.sgy", header={**REVISION_2, 3521: ("u8", offset)})
    check_remedy(path, rf"bytes 3521-3528: found byte {offset} .*--value texts=0")


@pytest.mark.parametrize(("told", "blocks"), [(1, 1), (3, 3), (-1, 2), (-1, 0)])
def test_text_trailers_of_revision_2_are_skipped(told, blocks, tmp_path):
    header = {**REVISION_2, 3529: ("i4", told)}
    check_read(write_segy(tmp_path / "a.sgy", header=header, tail=TRAILER * blocks))


@pytest.mark.parametrize("revision", [0, 1, 2])
@pytest.mark.parametrize("blocks", [1, 11])
def test_undeclared_text_trailers_are_refused_with_a_remedy(blocks, revision, tmp_path):
    """Eleven blocks have the length of 80 traces."""
    path = write_segy(tmp_path / "a.sgy", header={3501: ("u1", revision)}, tail=TRAILER * blocks)
    check_remedy(path, rf"{blocks} text trailers, and bytes 3529-3532 give 0.*traces={N_TRACES}")


def test_missing_text_trailers_are_refused_with_a_remedy(tmp_path):
    path = write_segy(tmp_path / "a.sgy", header={**REVISION_2, 3529: ("i4", 11)})
    check_remedy(path, r"0 text trailers, and bytes 3529-3532 give 11.*traces=34")


def test_wrong_number_of_traces_is_refused_with_a_remedy(tmp_path):
    path = write_segy(tmp_path / "a.sgy", header={**REVISION_2, 3513: ("u8", 30)})
    check_remedy(path, r"bytes 3513-3520 give 30 traces.*--value traces=34")


# What follows, and what is missing


@pytest.mark.parametrize("tail", [b"\0" * 512, b"x", b"\0" * 439, b"\1" * 1000])
def test_bytes_after_the_last_trace_are_refused_with_a_remedy(tail, tmp_path):
    check_remedy(
        write_segy(tmp_path / "a.sgy", tail=tail),
        r"it ends within trace 3[567].*--value traces=34 ",
    )


def test_whole_traces_of_a_truncated_file_can_be_read(tmp_path):
    path = write_segy(tmp_path / "a.sgy")
    path.write_bytes(path.read_bytes()[:-1])
    told = r"ends within trace 34: \d+ bytes follow .* if all traces are there, .*traces=33"
    with pytest.raises(InputError, match=told):
        find_layout(path, PLAIN)
    assert find_layout(path, rules("traces=33")).n_traces == 33
    with pytest.raises(InputError, match=r"--value traces: found 34, but .* has 33 whole traces"):
        find_layout(path, rules("traces=34"))


@pytest.mark.parametrize("samples", [0, 7, N_SAMPLES + 1])
def test_wrong_number_of_samples_is_refused_with_that_of_the_first_trace(samples, tmp_path):
    path = write_segy(tmp_path / "a.sgy", header={3221: ("u2", samples)})
    check_remedy(path, rf"bytes 3221-3222.*--value samples={N_SAMPLES}")


def test_text_headers_beyond_the_end_of_the_file_are_refused(tmp_path):
    path = write_segy(tmp_path / "a.sgy")
    with pytest.raises(InputError, match=r"it has 0 traces: 0 bytes follow from byte \d+ on"):
        find_layout(path, rules("texts=1e16"))


# Seismic Unix


@pytest.mark.parametrize("name", ["a.su", "a.SU", "a.sgy"])
@pytest.mark.parametrize("endian", ["<", ">"])
def test_seismic_unix_file_is_read_with_any_suffix(endian, name, tmp_path):
    path = write_segy(tmp_path / name, endian=endian)
    path.write_bytes(path.read_bytes()[3600:])
    layout = check_read(path)
    assert (layout.endian, layout.code, layout.interval) == (endian, 5, 0)


@pytest.mark.parametrize("endian", ["<", ">"])
def test_byte_order_is_found_from_the_interval_if_samples_are_ambiguous(endian, tmp_path):
    traces = line_traces(N_TRACES, 257)
    path = write_segy(tmp_path / "a.su", {**line_fields(), "samples": 257}, traces, endian=endian)
    path.write_bytes(path.read_bytes()[3600:])
    assert find_layout(path, PLAIN).endian == endian


@pytest.mark.parametrize("samples", [0, -60, -61])
def test_seismic_unix_file_without_samples_is_refused(samples, tmp_path):
    """With -60 samples, a trace and its header would have no bytes."""
    path = write_segy(tmp_path / "a.su", endian="<")
    path.write_bytes(path.read_bytes()[3600:])
    told = rf"a.su, --value samples: \d+ bytes are not .* traces of {samples} samples"
    with pytest.raises(InputError, match=told):
        find_layout(path, rules(f"samples={samples}"))


def test_truncated_seismic_unix_file_is_refused(tmp_path):
    path = write_segy(tmp_path / "a.su", endian="<")
    path.write_bytes(path.read_bytes()[3600:-1])
    told = r"a.su, bytes 115-116 \(samples\): 14959 bytes are not a whole number of traces"
    with pytest.raises(InputError, match=told):
        find_layout(path, PLAIN)


def test_segy_file_with_the_suffix_su_is_refused(tmp_path):
    path = write_segy(tmp_path / "a.su")
    with pytest.raises(InputError, match=r"change the suffix to .sgy"):
        find_layout(path, PLAIN)
    check_read(path.rename(tmp_path / "a.sgy"))
