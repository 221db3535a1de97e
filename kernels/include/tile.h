// The inner loop of every float product: a few rows times two vectors of columns.
#pragma once

#include "simd.h"

namespace sluice {

// Rows that a tile computes together: as many as keep all sums in registers at every level.
constexpr int kTileRows = 6;

// Columns that a tile computes together.
constexpr int kTileWidth = 2 * kLanes;

// `sums` += rows [kRows, depth] times columns [depth, kTileWidth], whose rows are `column_stride` apart. Each
// sum is one chain of multiply-adds in the order of depth, so a row's result is the same in any company.
template <int kRows, class Weight>
SLUICE_INLINE void add_products(const float* rows, int64_t row_stride, const Weight* columns,
                                int64_t column_stride, int depth, Floats (&sums)[kRows][2]) {
  for (int k = 0; k < depth; ++k, columns += column_stride) {
    const Floats left = load(columns), right = load(columns + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Floats value = splat(rows[r * row_stride + k]);
      sums[r][0] += value * left;
      sums[r][1] += value * right;
    }
  }
}

// Calls `work` with 1 to kTileRows as a compile-time constant.
template <class Work>
SLUICE_INLINE void with_tile_rows(int num_rows, const Work& work) {
  switch (num_rows) {
    case 1: return work(std::integral_constant<int, 1>{});
    case 2: return work(std::integral_constant<int, 2>{});
    case 3: return work(std::integral_constant<int, 3>{});
    case 4: return work(std::integral_constant<int, 4>{});
    case 5: return work(std::integral_constant<int, 5>{});
    default: return work(std::integral_constant<int, kTileRows>{});
  }
}

}  // namespace sluice
