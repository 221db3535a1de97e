"""How long a step takes, learned from the steps before. Knows amounts of work, never sequences. Pure."""

import math
from collections import deque
from collections.abc import Sequence as Row
from dataclasses import dataclass

LEAST_STEPS = 16  # before them the fit is a guess
OUTLIER_SPREADS = 4.0  # a step slower than predicted by more than this many usual errors teaches nothing ...
SPREAD_GROWTH = 1.5  # ... but widens what is usual: ten in a row are a slower machine, not ten accidents
DRIFT_GAIN = 0.03
DRIFT_SPREADS = 0.7
KEPT_AFTER_DRIFT = 0.1
SPREAD_GAIN = 0.05
FIRST_TAIL, TAIL_GAIN = 1.1, 0.03
TAIL_QUANTILE = 0.98  # more than is promised: what follows a step, publishing and the network, varies as well
LEAST_SPREAD = 0.05  # of the prediction: no machine is steadier
FORGETTING = 0.05  # a step weighs 1/e of a new one after 20 of its kind
ANCHOR = 1e-9  # of a step's weight: keeps what no step told about where it is, and solvable
LEAST_PIVOT = 1e-12
LEAST_UNIT_SECONDS = 1e-6
LEAST_SECONDS_PER_TOKEN = 1e-8  # no machine is faster
OPTIMISM = 0.8
OPTIMISTIC_STEPS = 8  # the fastest of so many fits counts, so that no single step makes a bound rise

# Amounts in a step of ordinary size, so that all columns are of one magnitude.
PREFILL_SCALE, DECODE_SCALE, ATTENTION_SCALE = 512, 32, 32_768


@dataclass(frozen=True, slots=True)
class StepLoad:
    """The work of one step.

    `num_context_tokens`: in the cache before it, read by decode rows, summed over them. `num_prefill_pairs`:
    of a token of a chunk and one that it attends to, summed over chunks.
    """

    num_prefill_tokens: int = 0
    num_decode_rows: int = 0
    num_context_tokens: int = 0
    num_prefill_pairs: int = 0


class StepTimeModel:
    """seconds = a + b * prefill tokens + c * decode rows + d * (context tokens + pair cost * prefill pairs).

    None of a to d is negative. The linear form is HyGen's, with the pairs added: a chunk at the end of a long
    prompt costs several times what it costs at the start. What a pair costs beside a context token is the
    device's and not learned: while a long prompt is computed beside decoding rows, both grow together, and
    steps do not tell the one from the other.

    It is fitted by recursive least squares in information form, on relative errors. A step makes older ones
    fade only in the direction that it speaks about itself (Cao and Schwartz, "A directional forgetting
    algorithm", 2000): thousands of steps that only decode leave the cost of prefill as it was learned, and
    no covariance winds up. A step that is far slower than predicted is left out, unless its kind of load is
    so new that the prediction meant nothing.
    """

    def __init__(self, prefill_pair_cost: float = 0.0) -> None:
        """`prefill_pair_cost`: of a prefill pair, in those of a context token that a decoding row reads."""
        self._pair_cost = prefill_pair_cost
        self._num_steps = 0
        self._num_prefill_steps = 0
        self._information = [[0.0] * 4 for _ in range(4)]
        self._evidence = [0.0] * 4  # information times coefficients
        self._fit = [0.0] * 4  # of the scaled columns, never negative
        self._spread = 0.1  # the usual size of errors, as a share of the prediction
        self._drift = 0.0  # their mean, with the sign
        self._tail = FIRST_TAIL
        self._per_step = self._per_prefill_token = self._per_decode_row = self._per_context_token = 0.0
        self._low_prefill_fits = deque([0.0] * OPTIMISTIC_STEPS, maxlen=OPTIMISTIC_STEPS)
        self._low_decode_fits = deque([(0.0, 0.0)] * OPTIMISTIC_STEPS, maxlen=OPTIMISTIC_STEPS)

    @property
    def is_trained(self) -> bool:
        """Whether enough steps were seen for predictions to be relied on."""
        return self._num_steps >= LEAST_STEPS

    @property
    def knows_prefill(self) -> bool:
        """Whether there is an opinion on what prompt tokens cost: none before any step had some."""
        return self.is_trained and self._num_prefill_steps > 0

    @property
    def seconds_per_prefill_token(self) -> float:
        """What one more prompt token costs, without what it attends to; above zero always."""
        return max(self._per_prefill_token, LEAST_SECONDS_PER_TOKEN)

    @property
    def tail(self) -> float:
        """How much longer than predicted a step with prompt tokens takes that only one of 50 exceeds."""
        return self._tail

    def decode_row_seconds(self, num_context_tokens: int) -> float:
        """What one more decoding sequence costs; above zero always."""
        return max(
            self._per_decode_row + self._per_context_token * num_context_tokens, LEAST_SECONDS_PER_TOKEN
        )

    def seconds(self, load: StepLoad) -> float:
        """The predicted duration; 0.0 while untrained."""
        return (
            self._per_step
            + self._per_prefill_token * load.num_prefill_tokens
            + self._per_decode_row * load.num_decode_rows
            + self._per_context_token * self._attention(load)
        )

    def chunk_within(self, seconds: float, start: int) -> int:
        """How many tokens of a prompt fit into `seconds` when `start` stand before them; 0 if none.

        With e for a pair's cost n tokens take (b + e * (start + 1/2)) * n + e/2 * n^2: this is the root.
        """
        if seconds <= 0:
            return 0
        per_pair = self._per_context_token * self._pair_cost
        linear = self.seconds_per_prefill_token + per_pair * (start + 0.5)
        return int(2 * seconds / (linear + math.sqrt(linear * linear + 2 * per_pair * seconds)))

    def least_seconds(self, num_prefill_tokens: int, num_decodes: int, max_tokens_per_step: int) -> float:
        """A time that so much prefill, then so many steps of one row, cannot be faster than; 0.0 if unknown.

        Optimistic: for a request alone, without context, by the fastest of the latest fits, less twice the
        uncertainty of the fit for just this work. Where loads never varied enough to tell, it is 0.0.
        """
        if not self.is_trained:
            return 0.0
        num_steps = -(-num_prefill_tokens // max_tokens_per_step) + num_decodes
        work = [num_steps, num_prefill_tokens / PREFILL_SCALE, num_decodes / DECODE_SCALE, 0.0]
        fastest = work[1] * min(self._low_prefill_fits) + min(
            num_steps * per_step + work[2] * per_row for per_step, per_row in self._low_decode_fits
        )
        doubt = 2 * self._spread * math.sqrt(self._uncertainty(work))
        return OPTIMISM * max(0.0, fastest - doubt)

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learns from a step that took `seconds`. A duration of zero or less is no measurement."""
        if seconds <= 0:
            return
        columns = [
            1.0,
            load.num_prefill_tokens / PREFILL_SCALE,
            load.num_decode_rows / DECODE_SCALE,
            self._attention(load) / ATTENTION_SCALE,
        ]
        predicted = max(_dot(columns, self._fit), LEAST_UNIT_SECONDS)
        if not self.is_trained:
            self._learn(load, columns, seconds, unit=max(predicted, seconds))
            return
        if load.num_prefill_tokens:
            self._follow_tail(seconds / predicted)
        error = seconds / predicted - 1
        usual = OUTLIER_SPREADS * self._spread
        # Only a slow step can be an accident: nothing makes a machine faster than it is.
        if error <= usual:
            self._spread += SPREAD_GAIN * (abs(error) - self._spread)
            self._learn(load, columns, seconds, unit=predicted)
        elif self._is_new_kind(columns, predicted, error / usual):
            # In units of its own duration, it weighs little should it have been an accident.
            self._learn(load, columns, seconds, unit=seconds)
            return
        else:
            self._spread *= SPREAD_GROWTH
        self._spread = max(LEAST_SPREAD, self._spread)
        self._follow_drift(min(error, usual))

    def _follow_tail(self, ratio: float) -> None:
        """Of 50 steps 49 lower it a little, and one raises it 49 times as much: so it stays at that quantile.

        (Robbins and Monro, "A stochastic approximation method", 1951.) Accidents count: people meet them.
        """
        self._tail = max(1.0, self._tail + TAIL_GAIN * (TAIL_QUANTILE - (ratio <= self._tail)))

    def _follow_drift(self, error: float) -> None:
        """Errors that nearly all go one way are another machine: all costs change, and are known less well.

        Noise does not come near the limit, or costs that no step renews would wander off with it.
        """
        self._drift += DRIFT_GAIN * (error - self._drift)
        if abs(self._drift) <= DRIFT_SPREADS * self._spread:
            return
        factor = 1 + self._drift
        self._information = [[KEPT_AFTER_DRIFT * value for value in line] for line in self._information]
        self._evidence = [KEPT_AFTER_DRIFT * factor * value for value in self._evidence]
        self._fit = [factor * value for value in self._fit]
        self._spread = max(LEAST_SPREAD, self._spread - abs(self._drift))  # what was not drift
        self._drift = 0.0
        self._publish()

    def _is_new_kind(self, columns: Row[float], predicted: float, excess: float) -> bool:
        """Whether the fit knows too little of such a load to call `excess` usual errors an accident."""
        uncertainty = self._uncertainty([column / predicted for column in columns])
        return excess <= math.sqrt(1 + uncertainty)

    def _learn(self, load: StepLoad, columns: Row[float], seconds: float, unit: float) -> None:
        self._fit_to(columns, seconds, unit)
        self._num_steps += 1
        self._low_decode_fits.append((self._fit[0], self._fit[2]))
        if load.num_prefill_tokens:
            self._num_prefill_steps += 1
            self._low_prefill_fits.append(self._fit[1])
        if self.is_trained:
            self._publish()

    def _fit_to(self, columns: Row[float], seconds: float, unit: float) -> None:
        """Adds a step as a share of `unit`: errors of short steps matter as much as those of long ones."""
        row = [column / unit for column in columns]
        information, evidence = self._information, self._evidence
        known = [_dot(line, row) for line in information]
        about = _dot(known, row)
        fade = FORGETTING / about if about > 0 else 0.0
        fade_evidence = fade * _dot(evidence, row)
        anchor = ANCHOR / (unit * unit)
        for index, line in enumerate(information):
            gain, loss = row[index], fade * known[index]
            information[index] = [
                value + gain * row[other] - loss * known[other] for other, value in enumerate(line)
            ]
            information[index][index] += anchor
            evidence[index] += (
                gain * seconds / unit - fade_evidence * known[index] + anchor * self._fit[index]
            )
        self._fit = _solve_nonnegative(information, evidence)

    def _publish(self) -> None:
        self._per_step = self._fit[0]
        self._per_prefill_token = self._fit[1] / PREFILL_SCALE
        self._per_decode_row = self._fit[2] / DECODE_SCALE
        self._per_context_token = self._fit[3] / ATTENTION_SCALE

    def _attention(self, load: StepLoad) -> float:
        return load.num_context_tokens + self._pair_cost * load.num_prefill_pairs

    def _uncertainty(self, row: Row[float]) -> float:
        """The variance of what the fit says of `row`, in units of one observation's."""
        return max(0.0, _dot(row, _solve(self._information, row)))


def _dot(left: Row[float], right: Row[float]) -> float:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2] + left[3] * right[3]


def _solve_nonnegative(matrix: Row[Row[float]], target: Row[float]) -> list[float]:
    """Least squares, none below zero: the most negative is fixed at zero and the others are fitted anew."""
    solution = _solve(matrix, target)
    while (lowest := min(solution)) < 0:
        fixed = solution.index(lowest)
        matrix, target = _without(fixed, matrix, target)
        solution = _solve(matrix, target)
        solution[fixed] = 0.0
    return solution


def _without(
    fixed: int, matrix: Row[Row[float]], target: Row[float]
) -> tuple[list[list[float]], list[float]]:
    """The equations when one variable is zero: its own says just that, the others do not mention it."""
    kept = [[0.0 if fixed in (i, j) else matrix[i][j] for j in range(4)] for i in range(4)]
    kept[fixed][fixed] = 1.0
    return kept, [0.0 if i == fixed else target[i] for i in range(4)]


def _solve(matrix: Row[Row[float]], target: Row[float]) -> list[float]:
    """Solves four equations with a symmetric positive matrix, L D L' written out: a third of a loop's time.

    Rounding must not turn a column that depends on others into one known precisely, hence the least pivots.
    """
    (m00, m01, m02, m03), (_, m11, m12, m13), (_, _, m22, m23), (_, _, _, m33) = matrix
    y0, y1, y2, y3 = target
    l1, l2, l3 = m01 / m00, m02 / m00, m03 / m00
    d1 = max(m11 - l1 * m01, LEAST_PIVOT * m11)
    p2, p3 = m12 - l1 * m02, m13 - l1 * m03
    k2, k3 = p2 / d1, p3 / d1
    d2 = max(m22 - l2 * m02 - k2 * p2, LEAST_PIVOT * m22)
    q3 = m23 - l2 * m03 - k2 * p3
    j3 = q3 / d2
    d3 = max(m33 - l3 * m03 - k3 * p3 - j3 * q3, LEAST_PIVOT * m33)
    y1 -= l1 * y0
    y2 -= l2 * y0 + k2 * y1
    y3 -= l3 * y0 + k3 * y1 + j3 * y2
    x3 = y3 / d3
    x2 = y2 / d2 - j3 * x3
    x1 = y1 / d1 - k2 * x2 - k3 * x3
    return [y0 / m00 - l1 * x1 - l2 * x2 - l3 * x3, x1, x2, x3]
