"""Program: which options the installed SGLang has, and what it says against a command line. Starts no server.

    python -m asyncrl.serving.engine.options --page-size many

Prints one JSON object: "sglang", its version; "options", all that its parser has; "refusal", the parser's
sentence about the arguments, null where it takes them."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version


class _Parser(argparse.ArgumentParser):
    """Raises ValueError where SGLang's own would print and end the process."""

    def error(self, message):
        raise ValueError(message)


def describe(arguments: Sequence[str]) -> dict[str, object]:
    """Object that `main` prints, for arguments behind --model-path."""
    from sglang.srt.server_args import ServerArgs

    parser = _Parser(add_help=False)
    ServerArgs.add_cli_args(parser)
    refusal = None
    try:
        parser.parse_args(["--model-path", "none", *arguments])
    except ValueError as error:
        refusal = str(error)
    options = sorted(name for name in parser._option_string_actions if name.startswith("--"))
    return {"sglang": version("sglang"), "options": options, "refusal": refusal}


def main() -> None:
    # SGLang may print as it is imported.
    output, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps(describe(sys.argv[1:])), file=output)


if __name__ == "__main__":
    main()
