"""Fast decoding samples what transformers computes."""

import pytest
import torch
import transformers
from fakes.models import write_model

from tests.benchmarks.decoding import TinyModel, sample

END = 1
PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 11]]
"""Several lengths, so that the shorter ones are padded."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> transformers.PreTrainedModel:
    folder = write_model(tmp_path_factory.mktemp("model"), vocab_size=16)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def sampled(reference: transformers.PreTrainedModel, **options: float) -> list[tuple[list[int], list[float]]]:
    torch.manual_seed(0)
    settings = {"num_samples": 6, "temperature": 0.7, "max_new_tokens": 12, "suppressed": [2]} | options
    model = TinyModel(reference.config, reference.state_dict().items())
    return sample(model, PROMPTS, end=END, **settings)


@torch.no_grad()
def expected(reference: transformers.PreTrainedModel, prompt: list[int], response: list[int]) -> torch.Tensor:
    """Log-probs [response, V] at the temperature, of each token after those before it."""
    logits = reference(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logits[:, 2] = -torch.inf
    return (logits / 0.7).log_softmax(-1)


def test_log_probs_are_those_of_transformers_also_once_others_have_ended(
    reference: transformers.PreTrainedModel,
):
    found = sampled(reference)
    lengths = [len(tokens) for tokens, _ in found]
    assert len(set(lengths)) > 3 and max(lengths) == 12
    for place, (tokens, logprobs) in enumerate(found):
        whole = expected(reference, PROMPTS[place // 6], tokens)
        own = whole.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(logprobs), own, atol=1e-5)
        assert END not in tokens[:-1] and 2 not in tokens
        assert len(tokens) == 12 or tokens[-1] == END


def test_greedy_responses_are_those_of_transformers(reference: transformers.PreTrainedModel):
    for place, (tokens, _) in enumerate(sampled(reference, num_samples=1, temperature=0)):
        assert tokens == expected(reference, PROMPTS[place], tokens).argmax(-1).tolist()


def test_first_tokens_are_drawn_with_their_probabilities(reference: transformers.PreTrainedModel):
    found = sampled(reference, num_samples=4000, max_new_tokens=1)
    for place, prompt in enumerate(PROMPTS):
        drawn = torch.tensor([tokens[0] for tokens, _ in found[4000 * place :][:4000]])
        shares = torch.bincount(drawn, minlength=16) / 4000
        # Four standard deviations of a share are at most 0.032.
        assert torch.allclose(shares, expected(reference, prompt, [0])[0].exp(), atol=0.032)
