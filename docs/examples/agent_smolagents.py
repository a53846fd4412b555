"""An agent by smolagents: the model calls a calculator, then `final_answer`. `make setup AGENTS=1`.

agent:
  command: [python, agent_smolagents.py]
"""

import json
import os

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def multiply(a: float, b: float) -> float:
    """The product of two numbers.

    Args:
        a: One number.
        b: The other one.
    """
    return a * b


with open(os.environ["ASYNCRL_TASK"]) as file:
    task = json.load(file)["prompt"]
model = OpenAIModel("model", os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent([multiply], model, max_steps=4)
agent.run(task)
