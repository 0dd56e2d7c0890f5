"""LoadGen's summary, as the referees read it."""

from benchmarks.referees import COMPLETED, P99, read_summary

SUMMARY = """\
================================================
MLPerf Results Summary
================================================
SUT name : PySUT
Scenario : Server
Completed samples per second    : 399.51
Result is : VALID
Completed samples per second    : 399.51

Min latency (ns)                : 6181032
99.00 percentile latency (ns)   : 41230011
99.90 percentile latency (ns)   : 48991244
"""


def test_a_summary_is_read_by_the_words_before_the_colon() -> None:
    said = read_summary(SUMMARY)
    assert (float(said[P99]), float(said[COMPLETED])) == (41_230_011, 399.51)
    assert said["Result is"] == "VALID"
    assert "MLPerf Results Summary" not in said
