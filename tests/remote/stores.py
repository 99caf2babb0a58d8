"""Stores for tests: a real redis-server, and one that lies. And a server of the program that uses them."""
import json
import os
import re
import shutil
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request


def wait_until(condition, what="it", seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"{what} did not happen within {seconds} seconds")


class Redis:
    """A redis-server of Debian's on a socket of its own, which keeps nothing."""

    def __init__(self, *options, tcp=False):
        self.folder = tempfile.mkdtemp(prefix="quire_redis_")
        self.socket = os.path.join(self.folder, "s")
        self.options = list(options)
        self.port = free_port() if tcp else 0
        self.start()

    def start(self):
        if os.path.exists(self.socket):
            os.remove(self.socket)
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket, "--save", "",
             "--appendonly", "no", "--dir", self.folder, "--daemonize", "no", *self.options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.answers, "the start of redis-server")

    def answers(self):
        try:
            return b"PONG" in self.say("PING") or b"NOAUTH" in self.say("PING")
        except OSError:
            return False

    def say(self, *words):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.socket)
            connection.sendall(command(*words))
            return connection.recv(1 << 20)

    def keys(self):
        return int(self.say("DBSIZE")[1:])

    def url(self, password=None):
        who = f":{password}@" if password else ""
        return f"redis://{who}127.0.0.1:{self.port}/0" if self.port else f"redis+unix://{who}{self.socket}"

    def signal(self, which):
        self.process.send_signal(which)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        shutil.rmtree(self.folder)


def command(*words):
    parts = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Liar:
    """Speaks as Redis does, as long as `lie` does not say otherwise: lie(words, reply) gives the bytes to be sent in place of `reply`."""

    def __init__(self):
        self.values = {}
        self.lie = lambda words, reply: reply
        self.asked = 0
        liar = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                while words := read_command(self.rfile):
                    liar.asked += 1
                    try:
                        self.wfile.write(liar.lie(words, liar.reply(words)))
                        self.wfile.flush()
                    except (OSError, StopIteration):
                        return

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # a client that has had enough hangs up

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def url(self):
        return f"redis://127.0.0.1:{self.server.server_address[1]}/0"

    def reply(self, words):
        name = words[0].upper()
        if name == b"GET":
            value = self.values.get(words[1])
            return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        if name == b"EXISTS":
            return b":%d\r\n" % (words[1] in self.values)
        if name == b"SET":
            self.values[words[1]] = words[2]
            return b"+OK\r\n"
        return b"+PONG\r\n" if name == b"PING" else b"+OK\r\n"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def read_command(stream):
    try:
        line = stream.readline()
        if not line.startswith(b"*"):
            return None
        words = []
        for _ in range(int(line[1:])):
            size = int(stream.readline()[1:])
            words.append(stream.read(size))
            stream.read(2)
        return words
    except (OSError, ValueError):
        return None


def bulk(value):
    return b"$%d\r\n%s\r\n" % (len(value), value)


class Served:
    """The program on a port that was free, until it is closed."""

    def __init__(self, program, *options, environment=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("QUIRE_", "OPENAI_"))}
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--grace-seconds", "5", "--threads", "1", *options], stderr=subprocess.PIPE, text=True,
            env={**clean, **(environment or {})})
        self.said = []
        line = self.process.stderr.readline()
        found = re.search(r"http://\S+:(\d+)", line)
        if not found:
            words = line + self.process.stderr.read()
            self.process.stderr.close()
            self.process.wait()
            raise RuntimeError("quire serve did not start: " + words)
        self.url = f"http://127.0.0.1:{found[1]}"
        self.reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def post(self, path, body, key=None, status=200):
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = "Bearer " + key
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                assert reply.status == status, reply.status
                return json.load(reply)
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            assert error.code == status, (error.code, text)
            return json.loads(text)

    def get(self, path, key=None):
        request = urllib.request.Request(self.url + path, headers={"Authorization": "Bearer " + key} if key else {})
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read().decode()
        return json.loads(text) if text.startswith("{") else text

    def remote(self, key=None):
        return self.get("/kv", key)["remote"]

    def wait_until_sent(self, key=None):
        """Until nothing waits to be sent and the count of what was is still."""
        def quiet():
            before = self.remote(key)
            time.sleep(0.05)
            after = self.remote(key)
            return before["queued_bytes"] == after["queued_bytes"] == 0 and before["sent_pages"] == after["sent_pages"]
        wait_until(quiet, "the sending of pages")

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def close(self):
        self.process.terminate()
        code = self.process.wait(60)
        self.reader.join()
        self.process.stderr.close()
        assert code == 0, (code, "".join(self.said))
        return "".join(self.said)
