"""What a request cost and why, and what the cache is spent on: for people, also in notebooks."""
from __future__ import annotations

import html
from typing import Any, Dict, List, Tuple


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


class Table:
    """Rows of a name and a value under a title, and sentences behind them."""

    def __init__(self, title: str, rows: List[Tuple[str, Any]], sentences: List[str], raw: Dict[str, Any]):
        self.title, self.rows, self.sentences = title, rows, sentences
        #: All of it, as libquire tells it.
        self.raw = raw

    def __str__(self) -> str:
        width = max((len(name) for name, _ in self.rows), default=0)
        lines = [self.title] + [f"  {name:{width}}  {_number(value)}" for name, value in self.rows]
        return "\n".join(lines + [f"  {sentence}" for sentence in self.sentences])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:right'>{html.escape(_number(value))}</td></tr>"
            for name, value in self.rows
        )
        sentences = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences)
        return f"<table><caption>{html.escape(self.title)}</caption>{rows}</table>{sentences}"


class Explanation(Table):
    """Where the time of one request went, what of it was cached and why not more, and what that means."""

    def __init__(self, report: Dict[str, Any]):
        timings, cache = report["timings"], report["cache"]
        rows = [
            ("waited, ms", timings["queue_ms"]),
            ("first token after, ms", timings["ttft_ms"]),
            ("between tokens, median ms", timings["itl_ms_p50"]),
            ("between tokens, slowest hundredth ms", timings["itl_ms_p99"]),
            ("prefill, tokens a second", timings["prefill_tok_s"]),
            ("decode, tokens a second", timings["decode_tok_s"]),
            ("prompt tokens from the cache", cache["cached_tokens"]),
            ("prompt tokens computed", cache["computed_tokens"]),
            ("KV pages", report["kv"]["pages"]),
            ("KV bytes", report["kv"]["bytes"]),
            ("preemptions", report["preemptions"]),
            ("guesses that were right", f"{report['accepted']} of {report['drafted']}"),
        ]
        why = [f"cache: {cache['why']}"] if cache["why"] else []
        super().__init__("This request", rows, why + list(report["verdict"]), report)


class Stats(Table):
    """What a model is doing, and what its KV cache holds."""

    def __init__(self, stats: Dict[str, Any]):
        kv = stats["kv"]
        rows = [
            ("answers running", stats["running"]),
            ("answers waiting", stats["waiting"]),
            ("steps", stats["steps"]["count"]),
            ("KV pages", kv["capacity_pages"]),
            ("of them held", kv["held_pages"]),
            ("cached", kv["cached_pages"]),
            ("free", kv["free_pages"]),
            ("KV bytes", kv["capacity_bytes"]),
            ("bytes that sharing saves", kv["shared_bytes"]),
        ]
        super().__init__("This model", rows, [stats["lost"]] if stats["lost"] else [], stats)
