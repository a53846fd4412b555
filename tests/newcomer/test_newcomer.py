"""What a new user types and gets wrong: one table of input, sentence, exit code.

Each case runs in a folder with a recipe that would run, spoils one thing and calls the command line. Nothing
ends in a traceback, and nothing is written where a command refuses.
"""

import gzip
import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.newcomer import CONFIG, RECIPE, begin_run, row, write_project, write_zeros
from huggingface_hub import constants

from asyncrl.commands import main as cli

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    name: str
    words: str
    """The command line behind `asyncrl`, as a shell reads it."""
    said: str
    """A part of what is printed, to standard error unless the exit code is 0."""
    code: int = 2
    change: Change = lambda folder: None


def train_row(line: str) -> Change:
    """train.jsonl has a good row and this one."""
    return lambda folder: (folder / "train.jsonl").write_text(f"{row()}\n{line}\n")


def train_bytes(content: bytes) -> Change:
    return lambda folder: (folder / "train.jsonl").write_bytes(content)


def chat_row(*messages: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "model" / "chat_template.jinja").write_text(
            "{% for m in messages %}{{ m['role'] }}={{ m['content'] }};{% endfor %}"
        )
        train_row(row(list(messages)))(folder)

    return change


def recipe(old: str, new: str) -> Change:
    assert old in RECIPE
    return lambda folder: (folder / "recipe.yaml").write_text(RECIPE.replace(old, new))


def text(name: str, content: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    return change


def content(name: str, raw: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(raw)


def config(**changes: Any) -> Change:
    return lambda folder: (folder / "model" / "config.json").write_text(json.dumps(CONFIG | changes))


def without(name: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def both(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def a_run(folder: Path) -> None:
    begin_run(folder)


CHECK = "check recipe.yaml"
USER = {"role": "user", "content": "1+1="}

TABLE = [
    # The command line.
    Case("no command", "", "usage: asyncrl COMMAND", 0),
    Case("help", "--help", "usage: asyncrl COMMAND", 0),
    Case("a misspelt command", "tain recipe.yaml", 'no command "tain". Did you mean train?'),
    Case("an unknown command", "frobnicate", 'asyncrl has no command "frobnicate"'),
    Case("no recipe", "check", "RECIPE"),
    Case("only an override", "check seed=1", "expected one recipe, found none"),
    Case("two recipes", "check recipe.yaml other.yaml",
         "expected one recipe, found recipe.yaml and other.yaml"),
    Case("an unknown option", f"{CHECK} --frobnicate", "unrecognized arguments: --frobnicate"),
    Case("a good recipe", CHECK, "4 training tasks, 4 held-out tasks", 0),
    Case("overrides before the recipe", "check seed=7 recipe.yaml rollout.max_staleness=1", "seed: 7", 0),
    Case("an override between options", "plan --gpu-memory-gb 80 seed=7 recipe.yaml", "parameters", 0),
    Case("a recipe called like an override", "check a=b", "name: mine", 0, text("a=b", RECIPE)),
    # The recipe file.
    Case("a missing recipe", "check nowhere.yaml", "There is no recipe at nowhere.yaml"),
    Case("a folder", "check model", "model is a folder, not a recipe"),
    Case("a train of a run folder", "train runs/old", "The recipe of a run is recipe.yaml", 2, a_run),
    Case("broken YAML", CHECK, "cannot be read as YAML", 2, text("recipe.yaml", "a: [")),
    Case("an empty recipe", CHECK, "recipe.yaml is empty, expected the sections", 2, text("recipe.yaml", "")),
    Case("JSON lines", "check train.jsonl", "looks like rows of data, expected a recipe"),
    Case("a byte order mark", CHECK, "4 training tasks", 0, recipe("name", "\ufeffname")),
    Case("an unknown section", CHECK, "unknown key datas. Did you mean data?", 2, recipe("data:", "datas:")),
    Case("an unknown key", CHECK, "Did you mean heldout?", 2, recipe("heldout:", "held_out:")),
    Case("no data", f"{CHECK} data=null", "data is null: expected a section with keys"),
    Case("no held-out data", f"{CHECK} data.heldout=null", "or set evaluation.every_steps to 0"),
    Case("an empty section", CHECK, "model is null", 2, recipe("  path: model\n", "")),
    # Values.
    Case("a word for a number", f"{CHECK} seed=many", 'override "seed=many": seed is \'many\''),
    Case("a negative number", f"{CHECK} trainer.num_steps=-1", "trainer.num_steps is -1"),
    Case("a fraction for a count", f"{CHECK} trainer.num_steps=1.5", "trainer.num_steps is 1.5"),
    Case("a word for yes or no", f"{CHECK} data.is_shuffled=perhaps", "data.is_shuffled is 'perhaps'"),
    Case("not a number", f"{CHECK} rollout.temperature=.nan", "rollout.temperature is nan"),
    Case("an unknown advantage", f"{CHECK} algorithm.advantage=gpro", "algorithm.advantage is 'gpro'"),
    Case("an unknown type", f"{CHECK} model.dtype=float8", "'bfloat16' or 'float16'"),
    Case("a misspelt override", f"{CHECK} rollout.max_stalenes=0",
         'override "rollout.max_stalenes=0": unknown'),
    Case("a broken override", f"{CHECK} seed=[", '"seed=[": the value is not YAML'),
    Case("groups of one", f"{CHECK} rollout.samples_per_group=1", 'override "rollout.samples_per_group=1"'),
    Case("a layout that does not fit", f"{CHECK} trainer.num_processes=3 trainer.parallel.tensor=2",
         "multiple"),
    # Paths.
    Case("a missing data file", f"{CHECK} data.train=x.jsonl", "x.jsonl, which does not exist. Set data"),
    Case("the rule about paths", f"{CHECK} data.train=x.jsonl", "relative to the recipe's folder"),
    Case("a folder for data", f"{CHECK} data.train=model", "'train' cannot be read"),
    Case("a missing model", f"{CHECK} model.path=x", "which is not a folder. Expected a Hugging Face"),
    Case("the rule about the model's path", f"{CHECK} model.path=x",
         "those on the command line to the current"),
    Case("a file for a run folder", f"{CHECK} run_folder=train.jsonl", "is a file. Name a folder"),
    Case("a full run folder", f"{CHECK} run_folder=model", "is not empty and holds no run"),
    Case("a recipe from another folder", "check sub/r.yaml", "4 training tasks", 0, both(
        text("sub/r.yaml", RECIPE.replace(": model", ": ../model").replace(": train", ": ../train")
             .replace(": heldout", ": ../heldout")))),
    # Rows.
    Case("a misspelt prompt", CHECK, 'Did you mean "prompt" where it says "promt"?', 2,
         train_row('{"promt": "1+1=", "answer": "2"}')),
    Case("a misspelt verifier", CHECK,
         'train.jsonl:2: the row has prompt, answer, verfier. Did you mean "verifier"',
         2, train_row(row(verfier="math"))),
    Case("other keys in a row", CHECK, "2 training tasks", 0,
         train_row(row("2+2=", "4", source="x", verified=True))),
    Case("an empty prompt", CHECK, 'train.jsonl:2: "prompt" is \'\'', 2, train_row(row(""))),
    Case("a number for a prompt", CHECK, 'train.jsonl:2: "prompt" is \'3\'', 2, train_row(row(3))),
    Case("no messages", CHECK, "expected text or a list of chat messages", 2, train_row(row([]))),
    Case("an answer that cannot be read", CHECK, "train.jsonl:2: ", 2, train_row(row(answer="\\frac{1}{"))),
    Case("a number for a verifier", CHECK, 'train.jsonl:2: "verifier" is', 2, train_row(row(verifier=7))),
    Case("a list of options", CHECK, 'train.jsonl:2: "verifier" is', 2,
         train_row(row(verifier={"name": "math", "options": [1]}))),
    Case("a verifier with a mistake in it", CHECK, "own.py failed to load: NameError", 2,
         both(text("own.py", "frobnicate"), train_row(row(verifier="./own.py:V")))),
    Case("half a surrogate pair", CHECK, "train.jsonl:2: '\\ud83d' is half of a surrogate pair", 2,
         train_row('{"prompt": "\\ud83d", "answer": "2"}')),
    Case("a recipe of comments", CHECK, "recipe.yaml is empty", 2, text("recipe.yaml", "# nothing\n")),
    Case("keys that are numbers", CHECK, "the key 1 is a whole number, expected a name. Known here: name",
         2, text("recipe.yaml", f"{RECIPE}1: 2\n")),
    Case("a key that is empty", f"{CHECK} 'rollout={{null: 3}}'",
         "in rollout, the key null is null, expected a name. Known here: groups_per_batch"),
    Case("an option that is a number", f"{CHECK} 'verifying.options={{1: 2}}'",
         "in verifying.options, the key 1 is a whole number, expected a name."),
    Case("a list for a section", f"{CHECK} 'rollout=[1]'", "rollout is [1]: expected a section"),
    Case("true for text", f"{CHECK} name=true", "name is true: expected text."),
    Case("a recipe in Latin-1", CHECK, "recipe.yaml:2: not UTF-8 text: byte 0xe9 in column 7", 2,
         content("recipe.yaml", b"# a\nname: \xe9\n")),
    Case("a table for a recipe", "check rows.csv", "looks like rows of data, expected a recipe", 2,
         text("rows.csv", "prompt,answer\n")),
    Case("a table for rows", f"{CHECK} data.train=rows.csv", "1 training tasks", 0,
         text("rows.csv", "prompt,answer\n1+1=,2\n")),
    Case("packed rows", f"{CHECK} data.train=train.jsonl.gz", "Unpack it with: gunzip -k", 2,
         content("train.jsonl.gz", gzip.compress(row().encode()))),
    Case("a table under the name of rows", CHECK, "It looks like CSV: rename it to", 2,
         train_bytes(b"prompt,answer\n1+1=,2\n")),
    Case("a column with dots in its name",
         f"{CHECK} 'data.train={{path: train.jsonl, columns: {{prompt: a.b, answer: answer}}}}'",
         "1 training tasks", 0, train_bytes(b'{"a.b": "1+1=", "answer": "2"}\n')),
    Case("an object that is null",
         f"{CHECK} 'data.train={{path: train.jsonl, columns: {{prompt: prompt, answer: a.b}}}}'",
         'train.jsonl:2: "a" is null in this row, so it has no "a.b"', 2,
         train_bytes(b'{"prompt": "1+1=", "a": {"b": "2"}}\n{"prompt": "1+1=", "a": null}\n')),
    Case("a prompt's object that is null",
         f"{CHECK} 'data.train={{path: train.jsonl, columns: {{prompt: a.b, answer: answer}}}}'",
         'train.jsonl:1: "a" is null in this row, so it has no "a.b"', 2,
         train_bytes(b'{"answer": "2", "a": null}\n')),
    Case("Latin-1", CHECK, "train.jsonl:2: not UTF-8", 2,
         train_bytes(f"{row()}\n".encode() + b'{"prompt": "\xe9"}')),
    Case("a byte order mark in the data", CHECK, "1 training tasks", 0,
         train_bytes(b"\xef\xbb\xbf" + row().encode())),
    Case("a line separator inside of text", CHECK, "2 training tasks", 0,
         train_row('{"prompt": "1+1=\u2028", "answer": "2"}')),
    Case("nested without end", CHECK, "nested too deeply", 2, train_row('{"prompt": ' + "[" * 200_000)),
    # Chat rows.
    Case("chat messages", CHECK, "2 training tasks", 0, chat_row(USER)),
    Case("a prefill", CHECK, "2 training tasks", 0,
         chat_row(USER, {"role": "assistant", "content": "think"})),
    Case("no role", CHECK, "train.jsonl:2: message 1 is", 2, chat_row({"content": "x"})),
    Case("a word for a message", CHECK, 'expected an object with "role" and "content"', 2, chat_row("hello")),
    Case("no content", CHECK, 'message 2 has no "content"; it has role', 2, chat_row(USER, {"role": "user"})),
    Case("null content", CHECK, "train.jsonl:2: message 1: \"content\" is 'None'", 2,
         chat_row({"role": "user", "content": None})),
    Case("a number for content", CHECK, "message 1: \"content\" is '3', expected text", 2,
         chat_row({"role": "user", "content": 3})),
    Case("content in parts", CHECK, '"content" is a list of parts, expected text', 2,
         chat_row({"role": "user", "content": [{"type": "text", "text": "1"}]})),
    # The model folder.
    Case("no config.json", CHECK, "it is not a Hugging Face model folder", 2, without("model/config.json")),
    Case("no tokenizer", CHECK, "has no tokenizer.json", 2, without("model/tokenizer.json")),
    Case("a broken tokenizer", CHECK, "cannot be read as a tokenizer", 2, text("model/tokenizer.json", "{}")),
    Case("a broken tokenizer_config.json", CHECK, "is not JSON", 2, text("model/tokenizer_config.json", "{")),
    Case("a broken config.json", CHECK, "config.json is not JSON", 2, text("model/config.json", "{")),
    Case("an unknown architecture", CHECK, "architecture GPT2LMHeadModel cannot be trained", 2,
         config(architectures=["GPT2LMHeadModel"])),
    Case("a model in part", CHECK, "it was not copied or downloaded in full", 2,
         lambda folder: write_zeros(folder / "model", num_missing_bytes=9)),
    Case("weights of 8 bits", CHECK, "is stored as F8_E4M3; a quantized model cannot be trained", 2,
         lambda folder: write_zeros(folder / "model", dtype="F8_E4M3")),
    Case("a quantized model", CHECK, "the model is quantized (gptq)", 2,
         config(quantization_config={"quant_method": "gptq"})),
    Case("weights of another model", CHECK, "but config.json makes it", 2, config(hidden_size=32)),
    Case("a model that nothing stops", CHECK, "names no eos_token_id", 2,
         both(without("model/generation_config.json"), config(eos_token_id=None))),
    Case("a config.json that is a list", CHECK, "config.json holds a list, expected an object", 2,
         text("model/config.json", "[]")),
    Case("architectures that are a number", CHECK, "architecture missing cannot be trained", 2,
         config(architectures=3)),
    Case("a size that is a word", CHECK, "config.json: hidden_size is 'x', expected a whole number above 0",
         2, config(hidden_size="x")),
    Case("no layers", CHECK, "num_hidden_layers is -1, expected a whole number above 0", 2,
         config(num_hidden_layers=-1)),
    Case("rotary positions that are a list", CHECK, "rope_scaling is [1], expected an object", 2,
         config(rope_scaling=[1])),
    Case("a word for eos_token_id", CHECK, "config.json: eos_token_id is 'a', expected a token id", 2,
         both(without("model/generation_config.json"), config(eos_token_id="a"))),
    Case("words for eos_token_id", CHECK, 'eos_token_id is ["a"], expected a token id', 2,
         both(without("model/generation_config.json"), config(eos_token_id=["a"]))),
    Case("a chat template without a name", CHECK,
         'tokenizer_config.json: chat_template has the entry {\'foo\': 1}, expected an object with "name"', 2,
         text("model/tokenizer_config.json", '{"chat_template": [{"foo": 1}]}')),
    Case("a broken special_tokens_map.json", CHECK, "special_tokens_map.json is not JSON", 2,
         both(text("model/chat_template.jinja", "x"), text("model/special_tokens_map.json", "{"))),
    Case("a special_tokens_map.json that is a list", CHECK,
         "special_tokens_map.json holds a list, expected an object", 2,
         both(text("model/chat_template.jinja", "x"), text("model/special_tokens_map.json", "[]"))),
    Case("a tokenizer_config.json that is a list", CHECK,
         "tokenizer_config.json holds a list, expected an object", 2,
         text("model/tokenizer_config.json", "[]")),
    # Servers elsewhere.
    Case("a server that does not answer", f"{CHECK} serving.servers=[http://127.0.0.1:1]",
         "which does not answer"),
    Case("a secure server that does not answer", f"{CHECK} serving.servers=['https://127.0.0.1:1']",
         "https://127.0.0.1:1, which does not answer: [Errno 111]"),
    Case("a server without http", f"{CHECK} serving.servers=['127.0.0.1:30000']",
         "expected a URL such as http://"),
    Case("a port that is a word", f"{CHECK} serving.servers=['http://a:b']", "which is no URL"),
    # Commands on runs.
    Case("chat with a recipe", "chat recipe.yaml", "recipe.yaml is not a run folder"),
    Case("chat before a checkpoint", "chat runs/old", "no checkpoint yet. Use --base", 2, a_run),
    Case("chat below zero", "chat runs/old --temperature -1", "expected 0 or more", 2, a_run),
    Case("view without a run", "view nowhere", "so it is not a run folder"),
    Case("reproduce without a run", "reproduce nowhere 1", "is not a run folder"),
    Case("reproduce before a step", "reproduce runs/old 1", "nothing was trained", 2, a_run),
    Case("a word for a step", "reproduce runs/old one", "'one' is no step", 2, a_run),
    Case("no run to report", "report", "Name one run folder or more"),
    Case("a report without a run", "report nowhere", "nowhere is not a run folder"),
    Case("a format that nobody writes", "report runs/old --format pdf", "'pdf' is not one of html", 2, a_run),
    Case("servers without a run", "servers nowhere list", "is not the folder of a live run"),
    Case("an unknown change of servers", "servers runs/old drop", "invalid choice: 'drop'", 2, a_run),
    Case("evaluation of a missing checkpoint", "eval recipe.yaml --checkpoint x",
         "--checkpoint is x, which does not exist"),
    # Names that are almost right.
    Case("a misspelt model", f"{CHECK} model.path=modle", "/project/model?"),
    Case("a model in capitals", f"{CHECK} model.path=Model", "/project/model?"),
    Case("a hub id in small letters", f"{CHECK} model.path=qwen/qwen3-0.6b", "Did you mean Qwen/Qwen3-0.6B?",
         2, lambda folder: (folder.parent / "hub" / "models--Qwen--Qwen3-0.6B").mkdir(parents=True)),
    Case("a hub id of another owner", f"{CHECK} model.path=Ali/Qwen3-0.6B", "Did you mean Qwen/Qwen3-0.6B?",
         2, lambda folder: (folder.parent / "hub" / "models--Qwen--Qwen3-0.6B").mkdir(parents=True)),
    Case("a misspelt step of a run", f"{CHECK} model.path=runs/old@bset", "Did you mean best?", 2, a_run),
    Case("a step of a misspelt run", f"{CHECK} model.path=runs/odl@best", "/runs/old?", 2, a_run),
    Case("a misspelt run as a model", f"{CHECK} model.path=runs/odl", "Did you mean runs/old?", 2, a_run),
    Case("a misspelt data file", f"{CHECK} data.train=trian.jsonl", "/project/train.jsonl?"),
    Case("another ending of a data file", f"{CHECK} data.train=train.json", "/project/train.jsonl?"),
    Case("a verifier in capitals", f"{CHECK} verifying.default=MATH", "Did you mean 'math'?"),
    Case("a misspelt file of a verifier", f"{CHECK} verifying.default=./rewrad.py:V",
         "Did you mean 'reward.py'?", 2, text("reward.py", "x = 1")),
    Case("a misspelt file to evaluate on", "eval recipe.yaml heldot.jsonl", "/project/heldout.jsonl?"),
    Case("a misspelt place", "eval recipe.yaml --at bset", "Did you mean best?"),
    Case("a misspelt checkpoint", "eval recipe.yaml --checkpoint modle", "Did you mean model?"),
    Case("status of a misspelt run", "status runs/odl", "Did you mean runs/old?", 2, a_run),
    Case("status of a run by its name alone", "status old", "Did you mean runs/old?", 2, a_run),
    Case("chat with a misspelt run", "chat runs/odl", "Did you mean runs/old?", 2, a_run),
    Case("comparison of one run", "compare runs/old", "Name two or more run folders", 2, a_run),
    Case("a misspelt choice", "select runs/old --out a.jsonl --choose pair", "Did you mean pairs?", 2, a_run),
    Case("an unknown GPU", "plan recipe.yaml --device H1000 --simulate", "Did you mean H100?"),
    Case("an option of the doctor", "doctor --jsno", "unrecognized arguments: --jsno"),
    Case("a file for a first recipe", "init recipe.yaml", "expected a folder to write into"),
    Case("a recipe for a chain", "chain recipe.yaml", "holds no list `stages`"),
    # Verifiers and the sandbox by themselves.
    Case("a misspelt file of answers", "verify trian.jsonl", "Did you mean train.jsonl?"),
    Case("nothing to verify", "verify", "expected a file of JSON lines, or - for standard input"),
    Case("answers without a response", "verify train.jsonl", "train.jsonl:1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    write_project(folder)
    write_zeros(folder / "model")
    return folder


@pytest.fixture
def here(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, in which the test runs."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = shutil.copytree(project, tmp_path / "project")
    monkeypatch.chdir(folder)
    return folder


def call(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code = cli.main(words)
    except SystemExit as end:  # of argparse
        code = int(end.code or 0)
    out, err = capfd.readouterr()
    return code, out, err


def files(folder: Path) -> set[Path]:
    """Reading a journal makes SQLite create its two companions, importing a file its bytecode."""
    ours = (path for path in folder.rglob("*") if path.suffix not in (".sqlite-shm", ".sqlite-wal", ".pyc"))
    return {path for path in ours if path.name != "__pycache__"}


def test_the_table_has_no_case_twice() -> None:
    assert len({case.name for case in TABLE}) == len(TABLE) >= 80


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name.replace(" ", "_"))
def test_the_command_line_says(
    case: Case, here: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    case.change(here)
    before = files(here)
    code, out, err = call(shlex.split(case.words), capfd)
    # Warnings are logged, which pytest takes away from standard error.
    err += caplog.text
    assert (code, case.said in (out + err if code == 0 else err)) == (case.code, True), out + err
    assert "Traceback" not in out + err
    assert files(here) == before
