"""An agent of a chaos run: two turns, and for some tasks a second conversation. Slow between its calls."""

import json
import os
import time
import urllib.request
from pathlib import Path

AT_WORK = Path(__file__).with_name("at_work")
SECONDS = 0.1


def say(messages):
    """The model's message."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "model", "messages": messages, "max_tokens": 6}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def work():
    mark = AT_WORK / str(os.getpid())
    mark.touch()
    time.sleep(SECONDS)
    mark.unlink()


def main():
    prompt = json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text())["prompt"]
    asked = {"role": "user", "content": prompt}
    work()
    first = say([asked])
    work()
    if int(prompt[0]) % 3 == 0:
        # Another conversation: what it was told is all that the model knows.
        say([{"role": "user", "content": first["content"][:2] or "0"}])
    say([asked, first, {"role": "user", "content": "1"}])


if __name__ == "__main__":
    main()
