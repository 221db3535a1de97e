#include "native.h"

#include "simd.h"
#include "threads.h"

namespace sluice {

void silu_and_mul_row(const float* gate_and_up, int size, float* activated) {
  const float *gate = gate_and_up, *up = gate_and_up + size;
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats some = load(gate + i);
    store(activated + i, some / (1.0f + exponential(-some)) * load(up + i));
  }
  for (; i < size; ++i) activated[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

}  // namespace sluice

extern "C" void sluice_silu_and_mul(const float* gate_and_up, int num_rows, int size, float* activated) {
  sluice::parallel_ranges(num_rows, 4, [&](int first, int last) {
    for (int64_t row = first; row < last; ++row)
      sluice::silu_and_mul_row(gate_and_up + row * 2 * size, size, activated + row * size);
  });
}
