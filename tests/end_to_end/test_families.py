"""A run of two steps of each family, as a user starts it: a server and a trainer on the CPU, real weights."""

import math
from pathlib import Path

import pytest
from fakes.base_model import write_character_tokenizer
from fakes.model_folder import CHARACTERS
from fakes.whole_run import WholeRun
from families.known import tiny, write_served
from families.properties import of_each_family

from asyncrl.model.families import FAMILIES

NUM_STEPS, GROUPS, SAMPLES = 2, 2, 4
TRANSPORTS = (
    {},
    {"cluster": {"shared_disk": False}},
    {"serving": {"weight_transport": "distributed"}},
)
"""Families take turns; tests/trainer/test_families.py sends each family's weights by all three."""
SEEDS = {"DeepseekV3ForCausalLM": 1}
"""Seeds other than 0. Under 0 a prompt's token has two groups of experts 1.2e-7 apart, the last place of a
float32: each engine may take another one, and then the log-probs of all that follows differ."""
DRAWN = '''
import zlib
from verifiers.verdict import Outcome, Verdict


class Sevens:
    """Scores by chance, so that every group teaches something."""

    def parse_reference(self, raw):
        return raw

    def verify(self, response, reference):
        return Verdict(Outcome.WRONG, zlib.crc32(response.encode()) % 97 / 97)
'''


@of_each_family("run")
@pytest.mark.timeout(1200)
def test_a_run_of_two_steps_publishes_both_and_accounts_for_its_tokens(
    architecture: str, tmp_path: Path
) -> None:
    def write_model(folder: Path) -> None:
        write_served(folder, architecture, seed=SEEDS.get(architecture, 0), vocab_size=len(CHARACTERS) + 3)
        write_character_tokenizer(folder)

    transport = TRANSPORTS[[*FAMILIES].index(architecture) % len(TRANSPORTS)]
    sections = {
        "data": {"heldout": None},
        "rollout": {
            "groups_per_batch": GROUPS,
            "samples_per_group": SAMPLES,
            "max_new_tokens": 8,
            "max_staleness": 0,
        },
        "trainer": {"num_steps": NUM_STEPS, "learning_rate": 1e-3, **tiny(architecture).trainer},
    }
    run = WholeRun(tmp_path, write_model=write_model, **sections, **transport)
    (tmp_path / "sevens.py").write_text(DRAWN)
    assert run.start().finish(seconds=1100) == 0, run.output()
    steps = run.steps()
    assert [row["step"] for row in steps] == [1, 2]
    assert all(math.isfinite(row["loss"]) and row["grad_norm"] > 0 for row in steps)
    # Nothing is stale: both engines have the same weights, the second time the published ones.
    assert all(row["mismatch_kl"] < 1e-6 for row in steps), [row["mismatch_kl"] for row in steps]
    assert run.query("SELECT DISTINCT version FROM segments ORDER BY version") == [(0,), (1,)]
    assert sorted(path.name for path in (run.run_folder / "publications").iterdir()) == ["v1", "v2"]
    assert run.query("SELECT state, count(*) FROM groups GROUP BY state") == [("trained", NUM_STEPS * GROUPS)]
    counters = dict(run.query("SELECT name, value FROM counters"))
    assert counters["tokens_generated"] == sum(
        value for name, value in counters.items() if name != "tokens_generated"
    )
