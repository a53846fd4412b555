"""A chain as one story: what each stage began with, brought and cost, while it runs and at its end."""

import json
from pathlib import Path

import pytest
import yaml
from fakes.chained_runs import selection, write_chain
from fakes.commands import Command
from fakes.statuses import make_status

from asyncrl.commands import main as cli
from asyncrl.errors import InputError
from asyncrl.observe.terminal.table import Table
from asyncrl.readers.chain.story import ChainStory, read_story
from asyncrl.readers.chain.tables import brought, cost, stages
from asyncrl.run.status import write_status


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def folder(written: Path) -> Path:
    # A run that has been silent while the tests before ran would be taken for a dead one.
    write_status(written.parent / "rl", make_status(state="training", step=2, total_steps=4))
    return written


def cells(table: Table, row: int) -> dict[str, str]:
    return dict(zip(table.header, table.rows[row], strict=True))


def test_each_stage_says_what_it_began_with_and_made(folder: Path) -> None:
    story = read_story(folder)
    assert story.state == "training" and story.remarks == []
    table = stages(story)
    assert (
        cells(table, 0)["began with"] == "/models/base"
        and cells(table, 0)["made"] == "20 lines of 8 of 10 rows"
    )
    assert cells(table, 1)["made"] == "sft, step 4"
    assert cells(table, 2)["began with"] == "sft, step 4"
    assert cells(table, 2)["state"] == "training, step 2 of 4"


def test_what_a_stage_brought_is_paired_over_tasks(folder: Path) -> None:
    (table,) = brought(read_story(folder))
    first, second = (cells(table, row) for row in (0, 1))
    assert first["greedy accuracy"] == "25.0% [14.2, 40.2] -> 75.0% [59.8, 85.8]"
    # 20 of 40 tasks are solved in addition, none is lost: Agresti and Min's interval, by hand.
    assert first["change"].startswith("+50.0 [")
    assert second["change"].startswith("+12.5 [")
    # A column that nothing measured is left out.
    assert table.header == ["", "greedy accuracy", "change", "tokens"]


def test_costs_add_up_over_the_stages(folder: Path) -> None:
    table = cost(read_story(folder))
    assert [row[0] for row in table.rows] == ["1 round1", "2 sft", "all"]
    assert cells(table, 0)["tokens generated"] == "1.6k" and cells(table, 1)["tokens generated"] == "0"
    assert cells(table, 2)["wall time"] == "1:30" and cells(table, 2)["CPU time"] == "2:15"


def test_stages_that_evaluated_differently_are_said_so(tmp_path: Path) -> None:
    chain = write_chain(tmp_path / "new")
    metrics = tmp_path / "new/rl/metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"template": "none"', '"template": "r1"'))
    (remark,) = read_story(chain).remarks
    assert "THE STAGES EVALUATED DIFFERENTLY" in remark and "template none, r1" in remark


def test_the_state_of_a_chain_is_that_of_the_stage_that_it_is_at(tmp_path: Path) -> None:
    chain = write_chain(tmp_path / "new")
    rl = tmp_path / "new/rl"
    write_status(rl, make_status(state="finished", step=4))
    assert read_story(chain).state == "finished"
    write_status(rl, make_status(state="failed"))
    assert read_story(chain).state == "failed"
    # Killed inside a selection: its record is old.
    (chain / "stage-1.json").write_text(json.dumps(selection(tmp_path, state="running", account=None)))
    story = read_story(chain)
    assert story.state == "stopped" and story.stages[0].selected is None
    (chain / "stage-1.json").write_text("{")
    with pytest.raises(InputError, match=r"stage-1\.json is damaged"):
        read_story(chain)


def test_the_report_of_a_chain_is_written_into_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = write_chain(tmp_path / "new")
    (tmp_path / "new/sft/report.html").write_text("")
    assert cli.main(["report", str(tmp_path / "new/story.yaml"), "--format", "html,json,markdown"]) == 0
    assert ChainStory.model_validate_json((chain / "report.json").read_text()).stages[1].after is not None
    page = (chain / "report.html").read_text()
    # A run that has a report is linked, relative to the chain's folder.
    assert '<a href="../sft/report.html">2 sft</a>' in page and "<svg" in page
    assert "25.0% [14.2, 40.2] -&gt; 75.0% [59.8, 85.8]" in page
    assert "| 2 sft | sft | finished |" in (chain / "report.md").read_text()
    assert "report.json" in capsys.readouterr().out


def test_status_says_where_a_chain_is(folder: Path, command: Command) -> None:
    said = command("status", folder).out
    assert "chain     training, 2 of 3 stages done" in said
    assert "1         round1 (select): finished; 20 lines of 8 of 10 rows; 30 s" in said
    assert "2         sft (sft): finished; held-out 25% 14-40 -> 75% 60-86; 1:00" in said
    assert "3         rl (rl): training, step 2 of 4" in said
    # The run of the stage that it is at.
    assert "trainer   waits for rollouts" in said
    assert ChainStory.model_validate_json(command("status", folder, "--json").out).name == "story"


def test_a_chain_that_has_not_begun_is_said_so(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "chain.yaml"
    file.write_text(yaml.safe_dump({"stages": ["sft.yaml"]}))
    for name in ("status", "report", "view"):
        assert "has not begun" in command(name, file, code=2).err
