#!/usr/bin/env python3
"""An MCP server with one tool, which tells the time of two zones: lines of JSON-RPC on stdin and stdout."""
import json
import sys

TOOL = {"name": "now", "description": "Tells the time.",
        "inputSchema": {"type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
                        "required": ["zone"], "additionalProperties": False}}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params.get("protocolVersion", "2025-06-18"), "capabilities": {"tools": {}},
                "serverInfo": {"name": "clock", "version": "1"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "It is 12:30 in " + params["arguments"]["zone"]}], "isError": False}
    return {}


for line in sys.stdin:
    said = json.loads(line)
    if "id" in said and "method" in said:
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": answer(said["method"], said.get("params") or {})}), flush=True)
