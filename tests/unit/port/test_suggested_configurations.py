"""A flagged clip whose steps are in another file gets the lines of a clip configuration with the same meaning."""

from __future__ import annotations

import pytest
from support.port.snippets import PADDLE, ported, with_lines

from unified_clip.port.ported_clip import Target

GLOBAL = with_lines(PADDLE, ("ByNorm(1.0)", "ByGlobalNorm(max_norm)"))

CONFIG = 'unified_clip.ClipConfig(rule="global_norm", threshold=max_norm, family="paddle")'

ATTACH = f"{CONFIG}.attach_to({{}})  # once, before the first step"

BY_GROUP = [
    "import unified_clip",
    f"clip = {CONFIG}",
    "clip.attach_to({})  # call once, before the first step, if the optimizer has one parameter group",
    "# Paddle clips each group separately. For several groups, write this loop before every step instead:",
    "# for group in {}.param_groups:",
    '#     clip.clip_(group["params"])',
]


@pytest.mark.parametrize(
    ("change", "optimizer"),
    [
        (("optimizer.step()", "run(optimizer)"), "optimizer"),
        (("        optimizer.step()\n", "    return optimizer\n"), "optimizer"),
        (("        optimizer.step()", "        pass"), "optimizer"),
        (("optimizer = paddle.optimizer.SGD", "return paddle.optimizer.SGD"), "optimizer"),
        (("optimizer = paddle.optimizer.SGD", "self.opt = make_optimizer"), "self.opt"),
    ],
)
def test_a_configuration_is_suggested_for_an_optimizer_whose_steps_are_elsewhere(
    change: tuple[str, str], optimizer: str
) -> None:
    source = with_lines(GLOBAL, change)
    text, (site,) = ported(source)
    assert text == source
    assert site.suggestion == ["import unified_clip", ATTACH.format(optimizer)]
    grouped = with_lines(source, ("parameters=model.parameters()", "parameters=[{'params': a}]"))
    assert ported(grouped)[1][0].suggestion == [line.format(optimizer) for line in BY_GROUP]
    unknown = with_lines(source, ("parameters=model.parameters(), ", ""))
    assert ported(unknown)[1][0].suggestion == [line.format(optimizer) for line in BY_GROUP]
    per_tensor = with_lines(grouped, ("ByGlobalNorm", "ByNorm"))
    expected = ATTACH.format(optimizer).replace("global_norm", "norm")
    assert ported(per_tensor)[1][0].suggestion == ["import unified_clip", expected]
    optional = with_lines(source, ("ByGlobalNorm(max_norm)", "ByGlobalNorm(max_norm) if max_norm else None"))
    assert ported(optional)[1][0].suggestion == ["import unified_clip", ATTACH.format(optimizer)]


@pytest.mark.parametrize(
    ("clip", "config"),
    [
        ("ClipGradByValue(0.5)", 'rule="value", threshold=0.5'),
        ("ClipGradByValue(limit, -limit)", 'rule="value", threshold=limit'),
        ("ClipGradByValue(high, low)", 'rule="value", min=low, max=high'),
        ("ClipGradByValue(max=2.0, min=-1.0)", 'rule="value", min=-1.0, max=2.0'),
        ("ClipGradByNorm(1.0) if limit else None", 'rule="norm", threshold=1.0, family="paddle"'),
    ],
)
def test_a_suggested_configuration_has_the_thresholds_of_the_clip(clip: str, config: str) -> None:
    source = with_lines(PADDLE, ("ClipGradByNorm(1.0)", clip), ("optimizer.step()", "run(optimizer)"))
    (site,) = ported(source)[1]
    config = f"unified_clip.ClipConfig({config})"
    assert site.suggestion[1] == f"{config}.attach_to(optimizer)  # once, before the first step"


def test_no_configuration_is_suggested_where_a_clip_selects_parameters() -> None:
    source = with_lines(PADDLE, ("ClipGradByNorm(1.0)", "ClipGradByNorm(1.0, need_clip=f)"))
    (site,) = ported(source)[1]
    assert "attach_to" not in "".join(site.suggestion)
    assert "clip.clip_(parameters)  # before every step. Put only the parameters that f selects into parameters" in (
        site.suggestion
    )
    change = ("        optimizer.step()", "        paddle.nn.clip.set_gradient_clip(clip, [model.weight])")
    _, site = sorted(ported(with_lines(PADDLE, change))[1], key=lambda site: "set_gradient_clip" not in site.name)
    assert "clip.clip_(parameters)  # before every step. Put only [model.weight] into parameters" in site.suggestion


@pytest.mark.parametrize(
    ("source", "config", "optimizer"),
    [
        (
            "model.compile(keras.optimizers.Adam(clipnorm=c))",
            'rule="norm", threshold=c, family="tensorflow"',
            "optimizer",
        ),
        ("opt = keras.optimizers.Adam(clipvalue=c)\nmodel.fit(x)", 'rule="value", threshold=c', "opt"),
        ("opt = make(global_clipnorm=c)", 'rule="global_norm", threshold=c, family="tensorflow"', "opt"),
        ("options = {'global_clipnorm': c}", 'rule="global_norm", threshold=c, family="tensorflow"', "optimizer"),
        ("options['clipnorm'] = c", 'rule="norm", threshold=c, family="tensorflow"', "optimizer"),
        ("self.opt.clipvalue = c", 'rule="value", threshold=c', "self.opt"),
    ],
)
@pytest.mark.parametrize("target", ["torch", "drop-in"])
def test_a_configuration_is_suggested_for_a_threshold_of_keras(
    source: str, config: str, optimizer: str, target: Target
) -> None:
    (site,) = ported(f"from tensorflow import keras\n{source}\n", target)[1]
    assert site.verdict == "flagged"
    line = f"unified_clip.ClipConfig({config}).attach_to({optimizer})"
    assert [code.partition("  #")[0] for code in site.suggestion] == ["import unified_clip", line]


def test_no_configuration_is_suggested_for_a_clipnorm_that_depends_on_the_version_of_keras() -> None:
    (site,) = ported("import keras\nkeras.backend.clear_session()\noptions['clipnorm'] = c\n")[1]
    assert (site.verdict, site.suggestion) == ("flagged", [])
