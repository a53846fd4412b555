"""An agent for sums: works out what the model writes between <calculator> and </calculator>.

A program of a recipe (agent.command) that talks to the model over HTTP, as to any OpenAI server.
"""

import json
import os
import re
import urllib.request

MAX_TURNS = 3


def say(messages: list[dict[str, str]]) -> dict[str, str]:
    """The model's next message."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "model", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        message: dict[str, str] = json.load(response)["choices"][0]["message"]
    return message


def main() -> None:
    with open(os.environ["ASYNCRL_TASK"], encoding="utf-8") as file:
        messages = [{"role": "user", "content": json.load(file)["prompt"]}]
    for _ in range(MAX_TURNS):
        reply = say(messages)
        call = re.search(r"<calculator>([0-9]{1,9})\+([0-9]{1,9})</calculator>$", reply["content"])
        if call is None:
            return
        output = f"<output>{int(call[1]) + int(call[2])}</output>"
        messages += [reply, {"role": "user", "content": output}]


if __name__ == "__main__":
    main()
