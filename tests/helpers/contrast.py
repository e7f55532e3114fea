"""The contrast of colors."""


def contrast(front: str, back: str) -> float:
    """The WCAG contrast of two colors written rgb(r, g, b); 4.5 is asked of plain text."""

    def luminance(color: str) -> float:
        channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(front), luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
