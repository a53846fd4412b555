"""The loop on real SGLang and real Megatron-core, as a user starts it."""

import subprocess
import sys
from statistics import fmean

import pytest
from fakes.whole_run import WholeRun

from asyncrl.commands import main as cli
from asyncrl.journal.packing import unpack_tokens
from asyncrl.readers.report.schema import RunReport


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """One run to its end, looked at by several tests."""
    run = WholeRun(tmp_path_factory.mktemp("run")).start()
    assert run.finish() == 0, run.output()
    return run


def test_reward_rises(finished: WholeRun) -> None:
    rewards = [row["reward_mean"] for row in finished.steps()]
    assert len(rewards) == 12
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.2, rewards


def test_the_engines_agree_on_every_token_of_their_own_version(finished: WholeRun) -> None:
    # Tokens of lag 0 show the mismatch between the engines alone. A log-prob off by 1e-4 is a ratio of
    # 1 + 1e-4.
    for row in finished.steps():
        if row.get("mismatch_logprob_max") is not None:
            assert row["mismatch_logprob_max"] <= 1e-4
    assert any(row.get("mismatch_logprob_max") is not None for row in finished.steps())


def test_no_token_is_staler_than_allowed(finished: WholeRun) -> None:
    (found,) = finished.query(
        "SELECT max(taken_version - version), min(taken_version - version) FROM segments "
        "JOIN trajectories USING (trajectory_id) JOIN groups USING (group_id) WHERE taken_version IS NOT NULL"
    )
    assert found[0] <= 2 and found[1] >= 0


def test_the_pad_is_never_sampled_and_no_gradient_spikes(finished: WholeRun) -> None:
    # Its row is zero; a guess among 48 tokens would hit it a hundred times.
    tokens = [t for (blob,) in finished.query("SELECT tokens FROM segments") for t in unpack_tokens(blob)]
    assert len(tokens) > 3000 and 2 not in tokens
    assert finished.query("SELECT value FROM meta WHERE key = 'tokens never sampled'") == [("2",)]
    assert not any("spike_row" in row for row in finished.steps())


def test_every_generated_token_is_trained(finished: WholeRun) -> None:
    counters = dict(finished.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == counters["tokens_trained"] > 0
    assert finished.query("SELECT state, count(*) FROM groups GROUP BY state") == [("trained", 12 * 8)]


def test_what_it_leaves_behind_is_what_a_person_needs(finished: WholeRun) -> None:
    for name in (
        "recipe.yaml",
        "metrics.jsonl",
        "journal.sqlite",
        "report.html",
        "report.json",
        "curves.png",
    ):
        assert (finished.run_folder / name).stat().st_size > 0, name
    assert {path.name for path in (finished.run_folder / "logs").iterdir()} == {
        "server-0.log",
        "trainer-0.log",
        "verifiers.log",
    }
    output = finished.output()
    for words in ("held-out before training", "Conservation", "asyncrl chat", "100.0%"):
        assert words in output, output


def test_the_same_command_again_shows_the_summary_and_trains_nothing(
    finished: WholeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    before = finished.query("SELECT count(*) FROM segments")
    assert cli.main(["train", *finished.words()]) == 0
    said = capfd.readouterr()
    assert "is complete. Raise trainer.num_steps" in said.out + said.err
    assert (said.out + said.err).count("Conservation") == 1
    assert finished.query("SELECT count(*) FROM segments") == before


def test_ctrl_c_while_the_report_is_written_says_that_the_run_is_complete(
    finished: WholeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("asyncrl.commands.train.write_report", interrupted)
    assert cli.main(["train", str(finished.run_folder / "recipe.yaml")]) == 130
    said = f"The run is complete, but its report is not: asyncrl report {finished.run_folder} writes it."
    assert said in capsys.readouterr().err


def test_the_exported_checkpoint_is_the_trained_model(finished: WholeRun) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = finished.run_folder / "checkpoints" / "step-12" / "hf"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("3=", return_tensors="pt").input_ids
    (tokens,) = model.generate(prompt, max_new_tokens=10, do_sample=False)
    assert tokenizer.decode(tokens[2:]).count("7") >= 5


def test_a_step_of_the_run_is_repeated_to_the_last_digit(finished: WholeRun) -> None:
    command = [sys.executable, "-m", "asyncrl.commands.main", "reproduce", str(finished.run_folder), "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "steps 9 to 12 again, from checkpoint step-8" in done.stdout
    assert "step 12 is identical to the last digit." in done.stdout


def test_its_report_says_what_it_took(finished: WholeRun) -> None:
    report = RunReport.model_validate_json((finished.run_folder / "report.json").read_text())
    assert (report.run.state, report.run.steps, len(report.starts)) == ("finished", 12, 1)
    assert report.flops.generated and report.flops.trained and report.environment
    hours = {process.name: process.cpu_hours or 0.0 for process in report.time.processes}
    assert hours.keys() == {"controller", "verifiers", "server 0", "trainer 0"}
    assert min(hours[name] for name in ("controller", "server 0", "trainer 0")) > 0
    # No process computes on more cores than there are.
    assert report.time.cpu_hours and report.time.wall_seconds
    core_hours = report.time.wall_seconds * report.environment.num_cores / 3600
    assert report.time.cpu_hours <= core_hours * 1.05
    # 6 N per token; prompts and attention add to it, and a prompt that a group shares takes some away.
    assert report.model.matrix_weights is not None
    by_thumb = 6 * report.model.matrix_weights * report.tokens.in_loss
    assert 0.5 * by_thumb < report.flops.trained < 3 * by_thumb
