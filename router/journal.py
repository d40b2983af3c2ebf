"""What is noted of each request while a run goes on, and made into its record at the end."""

from __future__ import annotations

from array import array

import numpy as np

from endcast.router.entries import NOTHING
from endcast.router.policy import BoolArray
from endcast.router.prefill import Prefilled
from endcast.router.prefix import hit_tokens
from endcast.router.record import SUMS, RunRecord
from endcast.survival import FloatArray, IntArray


class Journal:
    """Of n requests in the order in which they reach decode. Times are NaN until they are known."""

    def __init__(self, count: int) -> None:
        self.admission_s, self.first_token_s, self.finish_s = (np.full(count, np.nan) for _ in range(3))
        self.admission_step, self.worker = (np.full(count, NOTHING, dtype=np.int64) for _ in range(2))
        self.preempted, self.requeued = (np.zeros(count, dtype=np.int64) for _ in range(2))
        self.made = np.zeros(count, dtype=np.int64)  # tokens generated on workers that were lost
        self.anew = np.zeros(count, dtype=np.bool_)  # what must be prefilled again when it starts
        self.lost = False  # whether any worker was
        self.recomputed_tokens = 0
        self.sums: FloatArray = np.zeros(SUMS)

    def lose(self, request: IntArray, generated: IntArray, started: BoolArray) -> None:
        """Requests (k,) go back after so many tokens (k,) on a lost worker, where they had ``started`` (k,) or not."""
        self.lost = True
        self.requeued[request] += 1
        self.made[request] += generated
        self.anew[request] |= started

    def start(self, request: IntArray, worker: IntArray, now: float, step: int) -> IntArray:
        """Requests (k,) start on workers (k,): those that never did before."""
        self.worker[request] = worker
        if self.lost:
            self.anew[request] = False
            request = request[self.admission_step[request] == NOTHING]
        self.admission_s[request] = now
        self.admission_step[request] = step
        return request

    def record(
        self, staged: Prefilled, decision_ns: array[int], *, steps: int, rejected: int, refused: int
    ) -> RunRecord:
        """All that was served, in order of arrival; ``refused`` of these requests were not."""
        back = np.argsort(staged.order, kind="stable")
        served = back[np.isfinite(self.finish_s[back])] if refused else back
        return RunRecord(
            prompt=staged.workload.prompt[served],
            output=staged.workload.output[served],
            worker=self.worker[served],
            arrival_s=staged.arrival_s[served],
            prefill_s=staged.prefill_s[served],
            reached_s=staged.workload.arrival_s[served],
            admission_s=self.admission_s[served],
            first_token_s=self.first_token_s[served],
            finish_s=self.finish_s[served],
            admission_step=self.admission_step[served],
            sums=self.sums,
            decision_ns=np.array(decision_ns, dtype=np.int64),
            steps=steps,
            rejected=rejected,
            preempted=self.preempted[served],
            requeued=self.requeued[served],
            recomputed_tokens=self.recomputed_tokens,
            prefix_hits=self._prefix_hits(staged),
        )

    def _prefix_hits(self, staged: Prefilled) -> int:
        load = staged.workload
        if not load.prefix_blocks:
            return 0
        workers = int(self.worker.max()) + 1
        return hit_tokens(self.worker, self.admission_step, load.prompt, load.prefix_blocks, workers)
