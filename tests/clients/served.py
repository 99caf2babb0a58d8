"""A server of the program, for the tests of other people's clients."""
import os
import re
import subprocess

KEY = "sesame"


class Served:
    """The program on a port that was free, until it is closed."""

    def __init__(self, program, *options):
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith(("OPENAI_", "ANTHROPIC_", "OLLAMA_", "QUIRE_"))}
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--grace-seconds", "0", "--api-key", KEY, *options],
            stderr=subprocess.PIPE, text=True, env=environment)
        line = self.process.stderr.readline()
        found = re.search(r"http://\S+:(\d+)", line)
        if not found:
            raise RuntimeError("quire serve did not start: " + line + self.process.stderr.read())
        self.url = f"http://127.0.0.1:{found[1]}"

    def close(self):
        self.process.terminate()
        rest = self.process.stderr.read()
        self.process.stderr.close()
        assert self.process.wait() == 0, rest
