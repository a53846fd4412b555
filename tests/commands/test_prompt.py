"""`asyncrl prompt` prints what the model sees of a row, and `check` accepts data as it is published."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fakes.commands import Command, Printed
from fakes.newcomer import write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path)
    rows = [{"question": f"{n}+2=", "answer": f"so\n#### {n + 2}"} for n in range(3)]
    (tmp_path / "gsm.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"question": "x", "answer": "?"}])))
    table = [{"prompt": f"{n}+3=", "reward_model": {"ground_truth": str(n + 3)}} for n in range(2)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "verl.parquet")
    return tmp_path


Run = Callable[..., Printed]


@pytest.fixture
def run(project: Path, command: Command) -> Run:
    """Runs a command on the recipe."""
    return lambda name, *words, code=0: command(name, project / "recipe.yaml", *words, code=code)


def test_a_prompt_is_shown_with_template_tokens_stops_gold_and_verifier(project: Path, run: Run) -> None:
    source = f"data.train={{path: {project}/gsm.jsonl, columns: gsm8k}}"
    lines = run("prompt", source, "prompt={template: '<s>{{ question }}'}", "--row", "2").out.splitlines()
    assert lines[0] == f"row        {project}/gsm.jsonl:2"
    assert lines[1] == 'template   "<s>{{ question }}"'
    assert lines[3].startswith("----") and "1+2=" in lines[4] and lines[5].startswith("----")
    assert lines[6].startswith("stops at   ") and "(rollout.max_new_tokens)" in lines[6]
    assert lines[7:] == ['gold       "3"', "verifier   math"]


def test_tokens_are_listed_when_asked_for(project: Path, run: Run) -> None:
    out = run("prompt", "--heldout", "--tokens").out
    num_tokens = int(out.partition("prompt     ")[2].split()[0])
    table = out.partition("\ntokens\n")[2].partition("\nstops at")[0].splitlines()
    assert len(table) == num_tokens and all(line.split()[0].isdecimal() for line in table)


def test_a_gold_that_cannot_be_parsed_is_said(project: Path, run: Run) -> None:
    (project / "train.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "\\frac{1}{"}))
    assert "verifier   math, which cannot parse the gold: " in run("prompt").out


def test_rows_are_counted_over_those_that_the_filter_keeps(project: Path, run: Run) -> None:
    levels = [1, 9, None, 2, 9, 3]
    rows = [{"prompt": f"{n}+4=", "answer": str(n + 4), "level": level} for n, level in enumerate(levels)]
    (project / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = "data.filter=level < 9"
    lines = run("prompt", words, "--row", "2").out.splitlines()
    assert lines[0] == f"row        {project}/train.jsonl:4"
    assert lines[1] == "filter     level < 9: row 2 of those that it keeps; it leaves out 2 before it"
    said = run("prompt", words, "--row", "4", code=2).err
    assert "--row is 4, but data.train has 3 rows that data.filter keeps, of 6." in said
    # Held-out rows have no filter.
    assert "filter " not in run("prompt", words, "--heldout").out


def test_verify_data_checks_the_rows_that_the_filter_keeps(project: Path, run: Run) -> None:
    rows = [
        {"prompt": "1+1=", "answer": "2", "level": 1},
        {"prompt": "?", "answer": "\\frac{1}{", "level": 9},
    ]
    (project / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said = run("verify-data", "data.filter=level < 9").out
    assert "1 rows, 1 golds or solutions graded as their own answer; data.filter leaves out 1 more" in said
    assert said.count("leaves out") == 1
    assert "leaves out" not in run("verify-data", code=1).out


def test_variables_of_the_chat_template_are_shown_and_obeyed(project: Path, run: Run) -> None:
    template = "{{ messages[0].content }}{% if enable_thinking is false %}5{% endif %}"
    (project / "model" / "chat_template.jinja").write_text(template)
    row = {"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}
    (project / "train.jsonl").write_text(json.dumps(row))
    told = "prompt={chat_template_kwargs: {enable_thinking: false}}"
    lines = run("prompt", told).out.splitlines()
    assert lines[1:3] == ["template   none", 'told       {"enable_thinking": false}']
    assert lines[5] == "1+1=5"
    (project / "heldout.jsonl").write_text(json.dumps({**row, "answer": "3"}))
    assert "# prompts   those of the rows, enable_thinking=false" in run("check", told).out
    assert run("prompt").out.splitlines()[4] == "1+1="


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("prompt={template: r1, chat_template_kwargs: {enable_thinking: false}}",),
            "but prompt.template 'r1' writes text, which the chat template never sees",
        ),
        (("prompt={chat_template_kwargs: {enable_thinking: false}}",), "has no chat template to read it"),
        (("--row", "9999"), "--row is 9999, but data.train has "),
        (("--heldout", "data.heldout=null", "evaluation.every_steps=0"), "has no data.heldout"),
        (("prompt={template: r2}",), 'prompt.template is "r2", expected chat, plain'),
    ],
)
def test_what_cannot_be_shown_is_refused(
    project: Path, words: tuple[str, ...], sentence: str, run: Run
) -> None:
    assert sentence in run("prompt", *words, code=2).err


def test_verify_data_lists_the_broken_golds_of_each_source_and_of_a_file(
    project: Path, run: Run, command: Command
) -> None:
    sources = [{"path": f"{project}/gsm.jsonl", "columns": "gsm8k"}, f"{project}/train.jsonl"]
    out = run("verify-data", f"data.train={json.dumps(sources)}", code=1).out
    assert f"data.train {project}/gsm.jsonl: 4 rows" in out and f"data.train {project}/train.jsonl: " in out
    assert "broken golds     1 of 4 cannot be parsed" in out and f"    {project}/gsm.jsonl:4: " in out
    assert "2 rows, 2 golds" in command("verify-data", project / "verl.parquet", "--columns", "verl").out


GAME = """
from asyncrl.turns import Observation

class Game:
    def start(self, row):
        return None

    def step(self, text):
        return Observation("again")
"""
TEMPLATES = Path(__file__).parents[1] / "model" / "chat_templates"


def test_a_recipe_with_tools_shows_them_how_they_are_called_and_what_comes_back(
    project: Path, run: Run
) -> None:
    words = ("turns={tools: [calculator], call_format: tags}",)
    out = run("prompt", *words).out
    assert 'stops at   <eos> (1), "</calculator>", or after' in out
    assert "tool       calculator(expression): Works out an arithmetic expression" in out
    assert "call       tags: <calculator>...</calculator>" in out
    assert "answered   by the tool calculator: " in out
    out = run("check", *words).out
    assert "# turns     at most 8 per trajectory, answered: calls of calculator (tags) by the tools" in out
    assert "would rewrite" not in out


def test_an_agent_is_shown_with_what_a_first_call_gives_the_model(project: Path, run: Run) -> None:
    agent = "agent={command: [python, agent.py], columns: [level]}"
    for command in ("prompt", "check"):
        assert "agent needs a chat template, but the model folder" in run(command, agent, code=2).err
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    (project / "model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    program = "python agent.py, started for each trajectory, held-out ones too, at most 64 calls"
    source = f"data.train={{path: {project}/gsm.jsonl, columns: gsm8k}}"
    out = run("prompt", agent, source).out
    assert "\n<user>0+2=;\n" in out and f"agent      {program}\n" in out
    assert "these columns of the row: level (agent.columns)" in out
    assert f"# agent     {program}\n" in run("check", agent).out


def test_a_chat_template_that_rewrites_earlier_turns_is_noted(project: Path, run: Run) -> None:
    (project / "game.py").write_text(GAME)
    template = (TEMPLATES / "qwen3.jinja").read_text()
    (project / "model" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    turns = f"turns={{environment: '{project}/game.py:Game'}}"
    for command, mark in (("prompt", "note       "), ("check", "# note      ")):
        out = run(command, turns).out
        assert f"{mark}the chat template would rewrite earlier turns (it leaves out what stands" in out
    rendered = "prompt={template: chat, history: as_rendered}"
    for command, mark in (("prompt", "note       "), ("check", "# note      ")):
        out = run(command, turns, rendered).out
        assert f"{mark}the chat template rewrites earlier turns (it leaves out what stands" in out
        assert "prompt.history is as_rendered" in out
        assert ("rendered   once a message of the role user follows" in out) == (command == "prompt")
    # Rows of text are no conversation that a template could render.
    for command in ("prompt", "check"):
        said = run(command, turns, "prompt={history: as_rendered}", code=2).err
        assert "prompt.history is as_rendered, but the prompt is text" in said
    # It has no place for a result of a tool.
    tools = "turns={tools: [calculator], call_format: hermes}"
    for command in ("prompt", "check"):
        assert "leaves out the content of a message of the role 'tool'" in run(command, tools, code=2).err


def test_a_stage_that_learns_rows_shows_which_tokens_are_learned(project: Path, command: Command) -> None:
    rows = [{"prompt": "1+2=", "response": "3", "chosen": "3", "rejected": "4"}]
    (project / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (project / "rows.yaml").write_text(
        "name: rows\nmodel: {path: model}\ndata: {train: train.jsonl}\nevaluation: {every_steps: 0}\n"
    )
    for stage, shown in (("sft", ["3"]), ("dpo", ["3", "4"])):
        lines = command("prompt", project / "rows.yaml", f"stage={stage}", "--tokens").out.splitlines()
        assert [line for line in lines if "[learned:" in line and "1+2" in line] == [
            f"1+2=[learned:{text}<eos>]" for text in shown
        ]
        assert sum(line.split()[:1] == ["learned"] for line in lines) == 2 * len(shown)
    said = command("difficulty", project / "rows.yaml", "stage=sft", code=2).err
    assert "the recipe's stage is sft, which learns rows" in said
