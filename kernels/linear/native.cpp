#include "native.h"

#include <algorithm>

#include "threads.h"
#include "tile.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sluice {
namespace {

// ---- int8 tiles -------------------------------------------------------------------------------------------
// A panel is [padded in_size / kStep][kPanelWidth][kStep], whole numbers. Sums within a group are exact; the
// groups' sums are scaled and added in order.

#if defined(__AVX512VNNI__)

// Weights are stored unsigned, by adding 128, because vpdpbusd multiplies unsigned by signed bytes.
constexpr int kStep = 4;
constexpr int kStoredOffset = 128;
constexpr int kInt8TileRows = kTileRows;
typedef uint8_t StoredWeight;

template <int kRows>
void group_sums(const Quantised* values, int stride, const StoredWeight* panel, const int32_t* offsets,
                int num_groups, Ints (&sums)[kRows][2]) {
  __m512i totals[kRows][2];
  for (int r = 0; r < kRows; ++r)
    totals[r][0] = totals[r][1] = _mm512_set1_epi32(offsets[int64_t(r) * num_groups]);
  for (int k = 0; k < kGroupSize; k += kStep, panel += kPanelWidth * kStep) {
    const __m512i left = _mm512_loadu_si512(panel), right = _mm512_loadu_si512(panel + 64);
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, values + int64_t(r) * stride + k, sizeof four);
      const __m512i inputs = _mm512_set1_epi32(four);
      totals[r][0] = _mm512_dpbusd_epi32(totals[r][0], left, inputs);
      totals[r][1] = _mm512_dpbusd_epi32(totals[r][1], right, inputs);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = (Ints)totals[r][0];
    sums[r][1] = (Ints)totals[r][1];
  }
}

#elif defined(__AVX2__)

constexpr int kStep = 2;
constexpr int kStoredOffset = 0;
constexpr int kInt8TileRows = 4;
typedef int8_t StoredWeight;

// Never inlined: beside the caller's floats there are too few registers for these sums.
template <int kRows>
__attribute__((noinline)) void group_sums(const Quantised* values, int stride, const StoredWeight* panel, const int32_t*, int,
                Ints (&sums)[kRows][2]) {
  __m256i totals[kRows][2];
  for (int r = 0; r < kRows; ++r) totals[r][0] = totals[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 4  // fewer copies between registers, of which the loop is full
  for (int k = 0; k < kGroupSize; k += kStep, panel += kPanelWidth * kStep) {
    const __m256i left = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)panel));
    const __m256i right = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(panel + 16)));
    for (int r = 0; r < kRows; ++r) {
      int32_t two;
      std::memcpy(&two, values + int64_t(r) * stride + k, sizeof two);
      const __m256i inputs = _mm256_set1_epi32(two);
      totals[r][0] = _mm256_add_epi32(totals[r][0], _mm256_madd_epi16(left, inputs));
      totals[r][1] = _mm256_add_epi32(totals[r][1], _mm256_madd_epi16(right, inputs));
    }
  }
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = (Ints)totals[r][0];
    sums[r][1] = (Ints)totals[r][1];
  }
}

#else

constexpr int kStep = 2;
constexpr int kStoredOffset = 0;
constexpr int kInt8TileRows = 4;
typedef int8_t StoredWeight;

template <int kRows>
void group_sums(const Quantised* values, int stride, const StoredWeight* panel, const int32_t*, int,
                Ints (&sums)[kRows][2]) {
  int32_t totals[kRows][kPanelWidth] = {};
  for (int k = 0; k < kGroupSize; k += kStep, panel += kPanelWidth * kStep)
    for (int r = 0; r < kRows; ++r) {
      const int32_t first = values[int64_t(r) * stride + k], second = values[int64_t(r) * stride + k + 1];
      for (int n = 0; n < kPanelWidth; ++n)
        totals[r][n] += panel[2 * n] * first + panel[2 * n + 1] * second;
    }
  std::memcpy(sums, totals, sizeof totals);
}

#endif

template <int kRows>
void int8_tile(const QuantisedRows& input, int first_row, int in_size, const StoredWeight* panel,
               const float* scales, Floats (&sums)[kRows][2]) {
  const int groups = num_groups(in_size), stride = groups * kGroupSize;
  const Quantised* values = input.values + int64_t(first_row) * stride;
  const int64_t first_group = int64_t(first_row) * groups;
  for (int g = 0; g < groups; ++g) {
    Ints exact[kRows][2];
    group_sums<kRows>(values + g * kGroupSize, stride, panel + int64_t(g) * kGroupSize * kPanelWidth,
                      input.offsets + first_group + g, groups, exact);
    for (int r = 0; r < kRows; ++r) {
      const Floats scale = splat(input.scales[first_group + int64_t(r) * groups + g]);
      sums[r][0] += __builtin_convertvector(exact[r][0], Floats) * scale;
      sums[r][1] += __builtin_convertvector(exact[r][1], Floats) * scale;
    }
  }
  const Floats left = load(scales), right = load(scales + kLanes);
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] *= left;
    sums[r][1] *= right;
  }
}

typedef Quantised QuantisedLanes __attribute__((vector_size(kLanes * sizeof(Quantised))));

// ---- From tiles to the whole ------------------------------------------------------------------------------

template <int kRows>
void write_tile(const Linear& layer, const Floats (&sums)[kRows][2], int first_row, int panel, float* output,
                Output mode) {
  const int first = panel * kPanelWidth, width = std::min(kPanelWidth, layer.out_size - first);
  for (int r = 0; r < kRows; ++r) {
    float* to = output + int64_t(first_row + r) * layer.out_size + first;
    if (width == kPanelWidth) {
      for (int half = 0; half < 2; ++half, to += kLanes) {
        Floats value = sums[r][half];
        if (layer.bias) value += load(layer.bias + first + half * kLanes);
        store(to, mode == Output::kAdd ? load(to) + value : value);
      }
    } else {
      float values[kPanelWidth];
      store(values, sums[r][0]);
      store(values + kLanes, sums[r][1]);
      for (int n = 0; n < width; ++n) {
        const float value = layer.bias ? values[n] + layer.bias[first + n] : values[n];
        to[n] = mode == Output::kAdd ? to[n] + value : value;
      }
    }
  }
}

// Float panels are [in_size][kPanelWidth].
template <int kRows, class Weight>
void float_tile(const LinearInput& input, int row, const Linear& layer, int panel, Floats (&sums)[kRows][2]) {
  const int64_t in_size = layer.in_size;
  add_products<kRows>(input.rows + row * in_size, in_size,
                      static_cast<const Weight*>(layer.panels) + panel * in_size * kPanelWidth, kPanelWidth,
                      layer.in_size, sums);
}

template <int kRows>
void compute_tile(const Linear& layer, const LinearInput& input, int row, int panel, float* output, Output mode) {
  Floats sums[kRows][2] = {};
  switch (layer.kind) {
    case WeightKind::kFloat32:
      float_tile<kRows, float>(input, row, layer, panel, sums);
      break;
    case WeightKind::kBfloat16:
      float_tile<kRows, Bfloat16>(input, row, layer, panel, sums);
      break;
    case WeightKind::kInt8: {
      const int64_t start = int64_t(panel) * padded_in_size(layer.in_size) * kPanelWidth;
      int8_tile<kRows>(input.quantised, row, layer.in_size, static_cast<const StoredWeight*>(layer.panels) + start,
                       layer.scales + panel * kPanelWidth, sums);
      break;
    }
  }
  write_tile<kRows>(layer, sums, row, panel, output, mode);
}

}  // namespace

void linear(const Linear& layer, const LinearInput& input, int num_rows, float* output, Output mode) {
  const int panels = num_panels(layer.out_size);
  // Few panels a task even out the threads; many keep a tile's rows in the nearest cache for longer.
  const int per_task = std::clamp(panels / (num_threads() * 8), 1, 8);
  const int tile_rows = layer.kind == WeightKind::kInt8 ? kInt8TileRows : kTileRows;
  parallel_for((panels + per_task - 1) / per_task, [&](int task) {
    const int first = task * per_task, last = std::min(panels, first + per_task);
    for (int row = 0; row < num_rows; row += tile_rows)
      for (int panel = first; panel < last; ++panel)
        with_tile_rows(std::min(tile_rows, num_rows - row), [&](auto rows) {
          compute_tile<rows>(layer, input, row, panel, output, mode);
        });
  });
}

void quantise_row(const float* values, int in_size, const QuantisedRows& quantised, int row) {
  const int groups = num_groups(in_size);
  for (int g = 0; g < groups; ++g) {
    const int first = g * kGroupSize, size = std::min(kGroupSize, in_size - first);
    alignas(64) float group[kGroupSize] = {};
    std::memcpy(group, values + first, size * sizeof(float));
    Floats largest{}, faults{};
    for (int i = 0; i < kGroupSize; i += kLanes) {
      const Floats some = load(group + i);
      largest = maximum(absolute(some), largest);
      faults += some * 0.0f;  // NaN for what is not a number
    }
    const float most = largest_lane(largest), fault = sum_of_lanes(faults);
    const bool is_empty = most == 0 || fault != 0;
    const float scale = is_empty ? 1.0f : most / 127.0f;
    Quantised* to = quantised.values + (int64_t(row) * groups + g) * kGroupSize;
    Ints sums{};
    for (int i = 0; i < kGroupSize; i += kLanes) {
      const Floats rounder = splat(12582912.0f);  // adding it rounds to a whole number, ties to even
      const Floats whole = is_empty ? Floats{} : load(group + i) / splat(scale) + rounder - rounder;
      const Ints numbers = __builtin_convertvector(whole, Ints);
      const auto narrow_numbers = __builtin_convertvector(numbers, QuantisedLanes);
      std::memcpy(to + i, &narrow_numbers, sizeof narrow_numbers);
      sums += numbers;
    }
    int32_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    quantised.scales[int64_t(row) * groups + g] = (is_empty ? 0.0f : scale) + fault;
    quantised.offsets[int64_t(row) * groups + g] = -kStoredOffset * sum;
  }
}

}  // namespace sluice

using namespace sluice;

extern "C" {

int64_t sluice_linear_packed_bytes(int kind, int out_size, int in_size) {
  const int64_t outputs = int64_t(num_panels(out_size)) * kPanelWidth;
  switch (WeightKind(kind)) {
    case WeightKind::kFloat32: return outputs * in_size * 4;
    case WeightKind::kBfloat16: return outputs * in_size * 2;
    default: return outputs * padded_in_size(in_size);
  }
}

int sluice_linear_panel_width() { return kPanelWidth; }

// Packs `weight` [out_size, in_size]; for int8 it holds whole numbers. What pads the last panel is zero.
void sluice_linear_pack(int kind, const float* weight, int out_size, int in_size, void* panels) {
  parallel_for(num_panels(out_size), [&](int panel) {
    const int first = panel * kPanelWidth, width = std::min(kPanelWidth, out_size - first);
    const int64_t start = int64_t(panel) * kPanelWidth;
    for (int n = 0; n < kPanelWidth; ++n) {
      const float* row = weight + int64_t(first + n) * in_size;
      if (WeightKind(kind) == WeightKind::kInt8) {
        StoredWeight* to = static_cast<StoredWeight*>(panels) + start * padded_in_size(in_size);
        for (int k = 0; k < padded_in_size(in_size); ++k) {
          const int whole = n < width && k < in_size ? int(row[k]) : 0;
          to[(int64_t(k / kStep) * kPanelWidth + n) * kStep + k % kStep] = StoredWeight(whole + kStoredOffset);
        }
        continue;
      }
      for (int k = 0; k < in_size; ++k) {
        const float value = n < width ? row[k] : 0;
        const int64_t at = start * in_size + int64_t(k) * kPanelWidth + n;
        if (WeightKind(kind) == WeightKind::kFloat32)
          narrow(value, static_cast<float*>(panels) + at);
        else
          narrow(value, static_cast<Bfloat16*>(panels) + at);
      }
    }
  });
}

// Bytes of scratch that quantised rows take, all three parts.
int64_t sluice_linear_scratch_bytes(int num_rows, int in_size) {
  return int64_t(num_rows) * (padded_in_size(in_size) * sizeof(Quantised) + num_groups(in_size) * 8);
}

void sluice_linear(const Linear* layer, const float* rows, int num_rows, void* scratch, float* output) {
  LinearInput input{rows, {}};
  if (layer->kind == WeightKind::kInt8) {
    const int groups = num_groups(layer->in_size);
    input.quantised.scales = static_cast<float*>(scratch);
    input.quantised.offsets = reinterpret_cast<int32_t*>(input.quantised.scales + int64_t(num_rows) * groups);
    input.quantised.values = reinterpret_cast<Quantised*>(input.quantised.offsets + int64_t(num_rows) * groups);
    parallel_ranges(num_rows, 4, [&](int first, int last) {
      for (int row = first; row < last; ++row)
        quantise_row(rows + int64_t(row) * layer->in_size, layer->in_size, input.quantised, row);
    });
  }
  linear(*layer, input, num_rows, output, Output::kStore);
}
}
