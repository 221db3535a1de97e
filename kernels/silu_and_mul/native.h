// The gated activation of one row.
#pragma once

namespace sluice {

// `activated` [size] = SiLU of the first half of `gate_and_up` [2 * size], times the second half.
void silu_and_mul_row(const float* gate_and_up, int size, float* activated);

}  // namespace sluice
