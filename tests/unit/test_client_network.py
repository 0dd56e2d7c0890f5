"""A client's bandwidth, frame sizes and what it makes of answers, on numbers worked by hand."""

import numpy as np
import pytest

from fermata.clients.clock import time_left_ns
from fermata.clients.network.adaptation import Adaptation, original_boxes, shrink
from fermata.clients.network.bandwidth import BandwidthEstimator
from fermata.clients.network.emulated_link import BandwidthTrace, EmulatedLink
from fermata.clients.network.frame_bits import SIDES_MAX, FrameBits
from fermata.clients.network.frame_size import FrameSizer
from fermata.clients.network.uplink import Uplink
from fermata.clients.wire import open_inference_pb2 as pb
from fermata.clients.wire import parameters as names

MS = 1_000_000


def test_bandwidth_is_size_over_round_trip_less_distance() -> None:
    estimator = BandwidthEstimator()
    estimator.on_probe(4 * MS)
    estimator.on_probe(2 * MS)
    estimator.on_sent(0, 0, 100_000)
    estimator.on_acknowledged(12 * MS, 0)
    # 100 kbit in 12 - 2 ms.
    assert estimator.bandwidth_bps(12 * MS) == pytest.approx(10e6)


def test_frame_behind_another_is_timed_from_that_ones_arrival() -> None:
    estimator = BandwidthEstimator()
    estimator.on_sent(0, 0, 100_000)
    estimator.on_sent(0, 1, 100_000)
    estimator.on_acknowledged(10 * MS, 0)
    estimator.on_acknowledged(20 * MS, 1)
    assert estimator.bandwidth_bps(20 * MS) == pytest.approx(10e6)


def test_mean_is_harmonic_over_the_past_second() -> None:
    estimator = BandwidthEstimator()
    for index, took_ms in enumerate((50, 5, 10, 10)):
        sent_at_ns = index * 900 * MS
        estimator.on_sent(sent_at_ns, index, 100_000)
        estimator.on_acknowledged(sent_at_ns + took_ms * MS, index)
    # The last two, of 10 ms each, are within the second; the one of 5 ms is not.
    assert estimator.bandwidth_bps(2710 * MS) == pytest.approx(10e6)


def test_fall_shows_before_the_second_is_over() -> None:
    estimator = BandwidthEstimator()
    for index in range(10):
        took_ms = 5 if index < 8 else 10
        estimator.on_sent(index * 40 * MS, index, 100_000)
        estimator.on_acknowledged(index * 40 * MS + took_ms * MS, index)
    assert estimator.bandwidth_bps(370 * MS) == pytest.approx(10e6)


@pytest.mark.parametrize(("faster", "mbps"), [(1, 10 * 11 / 10.5), (2, 20), (5, 20)])
def test_rise_shows_before_the_second_is_over(faster: int, mbps: float) -> None:
    estimator = BandwidthEstimator()
    for index in range(10 + faster):
        took_ms = 10 if index < 10 else 5
        estimator.on_sent(index * 40 * MS, index, 100_000)
        estimator.on_acknowledged(index * 40 * MS + took_ms * MS, index)
    # One fast frame may be chance: it counts as one of the second.
    assert estimator.bandwidth_bps((index * 40 + 10) * MS) == pytest.approx(mbps * 1e6)


def test_noise_is_no_rise() -> None:
    estimator = BandwidthEstimator()
    took_ms = [10, 5, 10, 10, 8, 10, 6, 7]
    for index, each_ms in enumerate(took_ms):
        estimator.on_sent(index * 40 * MS, index, 100_000)
        estimator.on_acknowledged(index * 40 * MS + each_ms * MS, index)
    # The last two are fast, but one before was faster.
    assert estimator.bandwidth_bps(300 * MS) == pytest.approx(8 / sum(took_ms) * 1e8)


def test_frame_that_is_overdue_bounds_the_bandwidth() -> None:
    estimator = BandwidthEstimator()
    estimator.on_sent(0, 0, 100_000)
    estimator.on_acknowledged(5 * MS, 0)
    estimator.on_sent(40 * MS, 1, 100_000)
    assert estimator.bandwidth_bps(140 * MS) == pytest.approx(1e6)


def test_backlog_is_what_has_not_been_carried_yet() -> None:
    estimator = BandwidthEstimator()
    estimator.on_sent(0, 0, 100_000)
    assert estimator.backlog_bits(5 * MS, 10e6) == pytest.approx(50_000)
    assert estimator.backlog_bits(50 * MS, 10e6) == 0.0


def test_unknown_network_gets_the_smallest_size() -> None:
    sizer = FrameSizer((320, 128))
    sizer.on_advice(320, 50 * MS)
    assert sizer.choose(0.0, 0.0, 0) == 128


def test_size_is_as_asked_or_what_the_network_carries_in_time() -> None:
    sizer = FrameSizer((128, 256, 320, 416))
    for side, bits in ((128, 80_000), (256, 260_000), (320, 370_000), (416, 580_000)):
        sizer.bits.add(side, bits)
    sizer.on_advice(320, 40 * MS)
    assert sizer.choose(20e6, 0.0, 0) == 320
    # 40 ms at 7.5 Mbit/s carry 300 kbit.
    assert sizer.choose(7.5e6, 0.0, 0) == 256
    assert sizer.choose(7.5e6, 100_000, 0) == 128


def test_finer_quality_has_four_fifths_of_the_room() -> None:
    sizer = FrameSizer((128, 320), qualities=(40, 80))
    # 100 kbit at quality 80 are 58 at quality 40.
    sizer.on_encoded(320, 80, 100_000)
    assert sizer.bits.of(320) == pytest.approx(58_000)
    sizer.on_advice(320, 100 * MS)
    for bps, quality in ((1.3e6, 80), (1.2e6, 40), (0.6e6, 40)):
        assert sizer.choose(bps, 0.0, 0) == 320
        assert sizer.quality_of(320) == quality
    assert sizer.choose(0.5e6, 0.0, 0) == 128


def test_throughput_alone_ignores_how_long_a_frame_takes() -> None:
    sizer = FrameSizer((128, 256))
    sizer.bits.add(128, 80_000)
    sizer.bits.add(256, 260_000)
    sizer.asked = 256
    assert sizer.choose_for_throughput(7.5e6, 25) == 256
    assert sizer.choose_for_throughput(6e6, 25) == 128


def test_sides_that_came_long_ago_are_forgotten() -> None:
    bits = FrameBits()
    for side in range(1, 10 * SIDES_MAX):
        bits.add(side, 100.0)
        bits.add(1000, 7.0)
    assert len(bits.by_side) == SIDES_MAX
    assert (bits.of(1000), bits.of(10 * SIDES_MAX - 1)) == (7.0, 100.0)


def test_time_left_is_the_slo_less_the_network() -> None:
    assert time_left_ns(100 * MS, 100_000, 10e6, 2 * MS) == 88 * MS


def test_boxes_come_back_in_pixels_of_the_frame_as_it_was() -> None:
    frame = np.zeros((480, 640, 3), np.uint8)
    small, scale = shrink(frame, 160)
    assert small.shape == (120, 160, 3)
    boxes = np.array([[10.0, 20.0, 30.0, 40.0, 0.9]])
    assert original_boxes(boxes, scale)[0].tolist() == [40, 80, 120, 160, 0.9]
    assert boxes[0, 0] == 10.0


def test_small_frame_is_not_blown_up() -> None:
    frame = np.zeros((48, 64, 3), np.uint8)
    assert shrink(frame, 160) == (frame, 1.0)


def test_frame_at_the_server_is_not_on_the_network() -> None:
    """100 kbit take 10 ms, the server 80; nothing of the 80 may count."""
    estimator = BandwidthEstimator()
    for index in range(5):
        sent_at_ns = index * 100 * MS
        if index:
            # The frame before has been answered; at the end this one is still at the server.
            assert estimator.bandwidth_bps(sent_at_ns) == pytest.approx(10e6)
        estimator.on_sent(sent_at_ns, index, 100_000)
        if index:
            assert estimator.bandwidth_bps(sent_at_ns + 85 * MS) == pytest.approx(10e6)
        estimator.on_acknowledged(sent_at_ns + 90 * MS, index, 80 * MS)
    # Later than the network and the server have ever been: the network is to blame.
    estimator.on_sent(500 * MS, 9, 100_000)
    assert estimator.bandwidth_bps(680 * MS) == pytest.approx(1e6)


def test_clock_may_start_anywhere() -> None:
    estimator = BandwidthEstimator()
    estimator.on_sent(-500 * MS, 0, 100_000)
    estimator.on_acknowledged(-490 * MS, 0)
    assert estimator.bandwidth_bps(-490 * MS) == pytest.approx(10e6)


def word(**more: int) -> pb.ModelInferResponse:
    response = pb.ModelInferResponse()
    response.parameters[names.INPUT_SIZE].int64_param = 320
    response.parameters[names.NETWORK_US].int64_param = 50_000
    response.parameters[names.SERVED].bool_param = True
    for name, value in more.items():
        response.parameters[name].int64_param = value
    return response


def test_answer_acknowledges_the_frame_and_advises() -> None:
    adaptation = Adaptation(25.0, 100 * MS, (128, 320), 90)
    sized = adaptation.encode(0, np.zeros((320, 320, 3), np.uint8))
    assert sized.side == 128
    assert adaptation.send(0, 0, sized, 90 * MS) == 90 * MS
    assert adaptation.on_message(40 * MS, 0, word(server_us=30_000).parameters)
    # Of the 40 ms the server had the frame for 30.
    expected = 8 * len(sized.data) / 0.01
    assert adaptation.uplink.bandwidth_bps(40 * MS) == pytest.approx(expected)
    assert adaptation.uplink.sizer.asked == 320
    given = pb.ModelInferRequest().parameters
    adaptation.report(40 * MS, 320, given)
    assert given[names.BANDWIDTH].double_param == pytest.approx(expected)
    assert given[names.SLO_US].int64_param == 100_000
    assert given[names.ACKNOWLEDGE].bool_param


def test_word_that_the_frame_is_there_times_the_network_at_once() -> None:
    adaptation = Adaptation(25.0, 100 * MS, (128, 320), 90)
    sized = adaptation.encode(0, np.zeros((320, 320, 3), np.uint8))
    adaptation.send(0, 0, sized, 90 * MS)
    said = word()
    said.parameters[names.RECEIVED].bool_param = True
    assert not adaptation.on_message(10 * MS, 0, said.parameters)
    expected = 8 * len(sized.data) / 0.01
    # Its answer takes as long as it likes.
    assert adaptation.uplink.bandwidth_bps(90 * MS) == pytest.approx(expected)
    assert adaptation.on_message(95 * MS, 0, word(server_us=85_000).parameters)
    assert adaptation.uplink.bandwidth_bps(95 * MS) == pytest.approx(expected)
    assert adaptation.uplink.sizer.asked == 320


def test_server_has_what_the_network_leaves_both_ways() -> None:
    uplink = Uplink(25.0, 100 * MS, (128, 320))
    uplink.estimator.on_probe(4 * MS)
    assert uplink.send(0, 0, 100_000, 100 * MS) == 96 * MS
    uplink.on_received(14 * MS, 0)
    # 200 kbit at 10 Mbit/s take 20 ms, the way there and back 4.
    assert uplink.send(40 * MS, 1, 200_000, 100 * MS) == 76 * MS


def test_frame_that_would_come_too_late_stays_unless_it_must_find_out() -> None:
    uplink = Uplink(25.0, 100 * MS, (128, 320))
    uplink.send(0, 0, 100_000, 100 * MS)
    assert uplink.send(0, 1, 100_000, 0) == 0
    # The link stood still for a second: 0.1 Mbit/s.
    uplink.on_received(1000 * MS, 0)
    assert uplink.send(1000 * MS, 2, 100_000, 100 * MS) == 100 * MS
    assert uplink.send(1040 * MS, 3, 100_000, 100 * MS) == 0
    # That one frame has found the link well again.
    uplink.on_received(1050 * MS, 2)
    uplink.send(1080 * MS, 4, 100_000, 100 * MS)
    uplink.on_received(1090 * MS, 4)
    uplink.send(2080 * MS, 5, 100_000, 100 * MS)
    uplink.on_received(2090 * MS, 5)
    assert uplink.send(2120 * MS, 6, 100_000, 100 * MS) == 90 * MS


def test_client_that_nobody_advises_goes_by_its_network() -> None:
    uplink = Uplink(25.0, 100 * MS, (128, 320))
    for index in range(9):
        at_ns = index * 40 * MS
        assert uplink.choose_side(at_ns) == (320 if index == 8 else 128)
        uplink.on_encoded(128, 80_000)
        uplink.send(at_ns, index, 80_000, 100 * MS)
        uplink.on_received(at_ns + 4 * MS, index)
        uplink.on_answer(at_ns + 30 * MS, index, 26 * MS)
    # 370 kbit at 5 Mbit/s take longer than half of the SLO.
    uplink.on_encoded(320, 370_000)
    for index in (9, 10):
        uplink.send(index * 80 * MS, index, 370_000, 100 * MS)
        uplink.on_received((index * 80 + 74) * MS, index)
    assert uplink.choose_side(880 * MS) == 128


def test_advice_counts_whenever_it_comes() -> None:
    uplink = Uplink(25.0, 100 * MS, (128, 224, 320))
    uplink.on_advice(224, 50 * MS, served=True)
    for index in range(9):
        uplink.on_answer(index * MS, index, 0)
    assert uplink.sizer.asked == 224


def known_uplink(fps: float, mbps: float) -> Uplink:
    """It was asked for 320 pixels within 90 ms; its last frame has told the bandwidth."""
    uplink = Uplink(fps, 150 * MS, (128, 256, 320))
    for side, bits in ((128, 80_000), (256, 260_000), (320, 370_000)):
        uplink.on_encoded(side, bits)
    uplink.on_advice(320, 90 * MS, served=True)
    uplink.send(0, 0, 100_000, 150 * MS)
    uplink.on_received(int(100 / mbps * MS), 0)
    return uplink


def test_after_an_overdue_frame_the_next_counts_on_half_of_what_is_left() -> None:
    uplink = known_uplink(fps=10, mbps=10)
    uplink.send(100 * MS, 1, 370_000, 150 * MS)
    assert uplink.choose_side(137 * MS) == 320
    # It has taken 100 ms: 3.7 Mbit/s at most, which would carry 260 kbit in time. Nobody knows how
    # much less it is.
    assert uplink.choose_side(200 * MS) == 128
    # Once it is there, both frames tell: 5.4 Mbit/s carry 486 kbit in time.
    uplink.on_received(200 * MS, 1)
    assert uplink.choose_side(201 * MS) == 320


def test_no_frame_is_longer_on_its_way_than_the_next_takes_to_come() -> None:
    # At 8 Mbit/s, 370 kbit take 46 ms.
    assert known_uplink(fps=20, mbps=8).choose_side(40 * MS) == 320
    assert known_uplink(fps=25, mbps=8).choose_side(40 * MS) == 256


def carried(uplink: Uplink, mbps: float, frames: int) -> tuple[list[bool], list[int]]:
    """Which of so many frames of 80 kbit were sent over a link of this bandwidth, and how long
    those were on their way."""
    link = EmulatedLink(BandwidthTrace((mbps * 1e6,), 1000 * MS))
    agenda: list[tuple[int, int]] = []
    sent, took_ns = [], []
    for index in range(frames):
        now_ns = int(index * 1000 * MS / uplink.fps)
        while agenda and agenda[0][0] <= now_ns:
            at_ns, frame = agenda.pop(0)
            uplink.on_received(at_ns, frame)
        assert uplink.choose_side(now_ns) == 128
        uplink.on_encoded(128, 80_000)
        sent.append(uplink.send(now_ns, index, 80_000, 300 * MS) > 0)
        if sent[-1]:
            agenda.append((link.carry(now_ns, 80_000), index))
            took_ns.append(agenda[-1][0] - now_ns)
    for at_ns, frame in agenda:
        uplink.on_received(at_ns, frame)
    return sent, took_ns


@pytest.mark.parametrize(("mbps", "least"), [(1.0, 0.72), (0.7, 0.5), (0.5, 0.35)])
def test_camera_thins_its_frames_evenly_where_no_size_fits(mbps: float, least: float) -> None:
    uplink = Uplink(15.0, 300 * MS, (128, 320))
    uplink.on_advice(128, 250 * MS, served=True)
    sent, took_ns = carried(uplink, mbps, 150)
    # So many of the 15 frames a second are carried, at most: mbps / 0.08.
    assert least <= sum(sent) / len(sent) <= mbps / 0.08 / 15
    # None waits for more than one other, and gaps differ by one frame at most.
    assert max(took_ns[10:]) <= 2 * 80 * MS / mbps
    gaps = [len(gap) for gap in "".join("1" if each else "0" for each in sent[15:]).split("1")]
    assert max(gaps[1:-1]) - min(gaps[1:-1]) <= 1
    # The server hears of the rate that it is to plan for.
    assert uplink.rate(10_000 * MS) == pytest.approx(0.9 * mbps / 0.08, rel=0.02)


def test_camera_whose_network_carries_all_of_its_frames_thins_none() -> None:
    uplink = Uplink(15.0, 300 * MS, (128, 320))
    uplink.on_advice(128, 250 * MS, served=True)
    sent, _ = carried(uplink, 1.4, 60)
    assert all(sent)
    assert uplink.rate(4000 * MS) == 15.0
