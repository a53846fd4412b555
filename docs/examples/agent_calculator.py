"""An agent by OpenAI's client: the model may call a calculator, and its last message is the answer.

agent:
  command: [python, agent_calculator.py]
"""

import json
import os

import openai

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

with open(os.environ["ASYNCRL_TASK"]) as file:
    messages = json.load(file)["messages"]
client = openai.OpenAI()
for _ in range(5):
    reply = client.chat.completions.create(model="model", messages=messages, tools=[TOOL]).choices[0].message
    messages.append(reply.model_dump())
    if not reply.tool_calls:
        break
    for call in reply.tool_calls:
        given = json.loads(call.function.arguments)
        try:
            result = str(given["a"] * given["b"])
        except (KeyError, TypeError) as error:
            result = f"error: {error!r}"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
