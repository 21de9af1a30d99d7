"""SVG elements for the plots of a page."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

WIDTH = 760
LEFT, RIGHT, TOP = 96, 16, 12
"""The margins of a plot, in pixels at scale 1."""


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup("").join(map(escape, children)))


def figure(name: str, description: str, height: int, children: Sequence[Markup]) -> Markup:
    described = tag("title", description)
    return tag(
        "svg", described, *children, id=name, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=description
    )


def text(x: float, y: float, words: str, anchor: str = "middle", **attributes: object) -> Markup:
    return tag("text", words, x=float(x), y=float(y), text_anchor=anchor, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def power_of_ten(power: int) -> str:
    return "1" if power == 0 else "10" + "".join("⁻" if sign == "-" else "⁰¹²³⁴⁵⁶⁷⁸⁹"[int(sign)] for sign in str(power))
