#!/usr/bin/env python3
"""Has a real agent finish a turn with a tool against `quire serve`, by hand: Codex (openai-codex-cli-bin) or Claude Code (claude-agent-sdk).

  quire synth --shape tiny -o tiny.gguf
  unshare -n sh -c 'ip link set lo up; python3 tests/agents/agent_turn.py codex --quire build/release/quire --model tiny.gguf'

The Python that runs it has the agent's package. The model has random weights: conductor.py says what it does. With `unshare -n` there is no
network but this machine's own. Exits with 1 if the turn was not finished.
"""
import argparse
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))
from conductor import ANSWER, Conductor  # noqa: E402
from served import KEY, Served  # noqa: E402

QUESTION = "What time is it in Zurich? Ask the clock."


def quiet(folder):
    """The environment of an agent that writes to `folder` and calls nobody but the server."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TERM")}
    return {**kept, "HOME": folder, "DISABLE_TELEMETRY": "1", "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DO_NOT_TRACK": "1", "ENABLE_TOOL_SEARCH": "false"}


def codex(url, folder, _):
    import codex_cli_bin
    program = pathlib.Path(codex_cli_bin.__file__).parent / "bin" / "codex"
    home = pathlib.Path(folder) / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(f"""
model = "tiny"
model_provider = "quire"
model_context_window = 120000
approval_policy = "never"
sandbox_mode = "read-only"
check_for_update_on_startup = false
web_search = "disabled"

[analytics]
enabled = false

[feedback]
enabled = false

[model_providers.quire]
name = "quire"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "QUIRE_KEY"

[mcp_servers.clock]
command = "{sys.executable}"
args = ["{HERE / 'clock_mcp.py'}"]
default_tools_approval_mode = "approve"
""")
    done = subprocess.run([program, "exec", "--skip-git-repo-check", "--json", QUESTION], cwd=folder, stdin=subprocess.DEVNULL,
                          env={**quiet(folder), "CODEX_HOME": str(home), "QUIRE_KEY": "any"}, capture_output=True, text=True, timeout=900)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for event in said:
        print("   ", json.dumps(event)[:300])
    if done.returncode:
        print(done.stderr[-2000:])
    items = [event["item"] for event in said if event.get("type") == "item.completed"]
    called = [item for item in items if item.get("type") == "mcp_tool_call"]
    words = [item.get("text", "") for item in items if item.get("type") == "agent_message"]
    return bool(called) and "12:30" in json.dumps(called), " ".join(words)


def claude(url, folder, all_tools):
    from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, query, tool
    asked = []

    @tool("now", "Tells the time.", {"type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
                                     "required": ["zone"], "additionalProperties": False})
    async def now(arguments):
        asked.append(arguments)
        return {"content": [{"type": "text", "text": "It is 12:30 in " + arguments["zone"]}]}

    words = []

    async def turn():
        options = ClaudeAgentOptions(
            model="tiny", max_turns=4, cwd=folder, tools=None if all_tools else ["Read"], mcp_servers={"clock": create_sdk_mcp_server("clock", tools=[now])},
            allowed_tools=["mcp__clock__now"], setting_sources=[],
            env={**quiet(folder), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "any", "ANTHROPIC_SMALL_FAST_MODEL": "tiny"})
        async for message in query(prompt=QUESTION, options=options):
            print("   ", repr(message)[:300])
            for block in getattr(message, "content", None) or []:
                if hasattr(block, "text"):
                    words.append(block.text)

    asyncio.run(turn())
    return bool(asked) and asked[0].get("zone") in ("UTC", "CET"), " ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", choices=["codex", "claude"])
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", default="65536")
    parser.add_argument("--all-tools", action="store_true", help="of Claude Code: not only Read and the clock, which takes 56,000 tokens")
    given = parser.parse_args()
    served = Served(given.quire, "-m", given.model, "--ctx", given.context, "--model-name", "tiny")
    conductor = Conductor(served.url, "mcp__clock__now", KEY)
    with tempfile.TemporaryDirectory() as folder:
        called, words = (codex if given.agent == "codex" else claude)(conductor.url, folder, given.all_tools)
    for path, status, prompt, cached in conductor.seen:
        share = f", {cached / prompt:.1%} of them cached" if prompt else ""
        print(f"{path}: {status}, {prompt} prompt tokens{share}")
    for refusal in conductor.refused:
        print("refused:", *refusal)
    if conductor.unknown:
        print("the tool was not among", conductor.unknown[0])
    print(f"the tool was {'called' if called else 'NOT called'}; the agent said: {words[:200]}")
    served.close()
    return 0 if called and ANSWER in words else 1


if __name__ == "__main__":
    sys.exit(main())
