// Root-mean-square normalisation of one row.
#pragma once

namespace sluice {

// `normed` [size] = `hidden` divided by its root mean square, times `weight`. The two may be the same array.
void rms_norm_row(const float* hidden, const float* weight, int size, float epsilon, float* normed);

}  // namespace sluice
