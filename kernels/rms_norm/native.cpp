#include "native.h"

#include "simd.h"
#include "threads.h"

namespace sluice {

void rms_norm_row(const float* hidden, const float* weight, int size, float epsilon, float* normed) {
  Floats squares{};
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats some = load(hidden + i);
    squares += some * some;
  }
  float total = sum_of_lanes(squares);
  for (; i < size; ++i) total += hidden[i] * hidden[i];
  const float scale = 1.0f / std::sqrt(total / size + epsilon);
  for (i = 0; i + kLanes <= size; i += kLanes)
    store(normed + i, load(hidden + i) * splat(scale) * load(weight + i));
  for (; i < size; ++i) normed[i] = hidden[i] * scale * weight[i];
}

}  // namespace sluice

using namespace sluice;

extern "C" {

void sluice_rms_norm(const float* hidden, const float* weight, int num_rows, int size, float epsilon,
                     float* normed) {
  parallel_ranges(num_rows, 8, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row)
      rms_norm_row(hidden + row * size, weight, size, epsilon, normed + row * size);
  });
}

// `residual` += `hidden`, and `normed` is that sum's norm.
void sluice_add_and_rms_norm(const float* hidden, float* residual, const float* weight, int num_rows, int size,
                             float epsilon, float* normed) {
  parallel_ranges(num_rows, 8, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row) {
      float* sum = residual + row * size;
      for (int i = 0; i < size; ++i) sum[i] += hidden[row * size + i];
      rms_norm_row(sum, weight, size, epsilon, normed + row * size);
    }
  });
}
}
