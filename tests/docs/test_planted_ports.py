"""`unified-clip compare` of training scripts with their ports: mistakes are named, and right ports have none.

The scripts of `tests/support/training` run unchanged. A port of `tests/data/ports` is a script with replaced passages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from support.planted import pairs
from support.planted.pairs import Mistake, Pair
from support.planted.recordings import TRAINING, Recordings, losses
from support.planted.scoreboard import ROUNDING, VERDICTS, judge, score

from unified_clip.compare.recordings import RecordingComparison, compare
from unified_clip.compare.report import sentences

PAIRS = pairs.read()
KNOWN = pairs.verdicts()
RIGHT = [title for title, pair in PAIRS.items() if not pair.mistakes and title not in KNOWN]
WRONG = [title for title, pair in PAIRS.items() if pair.named]
Compared = Callable[[Pair], RecordingComparison]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return Recordings(tmp_path_factory.mktemp("training"), PAIRS.values())


@pytest.fixture(scope="module")
def compared(recordings: Recordings) -> Compared:
    return cache(lambda pair: compare(recordings.file(pair.old), recordings.file(pair.new)))


def test_ports_replace_passages_that_exist_and_their_mistakes_are_fields() -> None:
    for title, pair in PAIRS.items():
        for script in (pair.old, pair.new):
            compile(script.code(TRAINING), title, "exec")
        assert pair.old != pair.new, title
        assert {field for mistake in pair.mistakes for field in mistake.fields} <= pairs.fields().keys(), title

    assert KNOWN.keys() <= PAIRS.keys()
    assert {*KNOWN.values()} < {*VERDICTS}


@pytest.mark.parametrize(
    ("named", "same", "verdict"),
    [
        ([["betas"], ["threshold"]], False, "right"),
        ([["betas", "momentum"], ["threshold", "betas"]], False, "right"),
        ([["threshold"]], False, "partly"),
        ([["threshold"], ["threshold"]], False, "partly"),
        ([["threshold"], ["weights"]], False, "WRONG"),
        ([], False, "unknown"),
        ([], True, "WRONG"),
    ],
)
def test_a_verdict_on_two_mistakes(named: Sequence[Sequence[str]], same: bool, verdict: str) -> None:
    mistakes = [Mistake(("betas",), 0.9, 0.5), Mistake(("threshold", "clip rule"), 1.0, 2.0)]
    assert judge(mistakes, named, same=same) == verdict


@pytest.mark.parametrize(
    ("named", "same", "verdict"), [([], True, "right"), ([], False, "unknown"), ([["threshold"]], True, "WRONG")]
)
def test_a_verdict_on_a_right_port(named: Sequence[Sequence[str]], same: bool, verdict: str) -> None:
    assert judge([], named, same=same) == verdict


@pytest.mark.nightly
@pytest.mark.parametrize("title", PAIRS)
def test_mistakes_and_only_mistakes_change_the_losses(recordings: Recordings, title: str) -> None:
    pair = PAIRS[title]
    old, new = (losses(recordings.file(script)) for script in (pair.old, pair.new))
    if len(old) != len(new):  # for example, accumulated gradients have more losses
        assert pair.old.name != pair.new.name
        return
    equal = np.allclose(old, new, rtol=2e-5, atol=1e-7)
    assert equal == all("eps of the clip" in mistake.fields for mistake in pair.mistakes)  # whose effect is tiny


@pytest.mark.nightly
@pytest.mark.parametrize("title", PAIRS)
def test_the_verdict_is_right_or_known(recordings: Recordings, title: str) -> None:
    pair = PAIRS[title]
    judged = score(pair, recordings.file(pair.old), recordings.file(pair.new))
    assert judged.verdict == KNOWN.get(title, "right"), "\n".join((judged.headline, *judged.texts))


@pytest.mark.nightly
@pytest.mark.parametrize("title", RIGHT)
def test_a_right_port_differs_by_rounding_only(compared: Compared, title: str) -> None:
    comparison = compared(PAIRS[title])
    text = "\n".join(sentences.report_lines(comparison))
    assert {finding.kind for finding in comparison.findings} <= ROUNDING, text
    assert comparison.recipes.steps >= 6


@pytest.mark.nightly
@pytest.mark.parametrize("title", WRONG)
def test_a_wrong_port_is_named_at_the_first_differing_step(compared: Compared, title: str) -> None:
    pair = PAIRS[title]
    comparison = compared(pair)
    text = "\n".join(sentences.report_lines(comparison))
    assert pair.named is not None
    named = [finding.step for finding in comparison.findings if finding.kind == pair.named.cause]
    assert named[:1] == [pair.named.step], text
    causes = {finding.kind for finding in comparison.findings} - ROUNDING
    assert len(causes) <= max(1, len(pair.mistakes)) or pair.named.cause == "weight decay before the clip", text
