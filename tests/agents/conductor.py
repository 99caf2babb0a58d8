"""Stands between an agent and `quire serve` and says what the model does, so that one of random weights finishes a turn.

A request without the tool's result gets a `tool_choice` that names the tool; one with it gets a schema that allows one sentence. All
else passes as it is, both ways. What the server says of its cache is kept.
"""
import http.client
import http.server
import json
import re
import threading
import urllib.parse

ANSWER = "It is half past twelve."
SCHEMA = {"const": ANSWER}


class Conductor:
    def __init__(self, target, tool, key):
        self.target, self.tool, self.key = urllib.parse.urlsplit(target), tool, key
        self.seen = []  # (path, status, prompt tokens, cached tokens)
        self.refused, self.unknown = [], []  # answers that are errors; lists of tools without the one that is wanted
        handler = type("Handler", (Handler,), {"conductor": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def direct(self, path, body):
        if path == "/v1/responses":
            answered = any(item.get("type") == "function_call_output" for item in body.get("input", []) if isinstance(item, dict))
            if answered:
                body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
                body["tool_choice"] = "none"
            else:
                choice = self.find_response_tool(body.get("tools") or [])
                if choice:
                    body["tool_choice"] = choice
        elif path == "/v1/messages":
            answered = any(block.get("type") == "tool_result" for message in body["messages"] if isinstance(message["content"], list)
                           for block in message["content"])
            names = [tool.get("name") for tool in body.get("tools") or []]
            if names and self.tool not in names:
                self.unknown.append(names)
            if answered or self.tool not in names:
                body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
                body["tool_choice"] = {"type": "none"} if names else None
                if not names:
                    del body["tool_choice"]
            else:
                body["tool_choice"] = {"type": "tool", "name": self.tool}
        return body

    def find_response_tool(self, tools, space=""):
        for tool in tools:
            if tool.get("type") == "namespace":
                found = self.find_response_tool(tool.get("tools", []), tool["name"])
                if found:
                    return found
            name = tool.get("name", "")
            if self.tool in (name, f"{space}__{name}", f"{space}{name}") and tool.get("type") == "function":
                return {"type": "function", "name": name, **({"namespace": space} if space else {})}
        return None

    def note(self, path, status, text):
        if status != 200:
            self.refused.append((path, status, text[:600]))
        cached = [int(n) for n in re.findall(r'"(?:cached_tokens|cache_read_input_tokens)":\s*(\d+)', text)]
        prompt = [int(n) for n in re.findall(r'"input_tokens":\s*(\d+)', text)]
        self.seen.append((path, status, max(prompt, default=0), max(cached, default=0)))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def pass_on(self, method):
        conductor = self.conductor
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.split("?", 1)[0]
        if body and path in ("/v1/responses", "/v1/messages"):
            body = json.dumps(conductor.direct(path, json.loads(body))).encode()
        connection = http.client.HTTPConnection(conductor.target.hostname, conductor.target.port, timeout=600)
        headers = {name: value for name, value in self.headers.items()
                   if name.lower() not in ("host", "content-length", "accept-encoding", "connection", "x-api-key", "authorization")}
        headers["Authorization"] = "Bearer " + conductor.key
        connection.request(method, self.path, body or None, headers)
        response = connection.getresponse()
        self.send_response(response.status)
        self.send_header("Content-Type", response.getheader("Content-Type", "application/json"))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        said = b""
        while piece := response.read1(65536):  # as it comes: the server's signs of life too
            said += piece
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        if path in ("/v1/responses", "/v1/messages"):
            conductor.note(path, response.status, said.decode())

    def do_POST(self):
        self.pass_on("POST")

    def do_GET(self):
        self.pass_on("GET")

    def do_HEAD(self):
        self.pass_on("HEAD")
