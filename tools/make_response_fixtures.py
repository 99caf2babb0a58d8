#!/usr/bin/env python3
"""Writes what Transformers reads from answers by a model's own response_template.

tests/response_templates.json    a list of {template, tools, cases}; a case is {begun, output, content, reasoning, calls}
  begun     what of the answer the prompt holds already, behind the template's start_anchor
  content, reasoning    the texts of all fields of that kind, one per line where a field comes again (Transformers keeps the last)
  calls     [name, arguments] each

The templates are written here, in the styles that models use. Answers are put together at random from what their templates have a
place for; those that Transformers refuses with an exception are left out.

Usage: make_response_fixtures.py [FILE]     (needs the `transformers` package)
"""
import json
import pathlib
import random
import sys

from transformers.utils.chat_parsing import ResponseParser

TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells.", "parameters": {
    "type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
        "note": {"anyOf": [{"type": "null"}, {"type": "string"}]}, "units": {"type": "array"},
        "ratio": {"type": ["number", "string"]}}}}}]

CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
THINK = {"open": "<think>", "close": "</think>", "content": "text"}
TEMPLATES = {
    "json": {
        "start_anchor": "<|im_start|>assistant\n", "defaults": {"role": "assistant"},
        "fields": {
            "reasoning_content": THINK,
            "tool_calls": {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True,
                           "content": "json", "transform": {"type": "function", "function": "{content}"}},
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"}}},
    "tags": {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": THINK,
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>", "repeats": True, "content": "xml-inline",
                "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
                                 "merge_duplicates": True},
                "transform": CALL},
            "content": {"content": "text", "content_args": {"strip": False}}}},
    "quotes": {
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "reasoning": {"open": "<|channel>thought\n", "close": "<channel|>", "repeats": True, "join": "\n\n"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)", "close": "<tool_call|>", "repeats": True,
                "content": "json", "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": CALL},
            "content": {"close": ["<turn|>", "<|tool_response>", "<eos>"]}}},
    "channels": {
        "start_anchor_pattern": r"<\|start\|>assistant",
        "fields": {
            "reasoning_content": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>", "repeats": True,
                                  "join": "\n"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>[\w.-]+)[^<]*"
                                r"(?:<\|constrain\|>\w+)?<\|message\|>",
                "close": ["<|call|>", "<|calls|>"], "repeats": True, "content": "json", "transform": CALL},
            "content": {"open_pattern": r"<\|channel\|>final(?: \w+)?<\|message\|>", "close": ["<|return|>", "<|end|>"]}}},
    "lines": {
        "start_anchor": "### Answer\n",
        "fields": {
            "tool_calls": {"open_pattern": r"### Call (?P<name>\w+)\n", "close": "\n###", "repeats": True,
                           "content": "kv-lines", "content_args": {"kv_sep": "=", "value_parser": {
                               "name": "json", "args": {"allow_non_json": True}}},
                           "transform": CALL},
            "reasoning": {"open": ["### Thoughts\n", "### Thoughts, briefly\n"], "close": "\n###"},
            "content": {}}},
    "list": {
        "start_anchor": "[/INST]",
        "fields": {
            "reasoning_content": {"open": "[THINK]", "close": "[/THINK]"},
            "tool_calls": {"open": "[TOOL_CALLS]", "close_pattern": r"(?<=\])\s*(?:</s>|$)", "content": "json",
                           "transform_each": True,
                           "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}},
            "content": {"close": "</s>"}}},
}

WORDS = ["It rains.", "Größe 3 €", "a < b", "<tool_cal", "{\"x\": 1}", "\n\n", "  two  ", "<", "</", "[TOOL", "###", "…", "世界",
         "<|im_end", "<|chan", "\t"]
VALUES = ["Bern", "Zürich \"old\" town", "5", "5.0", "true", "null", "None", "1", "[1, 2]", "a\nb", " x ", "", "0.25", "</x>"]


def arguments(draw):
    made = {}
    for key in draw.sample(["city", "days", "exact", "note", "units", "ratio", "other"], draw.randint(0, 4)):
        made[key] = draw.choice(VALUES)
    return made


def typed(draw):
    made = arguments(draw)
    for key in made:
        if draw.random() < 0.5:
            made[key] = draw.choice([5, 2.5, True, None, ["a", {"b": None}], {"c": [1, "2"]}, ["1", "2"]])
    return made


def call(name, draw):
    if name == "json":
        said = json.dumps({"name": "weather", "arguments": typed(draw)}, ensure_ascii=draw.random() < 0.5)
        return draw.choice(["<tool_call>\n{}\n</tool_call>", "\n<tool_call>{}</tool_call>"]).format(said)
    if name == "tags":
        said = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments(draw).items())
        if draw.random() < 0.2:
            said += "<parameter=days>7</parameter>\n" * 2
        return f"\n<tool_call>\n<function=weather>\n{said}</function>\n</tool_call>"
    if name == "quotes":
        def value(v):
            if isinstance(v, str):
                return f'<|"|>{v}<|"|>'
            if isinstance(v, list):
                return "[" + ",".join(map(value, v)) + "]"
            if isinstance(v, dict):
                return "{" + ",".join(f"{k}:{value(w)}" for k, w in v.items()) + "}"
            return json.dumps(v)
        return f"<|tool_call>call:weather{value(typed(draw))}<tool_call|>"
    if name == "channels":
        kind = draw.choice(["<|constrain|>json", " json", ""])
        return (f"<|start|>assistant<|channel|>commentary to=functions.weather{kind}<|message|>"
                f"{json.dumps(typed(draw))}<|call|>")
    if name == "lines":
        lines = "\n".join(f"{k}={v}" for k, v in arguments(draw).items() if "\n" not in v)
        return f"### Call weather\n{lines}\n###\n"
    said = [{"name": "weather", "arguments": typed(draw), "id": "abcdefghi"} for _ in range(draw.randint(1, 2))]
    return "[TOOL_CALLS]" + json.dumps(said) + draw.choice(["", "</s>"])


def thought(name, draw):
    words = draw.choice(WORDS) + draw.choice(WORDS)
    return {"json": "<think>\n{}\n</think>\n\n", "tags": "<think>{}</think>", "quotes": "<|channel>thought\n{}<channel|>",
            "channels": "<|channel|>analysis<|message|>{}<|end|>", "lines": "### Thoughts, briefly\n{}\n###",
            "list": "[THINK]{}[/THINK]"}[name].replace("{}", words)


def answer(name, draw):
    parts = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.random()
        words = "".join(draw.choice(WORDS) for _ in range(draw.randint(1, 3)))
        if name == "channels" and kind < 0.4:
            words = f"<|start|>assistant<|channel|>final<|message|>{words}" + draw.choice(["", "<|return|>", "<|end|>"])
        parts.append(words if kind < 0.4 else call(name, draw) if kind < 0.75 else thought(name, draw))
    text = "".join(parts)
    if draw.random() < 0.15:
        text = text[:draw.randint(0, len(text))]
    return text


def read(template, begun, text):
    parser = ResponseParser(template, prefix=begun, tools=TOOLS)
    events = parser.initial_events + parser.feed(text)
    message, more = parser.finalize()
    found = {"content": "", "reasoning": "", "calls": []}
    for event in events + more:
        if event["type"] != "region_close":
            continue
        field, value = event["field"], event["value"]
        if field == "tool_calls":
            for one in value if isinstance(value, list) else [value]:
                said = one["function"]
                if not isinstance(said["arguments"], dict) or not isinstance(said["name"], str):
                    raise ValueError("not a call")
                found["calls"].append([said["name"], said["arguments"]])
        elif value:
            kind = "content" if field == "content" else "reasoning"
            join = template["fields"][field].get("join", "\n")
            found[kind] += (join if found[kind] else "") + value
    return found


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                       pathlib.Path(__file__).parent.parent / "tests/response_templates.json")
    draw = random.Random(5)
    made = []
    for name, template in TEMPLATES.items():
        anchor = {"quotes": "<|turn>model\n", "channels": "<|start|>assistant", "lines": "### Answer\n", "list": "[/INST]"}
        start = anchor.get(name, "<|im_start|>assistant\n")
        cases, refused = [], 0
        while len(cases) < 120:
            begun = draw.choice(["", "", "<think>\n", "<think>\n\n</think>\n\n"]) if name == "json" else ""
            text = answer(name, draw)
            try:
                cases.append({"begun": begun, "output": text, **read(template, "Hi." + start + begun, text)})
            except (ValueError, KeyError, TypeError):
                refused += 1
        made.append({"name": name, "start": start, "template": template, "tools": TOOLS, "cases": cases})
        print(f"{name}: {len(cases)} answers, {sum(len(c['calls']) for c in cases)} calls; {refused} more refused")
    lines = ",\n".join(
        '{"name": %s, "start": %s,\n"template": %s,\n"tools": %s,\n"cases": [\n%s]}' % (
            *(json.dumps(one[key], ensure_ascii=False) for key in ("name", "start", "template", "tools")),
            ",\n".join(json.dumps(case, ensure_ascii=False) for case in one["cases"])) for one in made)
    out.write_text("[" + lines + "]\n")


if __name__ == "__main__":
    main()
