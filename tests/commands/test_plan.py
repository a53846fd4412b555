"""`asyncrl plan`: figures from config.json alone, and a refusal of what cannot fit."""

import json
from pathlib import Path

import pytest
import yaml
from fakes.commands import Command
from families.known import TINY

CONFIG, _ = TINY["Qwen3ForCausalLM"].published["Qwen/Qwen3-8B"]
MOE, _ = TINY["Qwen3MoeForCausalLM"].published["Qwen/Qwen3-30B-A3B"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    path = tmp_path / "recipe.yaml"
    raw = {
        "name": "large",
        "model": {"path": str(tmp_path / "model"), "dtype": "bfloat16"},
        "data": {"train": "none.jsonl"},
        "evaluation": {"every_steps": 0},
    }
    path.write_text(yaml.safe_dump(raw))
    return path


def test_a_large_model_is_refused_on_a_gpu_it_cannot_fit(recipe: Path, command: Command):
    captured = command("plan", recipe, "--gpu-memory-gb", "80", code=2)
    # 8.19 billion parameters, as its card says; 18 bytes each of state alone.
    assert "parameters 8,190,735,360" in captured.out
    assert "a trainer rank needs" in captured.err and "72.0 GB" in captured.err
    assert "trainer.tokens_per_micro_batch" in captured.err


DEEPSEEK, _ = TINY["DeepseekV3ForCausalLM"].published["deepseek-ai/DeepSeek-V3"]


@pytest.mark.parametrize(("processes", "code"), [(64, 2), (512, 0)])
def test_latent_attention_caches_one_vector_per_token_and_all_its_experts_must_fit(
    processes: int, code: int, recipe: Path, command: Command
):
    (recipe.parent / "model" / "config.json").write_text(json.dumps(DEEPSEEK))
    parallel = {"expert": min(processes, 256), "tensor": 8, "sequence_parallel": True}
    parallel["distributed_optimizer"] = True
    settings = [f"trainer.parallel.{key}={json.dumps(value)}" for key, value in parallel.items()]
    settings += [f"trainer.num_processes={processes}", "trainer.recompute=full"]
    settings += ["serving.tensor_parallel_size=32", "serving.max_total_tokens=65536"]
    settings += ["model.context_tokens=16384"]
    captured = command("plan", recipe, *settings, "--gpu-memory-gb", "80", code=code)
    # 671 billion, as its card says, without the layer behind the last one.
    assert "parameters 671,026,419,200" in captured.out
    # On each of the server's ranks 65536 tokens x 61 layers x (512 + 64) x 2 bytes.
    assert "key-value cache             4.3 GiB             65536 tokens" in captured.out
    assert ("a trainer rank needs" in captured.err) is (code == 2)


def test_a_cache_whose_size_the_recipe_says_counts(recipe: Path, command: Command):
    arguments = ["plan", str(recipe), "serving.max_total_tokens=32768"]
    # 32768 tokens x 36 layers x 2 x 8 heads x 128 x 2 bytes
    said = command(*arguments, "--gpu-memory-gb", "1000").out
    assert "key-value cache             4.5 GiB             32768 tokens" in said


def test_what_many_servers_would_read_from_a_disk_is_told_with_the_other_transport(
    recipe: Path, command: Command
):
    for num_servers, is_told in ((1, False), (100, True)):
        words = [f"serving.num_servers={num_servers}", "--gpu-memory-gb", "180"]
        out = command("plan", recipe, *words, code=2).out
        assert ("100 servers read 16.4 GB each, 1,638 GB in all, for every version" in out) is is_told


def test_it_fits_where_there_is_room(recipe: Path, command: Command):
    output = command("plan", recipe, "--gpu-memory-gb", "1000").out
    assert "what the engine finds free" in output
    assert "16 groups x 8 samples = 128 trajectories, at most 8,192 response tokens" in output


def test_gpus_are_counted_for_what_runs_here(recipe: Path, command: Command):
    asked = ["trainer.num_processes=4", "serving.num_servers=2", "serving.tensor_parallel_size=2"]
    said = command("plan", recipe, *asked, "--gpu-memory-gb", "1000").out
    assert "8 where every process has its own: 4 for the trainer, 4 for servers\n" in said
    elsewhere = [*asked, "serving.servers=[http://a:1]"]
    said = command("plan", recipe, *elsewhere, "--gpu-memory-gb", "1000").out
    assert "4 for the trainer, 0 for servers, those of external servers apart" in said


def test_a_colocated_plan_says_what_each_turn_needs(recipe: Path, command: Command):
    output = command("plan", recipe, "--gpu-memory-gb", "1000", "placement.colocated=true").out
    assert "gpus       1: 1 for trainer and rollout servers, 0 for evaluation servers\n" in output
    assert "shared     each shared GPU " in output and "  while servers generate" in output
    # 8.19 billion parameters: 18 bytes of state each, and 2 in the server, with 4.5 GiB of cache.
    words = ["placement.colocated=true", "serving.max_total_tokens=32768", "trainer.recompute=full"]
    said = command("plan", recipe, *words, "--longest-prompt", 9, "--gpu-memory-gb", 180, code=2).err
    assert "a trainer's state with a server needs 168.6 GB, 90% of" in said
    said = command("plan", recipe, "placement.colocated=true", "--simulate", code=2).err
    assert "Set placement.colocated to false to simulate" in said


def test_a_frozen_reference_is_counted_where_a_kl_needs_one(recipe: Path, command: Command):
    assert "  reference  " not in command("plan", recipe, "--gpu-memory-gb", "1000").out
    said = command("plan", recipe, "algorithm.kl.coefficient=0.1", "--gpu-memory-gb", "1000").out
    assert "  reference  " in said


def test_past_versions_are_counted_on_the_host_and_one_of_them_on_the_device(recipe: Path, command: Command):
    arguments = ["plan", str(recipe), "trainer.splits_staleness=true", "rollout.max_staleness=4"]
    # 8,190,735,360 x 2 bytes, four of them on the host.
    said = command(*arguments, "--gpu-memory-gb", "1000").out
    assert "past versions              15.3 GiB   61.0 GiB  a model, and versions" in said


def test_a_critic_costs_as_much_state_as_a_policy_without_its_output_layer(recipe: Path, command: Command):
    assert "  critic  " not in command("plan", recipe, "--gpu-memory-gb", "1000").out
    # (8,190,735,360 - 151,936 x 4,096 of the output layer + 4,096 of the head) x 18 bytes
    output = command("plan", recipe, "algorithm.advantage=gae", "--gpu-memory-gb", "1000").out
    assert "critic                    126.9 GiB" in output
    # 14 bytes of both models: of host memory, the second column.
    assert "copy for checkpoints                 205.5 GiB  from the first checkpoint on" in output


def test_more_processes_than_the_machine_has_memory_for_are_refused(recipe: Path, command: Command):
    said = command("plan", recipe, "trainer.num_processes=1000", code=2).err
    assert "1000 trainer rank(s) of" in said


def test_a_model_that_is_made_by_the_first_run_is_said(recipe: Path, command: Command):
    raw = yaml.safe_load(recipe.read_text())
    raw["prepare"] = {"target": "a.b:c", "folder": "x"}
    raw["model"]["path"] = str(recipe.parent / "none")
    recipe.write_text(yaml.safe_dump(raw))
    assert "is not made yet" in command("plan", recipe, code=2).err


def test_without_gpus_all_memory_is_in_one_column(recipe: Path, command: Command):
    output = command("plan", recipe, "memory_gib=100000").out
    assert "host" not in output
    assert "  copy for checkpoints      106.8 GiB  from the first checkpoint on" in output


def test_activations_name_the_tokens_that_they_are_of(recipe: Path, command: Command):
    def remark(*words: str) -> str:
        out = command("plan", recipe, "--gpu-memory-gb", "9000", *words).out
        (line,) = (one for one in out.splitlines() if "  activations " in one)
        return line.partition("GiB")[2].strip()

    # Nobody knows the prompts: one may fill the context of 40,960 tokens, whatever the budget is.
    for budget in (2048, 8192):
        assert remark(f"trainer.tokens_per_micro_batch={budget}").startswith(
            "40,960 packed tokens, the longest"
        )
    short = ["--longest-prompt", "100"]
    assert remark(*short, "trainer.tokens_per_micro_batch=2048").startswith("2,048 packed tokens (trainer.")
    assert remark(*short, "trainer.tokens_per_micro_batch=8192").startswith("8,192 packed tokens (trainer.")
    # 16 x (100 + 8 x 64)
    assert remark(*short, "trainer.tokens_per_micro_batch=99999").startswith("9,792 packed tokens, all of a")


def test_a_run_is_simulated_before_it_starts(recipe: Path, command: Command):
    output = command("plan", recipe, "--simulate", "--device", "H100", "rollout.max_staleness=0").out
    assert "forecast   50 steps; the steady state:" in output and " steps per hour" in output
    # One side works while the other waits.
    idle = {
        line.split()[0]: int(line.split("idle ")[1].split("%")[0])
        for line in output.splitlines()
        if " idle " in line
    }
    assert 95 <= idle["trainer"] + idle["servers"] <= 105
    assert "staleness    mean 0.00, at most 0: 0: 100%" in output
    said = command("plan", recipe, "--simulate", "--steps", "12", "--device", "H9", code=2).err
    assert "--device H9 is unknown" in said


def test_gpus_are_split_between_both_sides(recipe: Path, command: Command):
    asked = ["rollout.max_new_tokens=2000", "serving.max_total_tokens=200000", "trainer.num_steps=20"]
    last = command("plan", recipe, "--gpus", "4", *asked).out.splitlines()[-1]
    servers, ranks = (int(last.partition(f"{key}=")[2].split()[0]) for key in KEYS)
    assert servers + ranks == 4 and min(servers, ranks) >= 1
    said = command("plan", recipe, "--gpus", "1", code=2).err
    assert "--gpus is 1, but one server takes 1 and one copy of the trainer 1" in said


KEYS = ("serving.num_servers", "trainer.num_processes")


def test_the_bytes_of_routes_are_told_and_a_dense_model_has_none(recipe: Path, command: Command):
    arguments = ["plan", str(recipe), "algorithm.routing_replay=rollout", "--gpu-memory-gb", "10000"]
    said = "algorithm.routing_replay is rollout, but Qwen3ForCausalLM has no experts. Remove"
    assert said in command(*arguments, code=2).err
    config = recipe.parent / "model" / "config.json"
    config.write_text(json.dumps(MOE))
    # 48 layers x 8 experts x 1 byte.
    said = "8 bytes for each sampled token; 384 for its experts, and for those of each prompt token"
    assert said in command(*arguments).out
    config.write_text(json.dumps(MOE | {"num_experts": 512}))
    assert "; 768 for its experts" in command(*arguments).out


def test_the_bytes_of_kept_sets_are_told(recipe: Path, command: Command):
    said = command("plan", recipe, "--gpu-memory-gb", "1000").out
    assert "journal    8 bytes for each sampled token\n" in said
    arguments = ["rollout.top_k=20", "rollout.top_p=0.9", "--gpu-memory-gb", "1000"]
    said = command("plan", recipe, *arguments).out
    assert (
        "journal    8 bytes for each sampled token; kept sets: 1 more and 1 to 3 for each other kept" in said
    )
    assert "token, 58 at most (rollout.top_k)" in said
