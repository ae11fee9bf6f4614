"""The pure parts of measuring a real server: what its bytes and its metrics say, and what flat is."""

from __future__ import annotations

import pytest

from benchmarks.live.browser import EventStream, ResponseError, last_event
from benchmarks.live.prometheus import Histogram, samples
from benchmarks.live.trend import Trend, slope

METRICS = """\
# HELP waiting_seconds How long.
# TYPE waiting_seconds histogram
waiting_seconds_bucket{le="0.1"} 5.0
waiting_seconds_bucket{le="0.2"} 15.0
waiting_seconds_bucket{le="+Inf"} 20.0
waiting_seconds_count 20.0
waiting_seconds_sum 3.0
tokens_total 1.2e+06
finished_total{finished_reason="stop"} 7.0
"""


def test_metrics_are_read_with_their_labels() -> None:
    found = samples(METRICS)
    assert found["tokens_total"] == 1_200_000
    assert found['finished_total{finished_reason="stop"}'] == 7
    assert Histogram.of("waiting_seconds", found).count == 20


def test_a_quantile_lies_within_its_bucket() -> None:
    histogram = Histogram((0.1, 0.2, float("inf")), (5, 15, 20))
    assert histogram.quantile(0.25) == pytest.approx(0.1)
    assert histogram.quantile(0.5) == pytest.approx(0.15)
    assert histogram.quantile(0.99) == 0.2  # above all bounds nothing more is known
    since = histogram.since(Histogram((0.1, 0.2, float("inf")), (5, 5, 5)))
    assert since.cumulative == (0, 10, 15)
    assert since.quantile(0.1) == pytest.approx(0.115)
    with pytest.raises(ValueError, match="nothing"):
        histogram.since(histogram).quantile(0.5)


def test_a_slope_ignores_single_jumps() -> None:
    times = [float(at) for at in range(20)]
    values = [100 + 2 * at for at in times]
    assert slope(times, values) == pytest.approx(2)
    values[7] = values[13] = 10_000
    assert slope(times, values) == pytest.approx(2)
    with pytest.raises(ValueError, match="two different times"):
        slope([1.0, 1.0], [1, 2])


def test_only_the_second_half_must_be_flat() -> None:
    times = [float(at) for at in range(101)]
    filling = [min(500.0, 100 + 10 * at) for at in times]
    assert Trend.of(times, filling, share=0.02, least=0).is_flat
    leaking = [500 + 0.5 * at for at in times]
    trend = Trend.of(times, leaking, share=0.02, least=0)
    assert not trend.is_flat
    assert trend.per_hour == pytest.approx(1800)
    assert trend.grown == pytest.approx(25)
    assert Trend.of(times, leaking, share=0, least=25.1).is_flat


def test_the_end_of_a_reply_is_found_whatever_the_chunks() -> None:
    events = b'event: text\ndata: {"turn_id":"t","text":"hi","offset":2}\nid: t:2\n\n'
    end = b'event: end\ndata: {"turn_id":"t","status":"complete"}\nid: t:2\n\n'
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (events, events + end)) + b"0\r\n\r\n"
    found = last_event(answer + chunks)
    assert (found["status"], found["text_events"]) == ("complete", 2)
    with pytest.raises(ResponseError, match="before the reply did"):
        last_event(answer + events)
    with pytest.raises(ResponseError, match="401"):
        last_event(b"HTTP/1.1 401 Unauthorized\r\n\r\n{}")


@pytest.mark.parametrize("size", [1, 7, 10_000], ids=lambda size: f"{size} bytes at a time")
async def test_one_stream_tells_of_one_reply_after_the_other(size: int) -> None:
    def chunk(name: str, data: str) -> bytes:
        event = f"event: {name}\ndata: {data}\nid: t:2\n\n".encode()
        return b"%x\r\n%s\r\n" % (len(event), event)

    stream = EventStream("mine")
    replies = []
    for status, head in (("complete", b"HTTP/1.1 200 OK\r\n\r\n"), ("stopped", b"8\r\n: ping\n\n\r\n")):
        reply = stream.expect()
        replies.append(reply)
        told = head + chunk("text", '{"text":"hi"}') + chunk("end", f'{{"status":"{status}"}}')
        assert reply.first_text is None
        for at in range(0, len(told), size):
            assert not reply._ended.done()
            stream.data_received(told[at : at + size])
        assert reply.first_text is not None
        stream.data_received(b"8\r\n: ping\n\n\r\n")  # nobody waits for anything
    assert [(await reply.end())["status"] for reply in replies] == ["complete", "stopped"]
    broken = stream.expect()
    stream.connection_lost(None)
    assert not stream.is_open
    with pytest.raises(ResponseError, match="before the reply did"):
        await broken.end()
    refused = EventStream("yours").expect()
    assert refused.feed(b'HTTP/1.1 401 Unauthorized\r\n\r\n{"error": {}}')
    with pytest.raises(ResponseError, match="401"):
        await refused.end()
