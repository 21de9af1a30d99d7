"""`unified-clip compare` of training scripts with their ports: mistakes are named, and right ports have none.

The scripts of `tests/support/training` run unchanged. A port of `tests/data/ports` is a script with replaced passages.
"""

from __future__ import annotations

import pytest
from support.planted import pairs
from support.planted.pairs import Pair
from support.planted.recordings import TRAINING, Recordings

from unified_clip.recording.compare import RecordingComparison, compare
from unified_clip.recording.report import sentences

PAIRS = pairs.read()
RIGHT = [title for title, pair in PAIRS.items() if not pair.mistakes]
WRONG = [title for title, pair in PAIRS.items() if pair.named]
ROUNDING = {"rounding", "rounding noise", "rounding that has grown"}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return Recordings(tmp_path_factory.mktemp("training"), PAIRS.values())


def compared(recordings: Recordings, pair: Pair) -> RecordingComparison:
    return compare(recordings.file(pair.old), recordings.file(pair.new))


def test_ports_replace_passages_that_exist_and_their_mistakes_are_fields() -> None:
    for title, pair in PAIRS.items():
        for script in (pair.old, pair.new):
            compile(script.code(TRAINING), title, "exec")
        assert pair.old != pair.new, title
        assert {field for mistake in pair.mistakes for field in mistake.fields} <= pairs.fields().keys(), title


@pytest.mark.nightly
@pytest.mark.parametrize("title", RIGHT)
def test_a_right_port_differs_by_rounding_only(recordings: Recordings, title: str) -> None:
    comparison = compared(recordings, PAIRS[title])
    text = "\n".join(sentences.report_lines(comparison))
    assert {finding.kind for finding in comparison.findings} <= ROUNDING, text
    assert all(comparison.divergences.values()), text
    assert len(comparison.pairs) >= 6


@pytest.mark.nightly
@pytest.mark.parametrize("title", WRONG)
def test_a_wrong_port_is_named_at_the_first_differing_step(recordings: Recordings, title: str) -> None:
    pair = PAIRS[title]
    comparison = compared(recordings, pair)
    text = "\n".join(sentences.report_lines(comparison))
    assert pair.named is not None
    named = [
        divergence.step
        for divergence, causes in comparison.divergences.items()
        if pair.named.cause in {cause.kind for cause in causes}
    ]
    assert named[:1] == [pair.named.step], text
    causes = {finding.kind for finding in comparison.findings} - ROUNDING
    assert causes == {pair.named.cause}, text
