"""A browser by the plain WebDriver protocol: chromedriver and urllib, nothing to install."""
import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "Shift": "\ue008", "ArrowLeft": "\ue012", "ArrowUp": "\ue013",
        "ArrowRight": "\ue014", "ArrowDown": "\ue015", "End": "\ue010", "Home": "\ue011", "Control": "\ue009", "Space": " "}


def find_programs():
    """(chromedriver, chromium), each None when it is absent."""
    return shutil.which("chromedriver"), next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class DriverError(Exception):
    pass


class Browser:
    def __init__(self, chromedriver, chromium):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base = f"http://127.0.0.1:{port}"
        self.session = None
        self.process = subprocess.Popen([chromedriver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1280,900"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            arguments.append("--no-sandbox")
        try:
            self.wait_until_ready()
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                "goog:chromeOptions": {"binary": chromium, "args": arguments}}}})
            self.session = f"/session/{answer['sessionId']}"
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self):
        for _ in range(100):
            try:
                if self.call("GET", "/status")["ready"]:
                    return
            except (OSError, DriverError):
                pass
            time.sleep(0.1)
        raise DriverError("chromedriver did not start")

    def call(self, method, path, body=None):
        data = None if method == "GET" or method == "DELETE" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise DriverError(json.load(error)["value"]["message"]) from None

    def do(self, method, path, body=None):
        return self.call(method, self.session + path, body)

    def close(self):
        try:
            if self.session:
                self.do("DELETE", "")
        except (OSError, DriverError):
            pass
        self.process.terminate()
        self.process.wait(10)

    def open(self, url):
        self.do("POST", "/url", {"url": url})

    def js(self, script, *arguments):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def js_async(self, script, *arguments):
        """The script calls its last argument with the result."""
        return self.do("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.do("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.do("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.do("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def fill(self, selector, text):
        self.do("POST", f"/element/{self.find(selector)}/clear")
        self.type(selector, text)

    def press(self, *names):
        """Keys to whatever has the focus; 'Shift+Enter' holds the first down."""
        steps = []
        for name in names:
            keys = [KEYS.get(key, key) for key in name.split("+")]
            steps += [{"type": "keyDown", "value": key} for key in keys] + [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def hover(self, selector, x=0, y=0):
        """Moves the pointer to (x, y) from the element's middle."""
        origin = {ELEMENT: self.find(selector)}
        self.do("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [
            {"type": "pointerMove", "duration": 0, "origin": origin, "x": x, "y": y}]}]})

    def cdp(self, command, **parameters):
        return self.do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width, height):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def prefer(self, **features):
        """prefer(color_scheme="dark")"""
        self.cdp("Emulation.setEmulatedMedia",
                 features=[{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()])

    def console(self):
        return self.do("POST", "/se/log", {"type": "browser"})

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.do("GET", "/screenshot")))
