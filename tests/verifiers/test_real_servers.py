"""`reward_model` and `judge` against real SGLang servers of tiny random models, started as a run's are.

Such a server needs its tokenizer, which a run's servers leave out."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from fakes.chat_codec import END, make_chat_codec

from verifiers.group_judge import GroupJudge
from verifiers.judge import JudgeVerifier
from verifiers.registry import load_verifier
from verifiers.reward_model import RewardModelVerifier
from verifiers.task import Task
from verifiers.verdict import Outcome

if TYPE_CHECKING:
    import transformers

Family = Literal["qwen2", "qwen3", "llama"]


def write_chat_model(folder: Path, *, family: Family = "qwen2") -> "transformers.PreTrainedModel":
    """A model that continues any text with noise."""
    import transformers

    return _write(folder, transformers.AutoModelForCausalLM, family)


def write_reward_model(
    folder: Path, *, family: Family, num_labels: int = 1
) -> "transformers.PreTrainedModel":
    """A model with a head for `num_labels` numbers."""
    import transformers

    return _write(folder, transformers.AutoModelForSequenceClassification, family, num_labels=num_labels)


def _write(folder: Path, kind: Any, family: Family, **more: Any) -> "transformers.PreTrainedModel":
    import torch
    import transformers

    codec = make_chat_codec(folder)
    (end,) = codec.encode(END)
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=264,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
        **more,
    )
    torch.manual_seed(0)
    model = kind.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # At the usual scale attention is almost uniform, and wrong rows would hardly show.
            parameter.mul_(3.0 if parameter.ndim > 1 else 1.0)
    model.save_pretrained(folder)
    return model.eval()


pytestmark = pytest.mark.slow

QUESTION = "What is 6 times 7?"
TASK = Task(QUESTION, ({"role": "user", "content": QUESTION},))
SIZES = {"max_running_requests": 8, "max_total_tokens": 16384}
TOLERANCE = 1e-4


@pytest.mark.parametrize(("family", "num_labels"), [("llama", 1), ("qwen2", 1), ("qwen3", 2)])
async def test_a_reward_models_number_is_that_of_transformers(
    tmp_path: Path, family: Family, num_labels: int
) -> None:
    import torch
    from serving.engine.servers import running_server

    own = write_reward_model(tmp_path / "model", family=family, num_labels=num_labels)
    codec = make_chat_codec(tmp_path / "codec")
    server = running_server(
        tmp_path / "model", tmp_path / "log", "--is-embedding", without=["--skip-tokenizer-init"], **SIZES
    )
    with server as (url, _):
        options = {"url": url, "template": "chatml", "index": num_labels - 1, "attempts": 1}
        verifier = load_verifier("reward_model", options)
        assert isinstance(verifier, RewardModelVerifier)
        num_tokens = 0
        for response in ("42", "forty-two", "", "é中😀 \x00", f"41{END}\n", "It is 42. " * 50):
            text = str(verifier.cache_key(response, None, TASK))
            tokens = codec.encode(text, add_special_tokens=False)
            num_tokens += len(tokens)
            with torch.no_grad():
                number = own(torch.tensor([tokens])).logits[0, num_labels - 1].item()
            found = await verifier.verify_async(response, None, TASK)
            assert found.score == pytest.approx(torch.sigmoid(torch.tensor(number)).item(), abs=TOLERANCE)
            assert float(found.extracted or "nan") == pytest.approx(number, abs=TOLERANCE)
        assert (verifier.counters["requests"], verifier.counters["prompt_tokens"]) == (6, num_tokens)
        too_long = await verifier.verify_async("9" * 3000, None, TASK)
        assert too_long.outcome is Outcome.FAULT
        assert "longer than the model's context length (2048 tokens)" in too_long.detail


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base of the API of a model whose answers are noise."""
    from serving.engine.servers import running_server

    folder = tmp_path_factory.mktemp("chat")
    write_chat_model(folder / "model")
    server = running_server(folder / "model", folder / "log", without=["--skip-tokenizer-init"], **SIZES)
    with server as (url, _):
        yield f"{url}/v1"


def says(letter: str) -> dict[str, object]:
    """Settings of a request with which the model says one letter: no other token has a chance."""
    # The byte tokenizer's ids are the places of bytes in its sorted alphabet.
    token = ord(letter) - ord("!")
    return {"logit_bias": {str(token): 1000.0}, "stop_token_ids": [token], "no_stop_trim": True}


async def test_a_real_servers_reply_is_a_verdict_or_a_fault(chat_server: str) -> None:
    options = {"url": chat_server, "model": "judge", "attempts": 1}
    judge = load_verifier("judge", {**options, "extra": says("A")})
    assert isinstance(judge, JudgeVerifier)
    found = await judge.verify_async("42", "42", TASK)
    assert (found.outcome, found.score, found.extracted) == (Outcome.CORRECT, 1.0, "A")
    wrong = load_verifier("judge", {**options, "extra": says("B")})
    assert isinstance(wrong, JudgeVerifier)
    assert (await wrong.verify_async("41", "42", TASK)).outcome is Outcome.WRONG
    counters = judge.counters
    assert (counters["requests"], counters["completion_tokens"], counters["unreadable"]) == (1, 1, 0)
    text = str(judge.cache_key("42", "42", TASK))
    assert counters["prompt_tokens"] > len(text) and counters["request_seconds"] > 0


async def test_noise_of_a_real_server_is_a_fault(chat_server: str) -> None:
    stop = {"stop_token_ids": list(range(256)), "no_stop_trim": True}
    judge = load_verifier(
        "judge", {"url": chat_server, "model": "judge", "attempts": 1, "extra": {**stop, **says("Q")}}
    )
    assert isinstance(judge, JudgeVerifier)
    noise = await judge.verify_async("42", "42", TASK)
    assert noise.outcome is Outcome.FAULT and "none of A, B" in noise.detail
    assert (judge.counters["requests"], judge.counters["unreadable"]) == (1, 1)
    endless = load_verifier("judge", {"url": chat_server, "model": "judge", "attempts": 1, "max_tokens": 8})
    assert isinstance(endless, JudgeVerifier)
    cut_off = await endless.verify_async("42", "42", TASK)
    assert cut_off.outcome is Outcome.FAULT and "max_tokens" in cut_off.detail
    too_much = load_verifier("judge", {"url": chat_server, "model": "judge", "max_tokens": 100_000})
    assert isinstance(too_much, JudgeVerifier)
    refused = await too_much.verify_async("42", "42", TASK)
    assert refused.outcome is Outcome.FAULT and "status 400: " in refused.detail


@pytest.mark.parametrize(("letter", "score"), [("A", 0.5), ("C", 0.5), ("Q", None)])
async def test_a_real_server_compares_a_group(chat_server: str, letter: str, score: float | None) -> None:
    """It says the same letter whichever response comes first, so that each place wins once."""
    options = {"url": chat_server, "model": "judge", "attempts": 1, "extra": says(letter)}
    judge = load_verifier("group_judge", options)
    assert isinstance(judge, GroupJudge)
    found = await judge.verify_group_async(["42", "41", "40"], "42", [TASK] * 3)
    assert [verdict.score for verdict in found] == [score] * 3
    counters = judge.counters
    assert (counters["requests"], counters["completion_tokens"]) == (6, 6)
    assert counters["unreadable"] == (6 if score is None else 0)
