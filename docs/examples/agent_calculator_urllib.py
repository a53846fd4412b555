"""agent_calculator.py without a package: plain HTTP."""

import json
import os
import urllib.request

TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "The product of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


def say(messages: list[dict]) -> dict:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "model", "messages": messages, "tools": [TOOL]}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


with open(os.environ["ASYNCRL_TASK"]) as file:
    messages = json.load(file)["messages"]
for _ in range(5):
    reply = say(messages)
    messages.append(reply)
    if not reply.get("tool_calls"):
        break
    for call in reply["tool_calls"]:
        given = json.loads(call["function"]["arguments"])
        try:
            result = str(given["a"] * given["b"])
        except (KeyError, TypeError) as error:
            result = f"error: {error!r}"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
