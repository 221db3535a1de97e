// The inner loop of every float product: a few rows times two vectors of columns.
#pragma once

#include "simd.h"

namespace sluice {

// Rows that a tile computes together: as many as keep all sums in registers at every level.
constexpr int kTileRows = 6;

// Columns that a tile computes together.
constexpr int kTileWidth = 2 * kLanes;

// Two vectors of neighbouring columns, in an order of lanes that suits the kind of number: `to_columns` undoes
// what `from_columns` does.
SLUICE_INLINE void load_two(const float* from, Floats (&two)[2]) { two[0] = load(from), two[1] = load(from + kLanes); }
SLUICE_INLINE void from_columns(const float*, Floats (&)[2]) {}
SLUICE_INLINE void to_columns(const float*, Floats (&)[2]) {}

// Brain floats become floats in one instruction each if neighbours go to different vectors.
SLUICE_INLINE void load_two(const Bfloat16* from, Floats (&two)[2]) {
  Ints pairs;
  std::memcpy(&pairs, from, sizeof pairs);
  two[0] = (Floats)(pairs << 16), two[1] = (Floats)(pairs & int32_t(0xffff0000));
}
SLUICE_INLINE void from_columns(const Bfloat16*, Floats (&two)[2]) {
  Ints even, odd;
  for (int i = 0; i < kLanes; ++i) even[i] = 2 * i, odd[i] = 2 * i + 1;
  const Floats first = __builtin_shuffle(two[0], two[1], even);
  two[1] = __builtin_shuffle(two[0], two[1], odd);
  two[0] = first;
}
SLUICE_INLINE void to_columns(const Bfloat16*, Floats (&two)[2]) {
  Ints lower, upper;
  for (int i = 0; i < kLanes; ++i) lower[i] = i / 2 + i % 2 * kLanes, upper[i] = lower[i] + kLanes / 2;
  const Floats first = __builtin_shuffle(two[0], two[1], lower);
  two[1] = __builtin_shuffle(two[0], two[1], upper);
  two[0] = first;
}

// `sums` += rows [kRows, depth] times columns [depth, kTileWidth], whose rows are `column_stride` apart. Each
// sum is one chain of multiply-adds in the order of depth, so a row's result is the same in any company.
template <int kRows, class Weight>
SLUICE_INLINE void add_products(const float* rows, int64_t row_stride, const Weight* columns,
                                int64_t column_stride, int depth, Floats (&sums)[kRows][2]) {
  for (int r = 0; r < kRows; ++r) from_columns(columns, sums[r]);
  for (int k = 0; k < depth; ++k, columns += column_stride) {
    Floats two[2];
    load_two(columns, two);
    for (int r = 0; r < kRows; ++r) {
      const Floats value = splat(rows[r * row_stride + k]);
      sums[r][0] += value * two[0];
      sums[r][1] += value * two[1];
    }
  }
  for (int r = 0; r < kRows; ++r) to_columns(columns, sums[r]);
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
