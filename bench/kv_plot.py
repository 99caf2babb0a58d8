#!/usr/bin/env python3
"""Draws what smaller KV caches keep of the answers: kv_plot.py FORMATS.json POLICIES.json > PICTURE.svg

The files are those that kv_formats.py and kv_policies.py write with --json. Across: bytes of the cache, of all tokens in f16;
up: right answers, of those with all tokens in f16."""
import json
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 490, 64, 88, 24, 56
COLOURS = {"streaming": "c1", "snap": "c2", "expected": "c3", "zip": "c4", "evaluator": "c5"}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: var(--ink) } .title { font-size: 15px; font-weight: 600 } .soft { fill: var(--soft) }
.grid { stroke: var(--rule) } .paper { fill: var(--paper) } .format { fill: var(--ink) } polyline { fill: none; stroke-width: 2 }
svg { --ink: #1c1c1c; --soft: #666; --rule: #ddd; --paper: #fff }
.c1 { stroke: #8a8f98; fill: #8a8f98 } .c2 { stroke: #276f9c; fill: #276f9c } .c3 { stroke: #8a63d2; fill: #8a63d2 }
.c4 { stroke: #c1581a; fill: #c1581a } .c5 { stroke: #2f8f5b; fill: #2f8f5b } text[class^=c] { stroke: none }
@media (prefers-color-scheme: dark) { svg { --ink: #e8e8e8; --soft: #a0a0a0; --rule: #3a3a3e; --paper: #1a1a1e } }
"""


def score(row):
    return row["needles"] + row["questions"]


def x(share):
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y(share):
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def axes():
    parts = []
    for tenth in range(0, 11, 2):
        share = tenth / 10
        parts.append(f'<line class="grid" x1="{x(0)}" x2="{x(1)}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>')
        parts.append(f'<text class="soft" x="{x(0) - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
        parts.append(f'<text class="soft" x="{x(share):.1f}" y="{y(0) + 20}" text-anchor="middle">{share:.0%}</text>')
    parts.append(f'<text class="soft" x="{x(0.5):.0f}" y="{HEIGHT - 14}" text-anchor="middle">bytes of the KV cache, of all tokens in f16</text>')
    return parts


def format_points(formats):
    full = next(row for row in formats if row["kv"] == "f16")
    parts, used = [], []
    for row in formats:
        if row["kv"] in ("bf16", "q4_plain"):  # as large as others, and drawn over them
            continue
        at_x, at_y = x(row["bytes"] / full["bytes"]), y(score(row) / score(full))
        below = any(abs(at_x - other) < 20 for other in used)
        used.append(at_x)
        parts.append(f'<circle class="format" cx="{at_x:.1f}" cy="{at_y:.1f}" r="5"/>')
        parts.append(f'<text x="{at_x + (10 if below else 0):.1f}" y="{at_y + (10 if below else -11):.1f}" '
                     f'text-anchor="{"start" if below else "middle"}">{escape(row["kv"])}</text>')
    return parts


def policy_lines(policies):
    full = policies[0]
    parts, labels = [], []
    for policy, colour in COLOURS.items():
        points = [(1.0, 1.0)] + [(row["bytes"] / full["bytes"], score(row) / score(full)) for row in policies if row["policy"] == policy]
        if len(points) == 1:
            continue
        line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        parts.append(f'<polyline class="{colour}" style="fill:none" points="{line}"/>')
        parts += [f'<rect class="{colour}" x="{x(a) - 3.5:.1f}" y="{y(b) - 3.5:.1f}" width="7" height="7"/>' for a, b in points[1:]]
        a, b = points[-1]
        labels.append((y(b) + 4, x(a) - 8, policy, colour))
    lowest = 0
    for at_y, at_x, policy, colour in sorted(labels):
        lowest = max(at_y, lowest + 14)
        parts.append(f'<text class="{colour}" x="{at_x:.1f}" y="{lowest:.1f}" text-anchor="end">{policy}</text>')
    return parts


def main():
    with open(sys.argv[1]) as formats, open(sys.argv[2]) as policies:
        formats, policies = json.load(formats)["rows"], json.load(policies)["rows"]
    asked = policies[0]["needles_asked"] + policies[0]["questions_asked"]
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
          f'aria-label="Right answers against bytes of the KV cache"><style>{STYLE}</style>')
    print(f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/><text class="title" x="16" y="26">Fewer bits or fewer tokens</text>'
          f'<text class="soft" x="16" y="44">right answers of {asked}, of those with the whole cache; dots: formats, lines: pruning policies</text>')
    print("\n".join(axes() + policy_lines(policies) + format_points(formats)))
    print("</svg>")


if __name__ == "__main__":
    main()
