"""Chooses the next token of every row of one step's logits, each row by its own parameters.

Never sees the scheduler: logits and sequences in, one token id a row out. All shapes are [rows, vocabulary].
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Rows

import torch

from engine.backends.transformers.grammar_mask import forbid
from engine.backends.transformers.sequence import Sequence
from engine.types import SamplingParams, TokenLogprobs

logger = logging.getLogger(__name__)

NUCLEUS = 1024
"""Candidates that top_p looks at before it sorts a whole row; nearly every nucleus is smaller."""


def choose(scores: torch.Tensor, sequences: Rows[Sequence]) -> None:
    """Raises the chosen token of each row to plus infinity, in place, so that an argmax finds it.

    Row i of `scores` belongs to `sequences[i]`; rows beyond them are padding and left alone. Rows that are
    plain greedy are left alone too: their argmax is the choice. A sequence whose row can't be sampled gets
    its `failure` set, and the others go on.
    """
    rows = [row for row, sequence in enumerate(sequences) if not sequence.plain]
    if not rows:
        return
    index = torch.tensor(rows, device=scores.device)
    chosen = _choose_or_fail(scores[index], [sequences[row] for row in rows])
    scores[index, chosen] = torch.inf


def _choose_or_fail(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    """Token ids, shape [rows]; where the batch fails, row by row, so that one bad row fails alone."""
    try:
        return _choose_rows(logits.clone(), sequences)
    except Exception as error:
        if len(sequences) > 1:
            alone = [_choose_or_fail(logits[row : row + 1], sequences[row : row + 1]) for row in range(len(sequences))]
            return torch.cat(alone)
        logger.exception("sampling failed for request %s", sequences[0].request.request_id)
        sequences[0].failure = f"sampling failed: {error}"
        return torch.zeros(1, dtype=torch.int64, device=logits.device)


def _choose_rows(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    """Token ids, shape [rows]; overwrites `logits`."""
    reported = _reported_logprobs(logits, sequences)
    for row, sequence in enumerate(sequences):
        sequence.adjust(logits[row])
    forbid(logits, sequences)
    _refuse_overflow(logits)
    chosen = logits.argmax(dim=-1)
    drawn = [row for row, sequence in enumerate(sequences) if not sequence.greedy]
    if drawn:
        index = torch.tensor(drawn, device=logits.device)
        chosen[index] = draw(logits[index], [sequences[row] for row in drawn])
    for row, logprobs in reported.items():
        _report(logprobs, int(chosen[row]), sequences[row])
    return chosen


def _refuse_overflow(logits: torch.Tensor) -> None:
    """Bias, penalties and a grammar may leave nothing finite; what comes after would be no choice at all."""
    best = logits.amax(dim=-1)
    if not bool(best.isfinite().all()):
        raise ValueError("the request's parameters leave no finite logit to choose from")


def _reported_logprobs(logits: torch.Tensor, sequences: Rows[Sequence]) -> dict[int, torch.Tensor]:
    """Log probabilities, shape [vocabulary], of the rows that asked for them: the model's own, before any parameter."""
    rows = [row for row, sequence in enumerate(sequences) if sequence.request.sampling.logprobs is not None]
    if not rows:
        return {}
    logprobs = logits[torch.tensor(rows, device=logits.device)].log_softmax(dim=-1)
    return dict(zip(rows, logprobs, strict=True))


def _report(logprobs: torch.Tensor, token_id: int, sequence: Sequence) -> None:
    wanted = min(sequence.request.sampling.logprobs or 0, len(logprobs))
    values, ids = logprobs.topk(wanted)
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    sequence.logprobs = TokenLogprobs(chosen=float(logprobs[token_id]), top=top)


def draw(logits: torch.Tensor, sequences: Rows[Sequence]) -> torch.Tensor:
    """One token id a row, shape [rows], after temperature, min_p, top_k and top_p, in that order (as vLLM).

    One number of the sequence's own generator for each token, looked up in the row's cumulative distribution:
    what a seed gives does not depend on the rest of the batch.
    """
    params = [sequence.request.sampling for sequence in sequences]
    # From the best one down, so that a small temperature and large logits never leave float32's range at its top.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / _column([one.temperature for one in params], logits)
    logits = _keep_min_p(logits, params)
    logits = _keep_top_k(logits, params)
    logits = _keep_top_p(logits, params)
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = _column([sequence.rng.random() for sequence in sequences], logits) * total
    # Strictly below the total, so that rounding never runs into the impossible tokens at the row's end.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def _keep_min_p(logits: torch.Tensor, params: Rows[SamplingParams]) -> torch.Tensor:
    if not any(one.min_p for one in params):
        return logits
    floor = logits.amax(dim=-1, keepdim=True) + _column([one.min_p for one in params], logits).log()
    return logits.masked_fill(logits < floor, -torch.inf)


def _keep_top_k(logits: torch.Tensor, params: Rows[SamplingParams]) -> torch.Tensor:
    vocabulary = logits.shape[-1]
    rows = [row for row, one in enumerate(params) if 0 < one.top_k < vocabulary]
    if not rows:
        return logits
    index = torch.tensor(rows, device=logits.device)
    sizes = torch.tensor([params[row].top_k for row in rows], device=logits.device)
    largest = logits[index].topk(int(sizes.max()), dim=-1).values
    floor = largest.gather(1, (sizes - 1).unsqueeze(1))
    logits[index] = logits[index].masked_fill(logits[index] < floor, -torch.inf)
    return logits


def _keep_top_p(logits: torch.Tensor, params: Rows[SamplingParams]) -> torch.Tensor:
    """Keeps the likeliest tokens that together reach top_p: a token stays while those before it fall short."""
    rows = [row for row, one in enumerate(params) if one.top_p < 1.0]
    if not rows:
        return logits
    index = torch.tensor(rows, device=logits.device)
    part = logits[index]
    wanted = _column([params[row].top_p for row in rows], logits)
    total = part.logsumexp(dim=-1, keepdim=True)
    candidates = part.topk(min(NUCLEUS, part.shape[-1]), dim=-1).values
    mass = (candidates - total).exp()
    if bool((mass.sum(dim=-1, keepdim=True) < wanted).any()):
        candidates = part.sort(dim=-1, descending=True).values
        mass = (candidates - total).exp()
    kept = (mass.cumsum(dim=-1) - mass) < wanted
    floor = candidates.gather(1, kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1)
    logits[index] = part.masked_fill(part < floor, -torch.inf)
    return logits


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)
