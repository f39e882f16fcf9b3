"""Line charts with logarithmic axes, as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 440, 70, 50, 40, 20
COLOURS = ("#0b6e4f", "#c1440e", "#1f4e9e", "#7a3e9d", "#8a6d00", "#00818a", "#555555", "#b5006e")

Lines = Mapping[str, Sequence[tuple[float, float]]]


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high; powers alone where these would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) < 5 else (1,)
    every = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in every if low * 0.999 <= tick <= high * 1.001]


def _named(value: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {sign}"
    return f"{value:g}"


def line_chart(title: str, x_name: str, y_name: str, lines: Lines) -> str:
    """An SVG document with a line for each name; points without a positive place on both axes are left out."""
    kept = {name: sorted((x, y) for x, y in points if x > 0 and y > 0) for name, points in lines.items()}
    kept = {name: points for name, points in kept.items() if points}
    xs = [x for points in kept.values() for x, _ in points] or [1.0]
    ys = [y for points in kept.values() for _, y in points] or [1.0]
    low_x, high_x, low_y, high_y = min(xs) / 1.1, max(xs) * 1.1, min(ys) / 1.3, max(ys) * 1.3

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low_x) / math.log(high_x / low_x)
        up = math.log(y / low_y) / math.log(high_y / low_y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    parts = [f'<text x="{LEFT}" y="22" font-size="15">{html.escape(title)}</text>']
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for tick in _ticks(low_x, high_x):
        x, _ = place(tick, low_y)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_named(tick)}</text>')
    for tick in _ticks(low_y, high_y):
        _, y = place(low_x, tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_named(tick)}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(x_name)}</text>')
    middle = (TOP + bottom) / 2
    parts.append(f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{html.escape(y_name)}</text>')
    for number, (name, points) in enumerate(kept.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [place(x, y) for x, y in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = HEIGHT + 6 + 18 * number
        parts.append(f'<path d="M{LEFT} {y}h24" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{LEFT + 32}" y="{y + 4}">{html.escape(name)}</text>')
    height = HEIGHT + 18 * len(kept) + 6
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" {style}>'
    return f'{head}<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
