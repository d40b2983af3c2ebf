"""What logs have got wrong in the field: CASES 24 to 27, with the lines that reports name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from endcast.datasets.read import Reading, convert, read
from endcast.datasets.report import Lines
from endcast.errors import InputError, TraceError, UnknownNameError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOON = '{{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [1]}}\n'
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str) -> Path:
        path = tmp_path / "log"
        path.write_text(text, newline="")
        return path

    return _write


def arrivals(reading: Reading) -> list[int]:
    return [int(arrival) for arrival in reading.trace.arrival_ns]


def test_mixed_time_formats_in_one_file_are_read_to_the_nanosecond(write: Write) -> None:
    path = write(
        AZURE
        + "2023-11-16 18:15:46.6805901,10,1\n"
        + "2023-11-16 18:15:47+00:00,10,2\n"
        + "2023-11-16T20:15:48.000000001+02:00,10,3\n"
        + "2023-11-16 18:15:49,10,4\n"
        + "2023-11-16 18:15:50.123456Z,10,5\n"
    )
    reading = read(path)
    base = 1_700_158_546
    expected = [680_590_100, 10**9, 2 * 10**9 + 1, 3 * 10**9, 4 * 10**9 + 123_456_000]
    assert arrivals(reading) == [base * 10**9 + rest for rest in expected]
    assert "clock: times without an offset are taken as UTC" in reading.report.notes
    assert "clock: some times have an offset from UTC and some have none" in reading.report.notes


def test_times_with_offsets_only_are_not_said_to_be_naive(write: Write) -> None:
    notes = read(write(AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n")).report.notes
    assert notes == ("clock: Unix epoch",)


@pytest.mark.parametrize(
    "numbers", ["-5,7", "5,-7", "999999999999,7", "5,100000001", "1e309,7", "5.5,7", "x,7", "true,7"]
)
def test_impossible_numbers_drop_the_row_with_its_line(write: Write, numbers: str) -> None:
    path = write(
        AZURE + "2023-11-16 18:15:46,1,1\n\n" + f"2023-11-16 18:15:47,{numbers}\n" + "2023-11-16 18:15:48,2,2\n"
    )
    report = read(path).report
    assert (report.rows_read, report.rows_kept) == (3, 2)
    assert [lines.first for lines in report.dropped.values()] == [(4,)]  # the blank line counts


def test_a_row_that_is_too_short_or_too_long_is_dropped(write: Write) -> None:
    path = write(AZURE + "2023-11-16 18:15:46,1\n2023-11-16 18:15:46,1,1\n2023-11-16 18:15:46,1,1,1\n")
    assert read(path).report.dropped == {"not 3 fields, as the header has": Lines(count=2, first=(2, 4))}


def test_whole_floats_and_padding_are_numbers(write: Write) -> None:
    trace = read(write(AZURE + "2023-11-16 18:15:46, 374.0 ,0044\n")).trace
    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (374, 44)


def test_quoted_line_breaks_do_not_shift_line_numbers(write: Write) -> None:
    path = write('output_tokens,prompt\n3,"two\nlines"\nx,"bad"\n5,"a ""quoted"" word"\n')
    reading = read(path)
    assert [lines.first for lines in reading.report.dropped.values()] == [(4,)]
    assert reading.trace.table.column("prompt").to_pylist() == ["two\nlines", 'a "quoted" word']
    assert reading.trace.table.column("request_id").to_pylist() == ["2", "5"]


def test_zero_tokens_are_failures_where_the_format_says_so(write: Write) -> None:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    reading = read(write(header + "1,m,5,0,5,API log\n2,m,5,6,11,API log\n"))
    assert reading.trace.end.tolist() == ["error", "stop"]
    assert reading.trace.output_tokens.tolist() == [0, 6]
    assert reading.report.repaired["zero output tokens: a failure, kept and censored at 0"].first == (2,)


def test_zero_tokens_without_any_evidence_are_dropped_and_counted(write: Write) -> None:
    report = read(write(AZURE + "2023-11-16 18:15:46,5,0\n2023-11-16 18:15:46,5,6\n")).report
    assert report.dropped == {"zero output tokens, and nothing tells why": Lines(count=1, first=(2,))}


def test_zero_tokens_go_by_the_records_own_words(write: Write) -> None:
    rows = "failed,0,\nstop,0,\nlength,4,abcd\n,0,text\n"
    reading = read(write("end,output_tokens,output\n" + rows))
    assert reading.trace.end.tolist() == ["error", "stop", "length"]
    assert reading.trace.output_tokens.tolist() == [0, 0, 4]
    assert reading.report.repaired["zero output tokens: an empty answer, kept"].first == (3,)
    assert reading.report.dropped["zero output tokens, yet there is an output text"].first == (5,)


def test_all_lengths_zero_is_refused(write: Write, tmp_path: Path) -> None:
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path = write(header + "1,m,5,0,5,API log\n2,m,5,0,11,API log\n")
    with pytest.raises(TraceError, match="no request of 2 has any output token"):
        convert(path, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_no_usable_row_is_refused_and_says_why(write: Write) -> None:
    with pytest.raises(TraceError, match=r"no usable request\. 1 lines: output_tokens is negative"):
        read(write(AZURE + "2023-11-16 18:15:46,5,-1\n"))
    with pytest.raises(TraceError, match="no usable request"):
        read(write(AZURE))


def test_a_mixture_of_clocks_is_refused_with_a_line_of_each(write: Write) -> None:
    path = write(MOON.format(5, 1, 1) + MOON.format(6, 1, 1) + MOON.format(1_700_000_000_000, 1, 1))
    with pytest.raises(TraceError, match=r"\(line 3 and line 1\)"):
        read(path)


def test_a_few_strays_on_another_clock_are_dropped(write: Write) -> None:
    rows = [MOON.format(1_700_000_000_000 + i, 1, i + 1) for i in range(200)]
    rows[100] = MOON.format(0, 1, 1)
    report = read(write("".join(rows))).report
    assert report.dropped == {
        "a time since the log's start, in a log of times since 1970": Lines(count=1, first=(101,))
    }
    assert "clock: Unix epoch" in report.notes


def test_rows_out_of_order_are_sorted_stably_and_counted(write: Write) -> None:
    reading = read(write("".join(MOON.format(t, 1, o) for t, o in [(5, 1), (3, 2), (5, 3), (4, 4), (3, 5)])))
    assert reading.trace.output_tokens.tolist() == [2, 5, 4, 1, 3]
    assert reading.report.repaired["out of order of arrival: sorted"] == Lines(count=3, first=(2, 4, 5))


def test_duplicates_go_where_the_clock_is_fine(write: Write) -> None:
    rows = "2023-11-16 18:15:46.6805901,5,6\n2023-11-16 18:15:46.7,5,6\n2023-11-16 18:15:46.6805901,5,6\n"
    reading = read(write(AZURE + rows))
    assert len(reading.trace) == 2
    assert reading.report.dropped == {"a duplicate of an earlier row": Lines(count=1, first=(4,))}


def test_equal_rows_of_a_coarse_clock_stay_and_are_counted(write: Write) -> None:
    reading = read(write(MOON.format(5, 1, 1) * 3))
    assert len(reading.trace) == 3
    reason = "equal to an earlier row, without an id or a fine clock to tell: kept"
    assert reading.report.repaired == {reason: Lines(count=2, first=(2, 3))}


def test_an_id_decides_over_duplicates(write: Write) -> None:
    reading = read(write("request_id,arrival_s,output_tokens\na,1,5\na,1,5\na,2,6\nb,1,5\n"))
    assert reading.trace.table.column("request_id").to_pylist() == ["a", "b", "a@4"]
    assert reading.report.dropped == {"a duplicate of an earlier row": Lines(count=1, first=(3,))}
    reason = "an id that another request has: the line number is added to it"
    assert reading.report.repaired[reason] == Lines(count=1, first=(4,))


def test_negative_and_unreadable_arrivals_are_dropped(write: Write) -> None:
    reading = read(write(MOON.format(-5, 1, 1) + MOON.format('"soon"', 1, 1) + MOON.format(5, 1, 1)))
    assert len(reading.trace) == 1
    assert {reason: lines.first for reason, lines in reading.report.dropped.items()} == {
        "the arrival is not a time that can be read": (2,),
        "the arrival is negative": (1,),
    }


def test_too_few_arrivals_are_left_out_altogether(write: Write) -> None:
    reading = read(write("arrival_s,output_tokens\n1,5\n,6\n2,7\n"))
    assert not reading.trace.has_arrivals
    assert reading.trace.output_tokens.tolist() == [5, 6, 7]
    assert any("1 of 3 rows tell no arrival" in note for note in reading.report.notes)


def test_caps_of_zero_minus_one_and_a_billion_are_no_caps(write: Write) -> None:
    reading = read(write("output_tokens,max_tokens\n5,0\n6,-1\n7,1000000000\n8,8\n9,x\n10,\n"))
    assert reading.trace.cap.tolist() == [-1, -1, -1, 8, -1, -1]
    assert reading.trace.end.tolist() == ["stop"] * 3 + ["length"] + ["stop"] * 2  # at its cap: cut, as it seems
    assert {lines.first for lines in reading.report.repaired.values()} == {(2, 3, 4), (6,)}


def test_a_finish_before_the_arrival_is_not_believed(write: Write) -> None:
    reading = read(write("arrival_s,finished_s,output_tokens\n5,4,1\n5,6,2\n"))
    assert reading.trace.finished_s.tolist() == pytest.approx([0.2 + 0.03, 1.0])


def test_an_unknown_end_reason_censors_and_is_named(write: Write) -> None:
    reading = read(write("end,output_tokens\nexploded,5\nstop,6\n"))
    assert reading.trace.is_event.tolist() == [False, True]
    assert any("'exploded'" in reason for reason in reading.report.repaired)


def test_truncated_last_json_line_is_dropped_and_counted(write: Write) -> None:
    report = read(write(MOON.format(5, 1, 1) + '{"timestamp": 6, "input_le')).report
    assert report.dropped == {"not valid JSON": Lines(count=1, first=(2,))}
    assert (report.rows_read, report.rows_kept) == (2, 1)


def test_wrong_arguments_name_what_is_wrong(write: Write) -> None:
    path = write(AZURE + "2023-11-16 18:15:46,5,6\n")
    with pytest.raises(UnknownNameError, match="canonical"):
        read(path, format="azzure")
    with pytest.raises(InputError, match="no column of the trace is called 'tokens'"):
        read(path, columns={"tokens": "ContextTokens"})
    with pytest.raises(InputError, match="azure format names its columns itself"):
        read(path, format="azure", columns={"prompt_tokens": "ContextTokens"})
    with pytest.raises(TraceError, match=r"no column 'Nope'; it has TIMESTAMP"):
        read(path, columns={"output_tokens": "Nope"})
    with pytest.raises(TraceError, match="lacks Timestamp, Model"):
        read(path, format="burstgpt")


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="is a folder without an outcome log"):
        read(tmp_path)
    odd = tmp_path / "odd.csv"
    odd.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match=r"no log of a known format; it has a, b\. Name the columns with --columns"):
        read(odd)
