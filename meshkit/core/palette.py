"""Colours: a hue an axis, a shade an index.

The hues are those of Okabe and Ito, "Color Universal Design" (2008), which people with any of the
usual kinds of colour vision tell apart. A shade runs from light to dark, so that the order of
indices is seen in grey too.
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
SHADES = 32  # an axis that is longer shares each between neighbours
LIGHT, DARK = 0.7, 0.42  # how far the ends are from the hue, towards white and towards black


def shade(axis: int, index: int, size: int) -> Rgb:
    """The colour of an index on an axis.

    Args:
        axis: the place of the axis among those that are coloured, which has its hue; the seventh
            has the hue of the first.
        index: from 0, the lightest, to ``size - 1``, the darkest.
        size: of the axis, 2 or more.

    Example:
        >>> [written(shade(0, index, 3)) for index in range(3)]
        ['#b2d5e8', '#0072b2', '#004267']
    """
    level = index * (min(size, SHADES) - 1) // (size - 1)
    at = 2 * level / (min(size, SHADES) - 1) - 1  # -1 light, 0 the hue, 1 dark
    end, share = (255, -at * LIGHT) if at < 0 else (0, at * DARK)
    return _mixed(HUES[axis % len(HUES)], end, share)


def written(colour: Rgb) -> str:
    """A colour as SVG has it.

    Example:
        >>> written((0, 114, 178))
        '#0072b2'
    """
    return "#" + "".join(f"{part:02x}" for part in colour)


def ink(colour: Rgb) -> str:
    """Black or white, whichever is read more easily on a colour.

    The contrast is that of WCAG 2.1, which is even where the relative luminance is 0.179.

    Example:
        >>> ink(shade(1, 0, 2)), ink(shade(0, 1, 2))
        ('#000', '#fff')
    """
    return "#000" if luminance(colour) > 0.179 else "#fff"


def luminance(colour: Rgb) -> float:
    """Relative luminance as WCAG 2.1 defines it: 0 for black, 1 for white."""
    parts = [part / 255 for part in colour]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _mixed(hue: Rgb, end: int, share: float) -> Rgb:
    red, green, blue = (round(part + (end - part) * share) for part in hue)
    return red, green, blue
