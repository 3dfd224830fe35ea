"""The sampler on made-up logits: every parameter against a slow and plain version of itself."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from engine.backends.transformers import sampler
from engine.backends.transformers.sampler import choose
from engine.backends.transformers.sequence import SLOTS, Sequence
from tests.engine.backends.sampled_rows import VOCABULARY, drawn_from, logits, sequence, step


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def test_plain_greedy_rows_are_left_alone() -> None:
    """The fast path writes nothing: the argmax of the model's own logits is the choice."""
    scores = torch.stack([logits(1), logits(2)])
    before = scores.clone()
    choose(scores, [sequence(), sequence()])
    assert torch.equal(scores, before)


def test_rows_keep_apart() -> None:
    """Each row follows its own sequence, and rows beyond the sequences are padding."""
    scores = torch.stack([logits(1), logits(2), logits(3), logits(4)])
    before = scores.clone()
    choose(scores, [sequence(), sequence(logit_bias={7: 1000.0}), sequence(logit_bias={9: 1000.0})])
    assert [int(row.argmax()) for row in scores[:3]] == [int(before[0].argmax()), 7, 9]
    assert torch.equal(scores[[0, 3]], before[[0, 3]])


def test_logit_bias_forbids_and_forces() -> None:
    """A bias is added to the logit, whatever its sign."""
    row = logits()
    likeliest = int(row.argmax())
    assert step(row, sequence(logit_bias={likeliest: -100.0})) == int(row.topk(2).indices[1])
    assert step(row, sequence(logit_bias={3: 100.0})) == 3


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_holds_every_end_back(ignore_eos: bool) -> None:
    """Until min_tokens are out, no stop token comes; an end of sequence that is ignored is an ordinary token."""
    row = torch.zeros(VOCABULARY)
    row[[2, 9]] = torch.tensor([10.0, 9.0])
    one = sequence(min_tokens=2, stop_token_ids=frozenset({9, 10_000}), ignore_eos=ignore_eos)
    chosen = [step(row, one) for _ in range(3)]
    assert chosen[2] == 2
    assert all((token_id == 2) is ignore_eos and token_id != 9 for token_id in chosen[:2])


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7},
        {"repetition_penalty": 1.4},
        {"repetition_penalty": 0.5},
        {"presence_penalty": -0.5, "frequency_penalty": 0.9, "repetition_penalty": 1.2},
    ],
)
def test_penalties_equal_a_recount_of_the_whole_sequence(penalties: dict[str, float]) -> None:
    """What is kept up step by step gives what counting from scratch gives, past any growth of the table."""
    prompt = tuple(range(40, 50)) * 2
    one = sequence(prompt, **penalties)
    source = random.Random(1)
    generated: list[int] = []
    for number in range(200):
        scores = logits(number, vocabulary=200).unsqueeze(0)
        expected = int(penalized(scores[0], prompt, generated, penalties).argmax())
        choose(scores, [one])
        assert int(scores.argmax()) == expected
        generated.append(source.choice([expected, source.randrange(200)]))
        one.append(generated[-1])
    assert len(set(generated)) > SLOTS


def penalized(
    row: torch.Tensor, prompt: tuple[int, ...], generated: list[int], penalties: dict[str, float]
) -> torch.Tensor:
    repetition = penalties.get("repetition_penalty", 1.0)
    frequency, presence = penalties.get("frequency_penalty", 0.0), penalties.get("presence_penalty", 0.0)
    values = row.tolist()
    for token_id in {*prompt, *generated}:
        value = values[token_id]
        values[token_id] = value / repetition if value > 0 else value * repetition
    for token_id, count in Counter(generated).items():
        values[token_id] -= frequency * count + presence
    return torch.tensor(values)


def test_top_k_of_one_is_greedy() -> None:
    """One candidate leaves no choice, even in a tie."""
    row = torch.zeros(VOCABULARY)
    assert step(row, sequence(temperature=2.0, top_k=1)) == int(row.argmax())


@pytest.mark.parametrize("top_k", [2, 5, VOCABULARY, 10_000])
def test_top_k_keeps_the_k_likeliest(top_k: int) -> None:
    """Nothing outside the k likeliest is drawn, and all of them can be; more than the vocabulary is all of it."""
    row = logits(scale=0.3)
    assert set(drawn_from(row, top_k=top_k)) == set(row.topk(min(top_k, VOCABULARY)).indices.tolist())


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.8, 0.99])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float) -> None:
    """A token is kept while the likelier ones fall short of top_p."""
    row = logits(scale=1.0)
    probabilities, ids = row.softmax(-1).sort(descending=True)
    before = probabilities.cumsum(-1) - probabilities
    kept = set(ids[before < top_p].tolist())
    drawn = set(drawn_from(row, top_p=top_p))
    assert drawn <= kept
    assert set(ids[before < top_p * 0.9].tolist()) <= drawn


def test_top_p_of_a_flat_distribution_looks_at_the_whole_row() -> None:
    """Where the nucleus is larger than the candidates looked at first, it is still whole."""
    row = torch.linspace(0.0, 0.1, 3 * sampler.NUCLEUS)
    drawn = set(drawn_from(row, draws=2000, top_p=0.9))
    assert len(drawn) > sampler.NUCLEUS
    assert min(drawn) >= len(row) * 0.09


def test_min_p_is_a_share_of_the_likeliest() -> None:
    """Tokens below min_p times the highest probability are out, after temperature."""
    row = logits(scale=0.8)
    probabilities = (row / 0.7).softmax(-1)
    kept = set((probabilities >= 0.2 * probabilities.max()).nonzero().flatten().tolist())
    assert set(drawn_from(row, min_p=0.2, temperature=0.7)) == kept
    assert set(drawn_from(row, draws=50, min_p=1.0)) == {int(row.argmax())}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_distribution(temperature: float) -> None:
    """Frequencies come near the probabilities after temperature."""
    row = torch.tensor([2.0, 1.0, 0.0, -1.0, -math.inf])
    draws = 20_000
    counts = drawn_from(row, draws, temperature=temperature)
    for token_id, probability in enumerate((row / temperature).softmax(-1).tolist()):
        deviation = math.sqrt(probability * (1 - probability) / draws)
        assert abs(counts[token_id] / draws - probability) <= 5 * deviation


def test_nothing_impossible_is_drawn() -> None:
    """A number next to one stays within what is possible, also where the row ends in impossible tokens."""
    row = torch.full((VOCABULARY,), -math.inf)
    row[3] = 0.0
    one = sequence(temperature=1.0)
    for number in (0.0, 0.5, math.nextafter(1.0, 0.0)):
        one.rng = Fixed(number)
        assert step(row, one) == 3


class Fixed(random.Random):
    """A source of one random number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def random(self) -> float:
        return self.number


def test_a_seed_repeats_itself_in_any_company() -> None:
    """What a seed gives depends on the seed and the logits, not on the rows beside it."""
    rows = [logits(number, scale=1.0) for number in range(30)]
    alone = sequence(seed=5, temperature=1.0, top_p=0.95)
    expected = [step(row, alone) for row in rows]
    again = sequence(seed=5, temperature=1.0, top_p=0.95)
    others = [sequence(temperature=0.5, top_k=3), sequence(seed=6, temperature=1.0), sequence(frequency_penalty=1.0)]
    got = []
    for row in rows:
        scores = torch.stack([row + 1, row * 2, row, row])
        choose(scores, [*others[:2], again, others[2]])
        got.append(int(scores[2].argmax()))
        again.append(got[-1])
    assert got == expected
    different = sequence(seed=8, temperature=1.0, top_p=0.95)
    assert [step(row, different) for row in rows] != expected


def test_logprobs_are_the_models_own() -> None:
    """Before bias, penalties and temperature; the likeliest first; none beyond the vocabulary."""
    row = logits()
    one = sequence(logprobs=3, logit_bias={4: 100.0}, temperature=0.5, seed=1)
    assert step(row, one) == 4
    expected = row.log_softmax(-1)
    assert one.logprobs is not None
    assert one.logprobs.chosen == pytest.approx(float(expected[4]))
    assert [token_id for token_id, _ in one.logprobs.top] == row.topk(3).indices.tolist()
    assert [value for _, value in one.logprobs.top] == pytest.approx(expected.topk(3).values.tolist())
    for count, length in ((0, 0), (10_000, VOCABULARY)):
        one = sequence(logprobs=count)
        step(row, one)
        assert one.logprobs is not None
        assert len(one.logprobs.top) == length


def test_a_row_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence's error is its own; the others' choices stand."""
    good, bad = sequence(logit_bias={7: 1000.0}), sequence(logit_bias={8: 1000.0})
    adjust = Sequence.adjust

    def fail(one: Sequence, row: torch.Tensor) -> None:
        if one is bad:
            raise ArithmeticError("made up")
        adjust(one, row)

    monkeypatch.setattr(Sequence, "adjust", fail)
    scores = torch.stack([logits(1), logits(2)])
    choose(scores, [bad, good])
    assert bad.failure == "sampling failed: made up"
    assert good.failure is None
    assert int(scores[1].argmax()) == 7


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-5, 1.0])
@pytest.mark.parametrize("penalty", [1e-300, 1e-36, 1e-33, 1e30, 1e300])
def test_parameters_out_of_float_range_hurt_nobody_else(penalty: float, temperature: float) -> None:
    """Whatever a row's parameters make of its logits, it gets a token or fails, and its neighbour is well."""
    wild = sequence(prompt=tuple(range(40)), repetition_penalty=penalty, temperature=temperature, seed=1)
    neighbour = sequence(temperature=1.0, seed=3)
    alone = step(logits(2), sequence(temperature=1.0, seed=3))
    scores = torch.stack([logits(1), logits(2)])
    choose(scores, [wild, neighbour])
    assert neighbour.failure is None
    assert int(scores[1].argmax()) == alone
    assert wild.failure is not None or bool((scores[0] == torch.inf).any())


def test_a_tiny_temperature_is_greedy() -> None:
    """The smaller the temperature, the surer the likeliest token, down to the smallest number there is."""
    for row in map(logits, range(5)):
        for temperature in (1e-3, 1e-30, 1e-300):
            assert step(row, sequence(temperature=temperature, seed=5)) == int(row.argmax())


def test_every_seed_draws_its_own_numbers() -> None:
    """Seeds that differ in sign only are different seeds."""
    draws = {tuple(sequence(temperature=1.0, seed=seed).rng.random() for _ in range(3)) for seed in (-2, -1, 0, 1, 2)}
    assert len(draws) == 5
