"""What a run leaves behind: times and places of every request, and sums over its steps."""

from __future__ import annotations

from dataclasses import dataclass

from endcast.survival import FloatArray, IntArray

#: Sums over the steps that start by the last arrival (at the decode workers). Loads of unlike workers are taken over their speeds, v:
#: number of steps, their seconds, when the last of them ended, the seconds that perfect balance of the same batches would
#: have needed, those that no balance changes, Σ_g v_g·M(k) with M = max_g L_g/v_g, Σ_g L_g(k), tokens, and slots that
#: made some.
STEPS, STEP_S, END_S, BALANCED_S, BASE_S, IDEAL, LOAD, TOKENS, BUSY = range(9)
SUMS = 9


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What happened in one run. Over the n requests served, in order of arrival: tokens, times in seconds, steps, and
    the worker that served each last.

    ``sums`` (SUMS,) over the steps that start by the last arrival, indexed by this module's constants; ``decision_ns``
    CPU time of each routing round, from the step's events to the slots filled; ``preempted`` how often each was thrown
    out, ``requeued`` how often its worker was lost under it.
    """

    prompt: IntArray
    output: IntArray
    worker: IntArray
    arrival_s: FloatArray
    prefill_s: FloatArray  #: seconds that its prefill took; 0 where none is simulated
    reached_s: FloatArray  #: when it reached the decode workers: its arrival, where no prefill is simulated
    admission_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    admission_step: IntArray
    sums: FloatArray
    decision_ns: IntArray
    steps: int
    rejected: int  #: requests refused: larger than any worker or, later on, than theirs; or shed by the policy
    preempted: IntArray
    requeued: IntArray
    recomputed_tokens: int  #: prefilled anew when requests that had been thrown out or lost went on
    prefix_hits: int = 0  #: prompt tokens that the worker had seen at the head of requests started there before
