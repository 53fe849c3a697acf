"""Line charts as inline SVG, without a script or a font to load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["COLOURS", "Line", "line_chart"]

#: Distinguishable for colour-blind readers (Okabe and Ito), in the order in which policies get them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d00", "#6a3d9a")

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 16, 44


@dataclass(frozen=True, slots=True)
class Line:
    """One series; shares (0 to 1) over positions."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


def line_chart(title: str, x_label: str, lines: Sequence[Line], ticks: Sequence[tuple[float, str]]) -> str:
    """Percentages over ``x``. ``ticks`` are the places and texts under the x axis; their span is the axis."""
    low_x, high_x = min(x for x, _ in ticks), max(x for x, _ in ticks)
    top = max((y for line in lines for _, y in line.points), default=0.0)
    high_y = next(step for step in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0) if step >= min(top, 1.0) * 0.999)
    inner_x, inner_y = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x) if high_x > low_x else 0.5
        return _LEFT + across * inner_x, _TOP + inner_y * (1 - y / high_y)

    parts = [
        f'<svg role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for step in range(5):
        share = high_y * step / 4
        _, y = at(low_x, share)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + inner_x}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * share:g}%</text>')
    for x, text in ticks:
        across, _ = at(x, 0)
        parts.append(
            f'<text class="tick" x="{across:.1f}" y="{_TOP + inner_y + 16}" text-anchor="middle">{escape(text)}</text>'
        )
    parts.append(
        f'<text class="axis" x="{_LEFT + inner_x / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    for line in lines:
        places = [at(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        hint = f"<title>{escape(line.name)}</title>"
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}>{hint}</polyline>'
        )
        if len(places) <= 12:
            for (x, y), (_, share) in zip(places, line.points, strict=True):
                hint = f"<title>{escape(line.name)}: {100 * share:.2f}%</title>"
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}">{hint}</circle>')
    for y, line in _labels(lines, lambda line: at(*line.points[-1])[1]):
        parts.append(
            f'<text class="series" x="{_LEFT + inner_x + 8}" y="{y:.1f}" style="fill:{line.colour}">'
            f"{escape(line.name)}</text>"
        )
    return "\n".join([*parts, "</svg>"])


def _labels(lines: Sequence[Line], height_of: object) -> list[tuple[float, Line]]:
    """Names beside the ends of their lines, pushed apart so that none covers another."""
    assert callable(height_of)
    ends = sorted(((height_of(line) + 4, line) for line in lines if line.points), key=lambda pair: pair[0])
    placed: list[tuple[float, Line]] = []
    for y, line in ends:
        y = max(y, placed[-1][0] + 13) if placed else y
        placed.append((y, line))
    over = (placed[-1][0] - (_HEIGHT - 6)) if placed else 0
    return [(y - max(0.0, over), line) for y, line in placed]
