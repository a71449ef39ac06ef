"""Colors: a hue for each axis, a shade for each index.

The hues are those of Okabe and Ito, "Color Universal Design" (2008). They can be told apart with
any of the usual kinds of color vision. Shades run from light to dark, so the order of indices is
visible in grey, too. An axis has the same hue in every picture and on a terminal.
"""

from __future__ import annotations

from collections.abc import Collection

Rgb = tuple[int, int, int]

HUES: tuple[Rgb, ...] = (
    (0, 114, 178),  # blue
    (230, 159, 0),  # orange
    (0, 158, 115),  # bluish green
    (204, 121, 167),  # reddish purple
    (213, 94, 0),  # vermillion
    (86, 180, 233),  # sky blue
)
HUE_OF = {  # axis name to the position of its hue; other libraries' names beside the standard one
    **dict.fromkeys(("dp", "data", "data_parallel", "fsdp", "shard", "dp_shard"), 0),
    **dict.fromkeys(("tp", "model", "tensor", "mp"), 1),
    **dict.fromkeys(("sp", "seq", "sequence"), 2),
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage"), 3),
    **dict.fromkeys(("cp", "context"), 4),
    **dict.fromkeys(("ep", "expert", "replicate", "dp_replicate"), 5),
}
SHADES = 32  # neighboring indices of a longer axis share a shade
LIGHT, DARK = 0.7, 0.42  # distance of the ends from the hue, towards white and towards black
EVEN_CONTRAST = 0.179  # luminance at which black and white text have the same WCAG contrast


def hue_numbers(axes: Collection[str]) -> dict[str, int]:
    """Return the position of the hue of each axis; an unknown name gets one that is left."""
    numbers = {axis: HUE_OF[axis] for axis in axes if axis in HUE_OF}
    result = {}
    for axis in axes:
        start = sum(map(ord, axis)) % len(HUES)  # the same number in every picture
        turns = [(start + i) % len(HUES) for i in range(len(HUES))]
        left = (number for number in turns if number not in numbers.values())
        result[axis] = numbers.setdefault(axis, next(left, start))
    return result


def axis_hues(axes: Collection[str]) -> dict[str, Rgb]:
    """Return the hue of each axis."""
    return {axis: HUES[number] for axis, number in hue_numbers(axes).items()}


def nearest_of_256(color: Rgb) -> int:
    """Return the number of the nearest color in the 6 x 6 x 6 cube of a terminal with 256 colors.

    Example:
        >>> nearest_of_256((255, 255, 255)), nearest_of_256((0, 114, 178))
        (231, 25)
    """
    levels = (0, 95, 135, 175, 215, 255)
    distances = ([abs(level - part) for level in levels] for part in color)
    red, green, blue = (distance.index(min(distance)) for distance in distances)
    return 16 + 36 * red + 6 * green + blue


def shade(hue: int, index: int, size: int) -> Rgb:
    """Return the color of an index on an axis of a hue."""
    level = index * (min(size, SHADES) - 1) // (size - 1)
    offset = 2 * level / (min(size, SHADES) - 1) - 1  # -1 light, 0 the hue, 1 dark
    end, share = (255, -offset * LIGHT) if offset < 0 else (0, offset * DARK)
    return _mix(HUES[hue % len(HUES)], end, share)


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
