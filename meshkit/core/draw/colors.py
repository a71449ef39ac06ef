"""Colors: a hue for each axis, a shade for each index.

The hues are those of Okabe and Ito, "Color Universal Design" (2008). They can be told apart with
any of the usual kinds of color vision. Shades run from light to dark, so the order of indices is
visible in grey, too.
"""

from __future__ import annotations

Rgb = tuple[int, int, int]

HUES: tuple[Rgb, ...] = (
    (0, 114, 178),  # blue
    (230, 159, 0),  # orange
    (0, 158, 115),  # bluish green
    (204, 121, 167),  # reddish purple
    (213, 94, 0),  # vermillion
    (86, 180, 233),  # sky blue
)
SHADES = 32  # neighboring indices of a longer axis share a shade
LIGHT, DARK = 0.7, 0.42  # distance of the ends from the hue, towards white and towards black
EVEN_CONTRAST = 0.179  # luminance at which black and white text have the same WCAG contrast


def shade(axis: int, index: int, size: int) -> Rgb:
    """Return the color of an index on an axis."""
    level = index * (min(size, SHADES) - 1) // (size - 1)
    offset = 2 * level / (min(size, SHADES) - 1) - 1  # -1 light, 0 the hue, 1 dark
    end, share = (255, -offset * LIGHT) if offset < 0 else (0, offset * DARK)
    return _mix(HUES[axis % len(HUES)], end, share)


def to_hex(color: Rgb) -> str:
    """Return a color in hexadecimal notation."""
    return "#" + "".join(f"{part:02x}" for part in color)


def text_color(background: Rgb) -> str:
    """Return black or white, whichever has the higher WCAG 2.1 contrast with the background."""
    return "#000" if luminance(background) > EVEN_CONTRAST else "#fff"


def luminance(color: Rgb) -> float:
    """Return the relative luminance of WCAG 2.1: 0 for black, 1 for white."""
    parts = [part / 255 for part in color]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _mix(hue: Rgb, end: int, share: float) -> Rgb:
    red, green, blue = (round(part + (end - part) * share) for part in hue)
    return red, green, blue
