#!/usr/bin/env python3
"""Draws docs/pictures/kv_kinds.svg: what a token keeps by kind of attention, as `quire inspect --shape` says it.

    draw_kv_kinds.py QUIRE [--out docs/pictures/kv_kinds.svg]
"""
import argparse
import json
import math
import subprocess

SHAPES = ["deepseek-v3", "deepseek-v4-flash", "deepseek-v4-pro", "kimi-k2", "glm-4.7-flash", "deepseek-v2-lite", "mistral-small-4", "qwen3-235b-a22b", "llama-70b"]
KINDS = [("full heads", "#c44e52"), ("grouped", "#dd8452"), ("one KV head", "#8c8c8c"), ("latent rows", "#4c72b0"), ("rows of several tokens", "#55a868")]
LEFT, TOP, ROW, BAR, WIDTH = 150, 46, 62, 11, 520
LEAST, MOST = 1e3, 2e7


def rows_of(quire, shape):
    plan = json.loads(subprocess.run([quire, "inspect", "--shape", shape, "--kv", "f16", "--ctx", "32768", "--memory", "640G", "--json"],
                                     check=True, capture_output=True, text=True).stdout)
    return plan["attention_kinds"]


def place(value):
    return (math.log10(value) - math.log10(LEAST)) / (math.log10(MOST) - math.log10(LEAST)) * WIDTH


def draw(quire):
    height = TOP + ROW * len(SHAPES) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 110}" height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>']
    for index, (kind, color) in enumerate(KINDS):
        out.append(f'<rect x="{LEFT + index * 120}" y="12" width="12" height="12" fill="{color}"/>'
                   f'<text x="{LEFT + index * 120 + 17}" y="22">{kind}</text>')
    for power in range(3, 8):
        x = LEFT + place(10 ** power)
        label = {3: "1 kB", 4: "10 kB", 5: "100 kB", 6: "1 MB", 7: "10 MB"}[power]
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - 26}" stroke="#ddd"/>'
                   f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" fill="#666">{label}</text>')
    for at, shape in enumerate(SHAPES):
        top = TOP + at * ROW
        out.append(f'<text x="{LEFT - 8}" y="{top + 2 * BAR + 4}" text-anchor="end">{shape}</text>')
        for index, (kind, color) in enumerate(KINDS):
            row = next((row for row in rows_of(quire, shape) if row["name"].startswith(kind)), None)
            if row is None:
                continue
            y, width, size = top + min(index, 3) * (BAR + 1), place(row["bytes_per_token"]), row["bytes_per_token"]
            mark = ' font-weight="bold"' if row["chosen"] else ' fill="#666"'
            out.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{color}" opacity="{1 if row["chosen"] else 0.45}"/>'
                       f'<text x="{LEFT + width + 5:.1f}" y="{y + BAR - 1}" font-size="11"{mark}>{size:,}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quire")
    parser.add_argument("--out", default="docs/pictures/kv_kinds.svg")
    args = parser.parse_args()
    with open(args.out, "w") as file:
        file.write(draw(args.quire))


if __name__ == "__main__":
    main()
