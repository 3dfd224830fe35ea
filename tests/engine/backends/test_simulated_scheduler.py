"""The simulated scheduler keeps real bounds: sequences, batched tokens, KV blocks; and gives back all that it took."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.simulated.scheduler import Script, ScriptedSequence, SimulatedScheduler
from engine.types import EngineRequest, FinishReason, SamplingParams, SequenceOutput

MAX_STEPS = 5_000


def scheduler(**bounds: int) -> SimulatedScheduler:
    defaults = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "num_kv_blocks": 8, "block_size": 4}
    return SimulatedScheduler(**(defaults | bounds))


def sequence(request_id: str, prompt_tokens: int, output_tokens: int, **script: object) -> ScriptedSequence:
    request = EngineRequest(request_id, [0] * prompt_tokens, SamplingParams(max_tokens=10_000))
    return ScriptedSequence(request, Script(tuple(range(output_tokens)), **script))  # type: ignore[arg-type]


def run(subject: SimulatedScheduler) -> dict[str, list[SequenceOutput]]:
    """Steps until there is no work; each sequence's outputs in order."""
    outputs: dict[str, list[SequenceOutput]] = {}
    for _ in range(MAX_STEPS):
        if not subject.has_work:
            return outputs
        for output in subject.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
        held = sum(running.blocks for running in subject.running)
        assert held + subject.blocks_free == subject.num_kv_blocks
        assert len(subject.running) <= subject.max_num_seqs
        assert all(running.blocks * subject.block_size >= running.prefilled for running in subject.running)
    raise AssertionError("the scheduler never came to an end")


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 12)), min_size=1, max_size=12),
    blocks=st.integers(8, 20),
    tokens_per_step=st.integers(1, 4),
)
@settings(deadline=None)
def test_every_sequence_says_its_script_whatever_the_bounds(
    lengths: list[tuple[int, int]], blocks: int, tokens_per_step: int
) -> None:
    """With room for one sequence at least, all come to their end in order, preempted or not, and no block is lost."""
    subject = scheduler(num_kv_blocks=blocks)
    for number, (prompt, output) in enumerate(lengths):
        subject.add(sequence(str(number), prompt, output, tokens_per_step=tokens_per_step))
    outputs = run(subject)
    for number, (_, output) in enumerate(lengths):
        said = [token_id for step in outputs[str(number)] for token_id in step.token_ids]
        assert said == list(range(output))
        assert [step.finish_reason for step in outputs[str(number)]][-1] is FinishReason.STOP
    assert subject.blocks_free == blocks


def test_a_long_prefill_is_chunked_and_the_others_go_on() -> None:
    """A prompt longer than the step's token budget takes several steps, in which running sequences decode."""
    subject = scheduler(num_kv_blocks=100, max_num_batched_tokens=8)
    subject.add(sequence("short", 2, 20))
    subject.step()
    subject.add(sequence("long", 40, 1))
    first = next(
        number for number in range(30) if any(output.request_id == "long" for output in subject.step().outputs)
    )
    assert first >= 40 // 8
    assert subject.running[0].generated == first + 1


def test_when_blocks_run_out_the_last_admitted_is_recomputed() -> None:
    """Growth beyond the blocks preempts, and the preempted sequence goes on from where it was."""
    subject = scheduler(num_kv_blocks=4, block_size=4)
    subject.add(sequence("first", 4, 10))
    subject.add(sequence("second", 4, 6))
    outputs = run(subject)
    assert subject.preemptions_total > 0
    assert [token_id for step in outputs["second"] for token_id in step.token_ids] == list(range(6))


def test_removal_frees_at_once_wherever_the_sequence_is() -> None:
    """A waiting, a prefilling and a decoding sequence leave nothing behind."""
    subject = scheduler(num_kv_blocks=100, max_num_seqs=2, max_num_batched_tokens=8)
    for name, prompt in (("decoding", 2), ("prefilling", 60), ("waiting", 2)):
        subject.add(sequence(name, prompt, 50))
        subject.step()
    subject.remove({"decoding", "prefilling", "waiting", "unknown"})
    assert not subject.has_work
    assert subject.blocks_free == 100


def test_scripted_steps_group_the_tokens() -> None:
    """`steps` says how many tokens each step holds; afterwards one a step; the end comes with the last token."""
    subject = scheduler()
    subject.add(sequence("a", 1, 6, steps=(2, 3)))
    outputs = run(subject)["a"]
    assert [output.token_ids for output in outputs] == [[0, 1], [2, 3, 4], [5]]
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.STOP]
