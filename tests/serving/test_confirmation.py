"""Which version made each token: chunk by chunk, across publishes, with chunks lost, doubled and swapped."""

import random

import pytest

from asyncrl.errors import ServerError
from asyncrl.model.column_bytes import KEPT_SETS, ROUTES, pack_kept_set
from asyncrl.records import Segment
from asyncrl.serving.confirmation import Confirmation
from asyncrl.serving.sglang.columns import KeptSets, Routes
from asyncrl.serving.sglang.messages import Chunk, Span, StreamEnd


def chunk(tokens: list[int], spans: list[Span] | None, *, end: StreamEnd | None = None) -> Chunk:
    return Chunk("r1", tokens, [-0.5] * len(tokens), spans, end)


def test_tokens_are_confirmed_by_spans_alone() -> None:
    confirmation = Confirmation(salt_version=3)
    assert confirmation.feed(chunk([5, 6], None)) == []
    assert confirmation.pending_tokens == [5, 6]
    segments = confirmation.feed(chunk([7], [Span(3, 0, 3)], end=StreamEnd.STOP))
    assert segments == [Segment(3, [5, 6, 7], [-0.5] * 3)]
    assert confirmation.pending_tokens == []


def test_a_publish_in_the_middle_splits_segments_and_tags_the_continued_one() -> None:
    confirmation = Confirmation(salt_version=3)
    assert confirmation.feed(chunk([5, 6], [Span(3, 0, 2)])) == [Segment(3, [5, 6], [-0.5] * 2)]
    segments = confirmation.feed(chunk([7, 8, 9], [Span(3, 0, 3), Span(4, 3, 5)]))
    assert segments == [Segment(3, [7], [-0.5]), Segment(4, [8, 9], [-0.5] * 2, is_continued_in_place=True)]


def test_a_request_that_was_queued_over_a_publish_is_tagged() -> None:
    # Salted with version 3 and served by 4: what the cache has of its prompt is version 3's.
    assert Confirmation(salt_version=3).feed(chunk([5], [Span(4, 0, 1)]))[0].is_continued_in_place
    assert not Confirmation(salt_version=4).feed(chunk([5], [Span(4, 0, 1)]))[0].is_continued_in_place


def test_a_prompt_that_was_computed_before_and_after_a_publish_is_tagged() -> None:
    straddling = Confirmation(salt_version=3)
    assert straddling.feed(chunk([], [Span(3, 0, 0)])) == []
    spans = [Span(3, 0, 0), Span(4, 0, 2)]
    assert straddling.feed(chunk([5, 6], spans)) == [
        Segment(4, [5, 6], [-0.5] * 2, is_continued_in_place=True)
    ]


def test_spans_that_leave_tokens_open_are_an_error() -> None:
    with pytest.raises(ServerError, match="open"):
        Confirmation(salt_version=3).feed(chunk([5, 6], [Span(3, 0, 1)]))
    with pytest.raises(ServerError, match="open"):
        Confirmation(salt_version=3).feed(chunk([5, 6], [Span(3, 1, 2)]))


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        # The second of three chunks was lost.
        ([([5, 6], 2), ([9], 5)], "3 tokens arrived, the server sent 5"),
        # The first came twice.
        ([([5, 6], 2), ([5, 6], 2)], "4 tokens arrived, the server sent 2"),
        # The second came first.
        ([([7, 8], 4), ([5, 6], 2)], "2 tokens arrived, the server sent 4"),
    ],
)
def test_a_chunk_that_is_missing_doubled_or_out_of_place_is_refused(
    chunks: list[tuple[list[int], int]], said: str
) -> None:
    confirmation = Confirmation(3)
    with pytest.raises(ServerError, match=said):
        for tokens, num_tokens_so_far in chunks:
            confirmation.feed(
                Chunk("r1", tokens, [-0.5] * len(tokens), None, None, num_tokens_so_far=num_tokens_so_far)
            )


def test_after_a_retraction_nothing_stands_on_an_older_cache() -> None:
    spans = [Span(3, 0, 2), Span(4, 2, 4)]
    (first, second) = Confirmation(3, is_cache_recomputed=True).feed(chunk([5, 6, 7, 8], spans))
    assert [(s.version, s.is_continued_in_place) for s in (first, second)] == [(3, False), (4, False)]
    (_, in_place) = Confirmation(3).feed(chunk([5, 6, 7, 8], spans))
    assert in_place.is_continued_in_place


def spoken(tokens: list[int], versions: list[int], cuts: list[int], *, confirms: bool) -> list[Chunk]:
    """The chunks of a response whose tokens these versions made, cut at `cuts`; without `confirms` the last
    one alone has spans."""
    chunks, ends = [], [*cuts, len(tokens)]
    for begin, end in zip([0, *cuts], ends, strict=True):
        spans: list[Span] = []
        for place, version in enumerate(versions[:end]):
            if spans and spans[-1].version == version:
                spans[-1] = Span(version, spans[-1].start, place + 1)
            else:
                spans.append(Span(version, place, place + 1))
        has_spans = confirms or end == len(tokens)
        logprobs = [-0.01 * token for token in tokens[begin:end]]
        chunks.append(Chunk("r1", tokens[begin:end], logprobs, spans if has_spans else None, None, end))
    return chunks


@pytest.mark.parametrize("confirms", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_the_short_way_of_plain_chunks_confirms_the_same_segments(
    seed: int, confirms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    tokens = list(range(source.randrange(1, 40)))
    versions = sorted(source.choices(range(3, 6), k=len(tokens)))
    cuts = sorted(source.sample(range(1, len(tokens)), k=min(5, len(tokens) - 1)))

    def confirmed() -> list[list[Segment]]:
        one = Confirmation(salt_version=3 + seed % 2)
        return [one.feed(each) for each in spoken(tokens, versions, cuts, confirms=confirms)]

    quick = confirmed()
    monkeypatch.setattr(Confirmation, "_is_one_segment", lambda *_: False)
    assert quick == confirmed()
    assert [token for segments in quick for segment in segments for token in segment.tokens] == tokens


def test_segments_are_cut_within_the_version_that_sampled_the_last_token() -> None:
    segments = [Segment(0, [5, 6], [-0.5, -0.6]), Segment(1, [7, 8], [-0.7, -0.8], True)]
    plain = Confirmation(0)
    assert plain.cut(segments, 3) == [segments[0], Segment(1, [7], [-0.7], True)]
    assert plain.cut(segments, 2) == segments[:1]
    assert plain.cut(segments, 4) == segments
    assert plain.cut(segments, 0) == []


def test_columns_are_cut_with_their_tokens() -> None:
    packed = [bytearray(pack_kept_set(token, [token, 300])) for token in (5, 6, 7)]
    told = {KEPT_SETS: packed[0] + packed[1], ROUTES: bytearray(b"abcd")}
    later = {KEPT_SETS: packed[2], ROUTES: bytearray(b"ef")}
    segments = [
        Segment(0, [5, 6], [-0.1, -0.2], columns=told, context={ROUTES: b"xy"}),
        Segment(1, [7], [-0.3], columns=later),
    ]
    confirmation = Confirmation(0, columns=(KeptSets(), Routes(2)))
    first = {KEPT_SETS: packed[0], ROUTES: bytearray(b"ab")}
    assert confirmation.cut(segments, 1) == [Segment(0, [5], [-0.1], columns=first, context={ROUTES: b"xy"})]
    assert confirmation.cut(segments, 3) == segments
