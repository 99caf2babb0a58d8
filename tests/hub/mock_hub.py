"""A hub of our own: the endpoints that a pull asks, a second port that plays the CDN, and faults on demand.

    hub = MockHub(); hub.add("org/name", {"model-Q4_K_M.gguf": b"..."}); hub.endpoint
Files of more than 1,000 bytes are told by their sha256 and sent by the CDN, as large ones are at the real one.
Faults are attributes: each is said where it is. `log` has every request: (server, path, headers).
"""
import hashlib
import http.server
import json
import ssl
import threading
import urllib.parse

PAGE = 3  # files of a page of the listing


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repo:
    def __init__(self, files, commit):
        self.files = files
        self.commit = commit
        self.entries = []
        for path, content in sorted(files.items()):
            large = len(content) > 1000
            entry = {"type": "file", "oid": git_sha1(content), "size": len(content), "path": path}
            if large:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
            self.entries.append(entry)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    @property
    def hub(self):
        return self.server.hub

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, code, message):
        self.reply(status, json.dumps({"error": message}).encode(), X_Error_Code=code, X_Error_Message=message)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        with self.hub.lock:
            self.hub.log.append((self.server.name, self.path, dict(self.headers)))
            fault = self.hub.faults.pop(0) if self.hub.faults else None
        try:
            if fault is not None and fault(self, path):
                return
            if self.server.name == "cdn":
                self.send_blob(path.removeprefix("/blob/"))
            else:
                self.answer(path, urllib.parse.parse_qs(url.query))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, path, query):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token != self.hub.token:
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        for name, repo in self.hub.repos.items():
            if name in self.hub.gated and not token:
                continue
            if path.startswith(f"/api/models/{name}/revision/"):
                revision = path.split("/revision/", 1)[1]
                if revision not in ("main", repo.commit):
                    return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                return self.reply(200, json.dumps({"id": name, "sha": repo.commit, "siblings": []}).encode())
            if path == f"/api/models/{name}/tree/{repo.commit}":
                return self.send_tree(repo, int(query.get("cursor", ["0"])[0]))
            prefix = f"/{name}/resolve/{repo.commit}/"
            if path.startswith(prefix):
                return self.resolve(repo, path[len(prefix):])
        for name in self.hub.gated:
            if f"/{name}/" in path:
                return self.refuse(401, "GatedRepo", "Access to this model is restricted")
        self.refuse(401, "RepoNotFound", "Repository not found")

    def send_tree(self, repo, begin):
        entries = self.hub.tree or repo.entries
        headers = {}
        if begin + PAGE < len(entries):
            headers["Link"] = f'<{self.hub.endpoint}{urllib.parse.urlsplit(self.path).path}?recursive=true&cursor={begin + PAGE}>; rel="next"'
        self.reply(200, json.dumps(entries[begin : begin + PAGE]).encode(), **headers)

    def resolve(self, repo, path):
        entry = next((entry for entry in self.hub.tree or repo.entries if entry["path"] == path), None)
        if entry is None:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        head = {"X_Repo_Commit": repo.commit, "X_Linked_Size": str(entry["size"])}
        if "lfs" in entry:
            location = self.hub.redirect_to or f"http://127.0.0.1:{self.hub.cdn.server_port}/blob/{entry['lfs']['oid']}?signature=a%2Bb"
            return self.reply(302, b"Found", Location=location, X_Linked_Etag=f'"{entry["lfs"]["oid"]}"', **head)
        self.send_bytes(repo.files[path], ETag=f'"{entry["oid"]}"', **head)

    def send_blob(self, digest):
        for repo in self.hub.repos.values():
            for content in repo.files.values():
                if hashlib.sha256(content).hexdigest() == digest:
                    return self.send_bytes(self.hub.swap.get(digest, content))
        self.reply(404)

    def send_bytes(self, content, **headers):
        wanted = self.headers.get("Range", "")
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.hub.ranges else 0
        if first and first >= len(content):
            return self.reply(416, Content_Range=f"bytes */{len(content)}")
        self.send_response(206 if first else 200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        endless = self.hub.endless
        if not endless:
            self.send_header("Content-Length", str(len(content) - first))
        else:
            self.close_connection = True
        self.end_headers()
        body = content[first:]
        cut = self.hub.cut_after
        if cut is not None:
            body = body[:cut]
        for begin in range(0, len(body), self.hub.piece):
            self.wfile.write(body[begin : begin + self.hub.piece])
            self.wfile.flush()
            if self.hub.on_piece:
                self.hub.on_piece(first + begin + self.hub.piece)
        while endless:
            self.wfile.write(b"x" * 65536)
        if cut is not None:
            self.close_connection = True
            self.connection.close()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub, name, certificate=None):
        super().__init__(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.hub = hub
        self.name = name
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, *arguments):
        pass  # clients that are killed are the point


class MockHub:
    def __init__(self, certificate=None):
        """certificate: a file with a key and a certificate, for a hub that speaks TLS; its CDN does not."""
        self.lock = threading.Lock()
        self.repos = {}
        self.gated = set()
        self.token = "hf_right"
        self.log = []
        self.faults = []  # functions (handler, path) -> handled, one for each request from now on
        self.tree = None  # entries in place of the true ones
        self.swap = {}  # sha256 -> other bytes
        self.redirect_to = None
        self.ranges = True
        self.cut_after = None  # bytes after which every transfer is cut
        self.endless = False
        self.piece = 1 << 16
        self.on_piece = None  # called with how far a file has come
        self.main = Server(self, "hub", certificate)
        self.cdn = Server(self, "cdn")
        self.endpoint = f"http{'s' if certificate else ''}://127.0.0.1:{self.main.server_port}"

    def add(self, name, files, commit=None):
        commit = commit or hashlib.sha1(repr(sorted(files)).encode() + b"".join(files.values())).hexdigest()
        self.repos[name] = Repo(files, commit)
        return commit

    def requests(self, server):
        return [entry for entry in self.log if entry[0] == server]

    def close(self):
        for server in (self.main, self.cdn):
            server.shutdown()
            server.server_close()


def status_fault(status, **headers):
    """A reply with this status and nothing else, once."""

    def fault(handler, _path):
        handler.reply(status, b"no", **headers)
        return True

    return fault
