#include "native.h"

#include <algorithm>

#include "threads.h"
#include "tile.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sluice {
namespace {

// ---- Quantised tiles --------------------------------------------------------------------------------------
// A panel is, for each group of inputs: the weights' codes, then half-precision scales and minima of the outputs.
// A weight is (code * scale + minimum) * its output's scale in Linear.

// Codes as bytes, two inputs at a time: [kGroupSize / 2][kPanelWidth][2]. They are widened to 16 bits, as products
// of two bytes would not all fit the sums that AVX2 makes of them.
struct Codes8 {
  uint8_t codes[kGroupSize * kPanelWidth];

  void set(int n, int k, uint8_t code) { codes[(k / 2 * kPanelWidth + n) * 2 + k % 2] = code; }
};

// Codes below 16, four inputs at a time: a byte's lower half is of one four, its upper half of the next.
// [kGroupSize / 8][kPanelWidth][4].
struct Codes4 {
  uint8_t codes[kGroupSize / 8 * kPanelWidth * 4];

  void set(int n, int k, uint8_t code) { codes[(k / 8 * kPanelWidth + n) * 4 + k % 4] |= code << (k % 8 / 4 * 4); }
};

template <class Codes>
struct Group : Codes {
  Half scales[kPanelWidth];
  Half minima[kPanelWidth];
};

#if defined(__AVX512VNNI__)

constexpr int kQuantisedTileRows = kTileRows;

typedef __m512i Pairs;  // for each of kLanes outputs two codes of 16 bits, four of 8, or a sum

SLUICE_INLINE Pairs zero() { return _mm512_set1_epi32(0); }
SLUICE_INLINE Pairs widened(const uint8_t* codes) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)codes));
}
SLUICE_INLINE Pairs loaded(const uint8_t* codes) { return _mm512_loadu_si512(codes); }
SLUICE_INLINE Pairs and_all(Pairs codes, int32_t mask) { return _mm512_and_si512(codes, _mm512_set1_epi32(mask)); }
SLUICE_INLINE Pairs shifted(Pairs codes, int bits) { return _mm512_srli_epi16(codes, bits); }
SLUICE_INLINE Pairs for_all_outputs(int32_t inputs) { return _mm512_set1_epi32(inputs); }
SLUICE_INLINE Pairs plus_two_products(Pairs sums, Pairs codes, Pairs inputs) {
  return _mm512_dpwssd_epi32(sums, codes, inputs);
}
SLUICE_INLINE Pairs plus_four_products(Pairs sums, Pairs codes, Pairs inputs) {
  return _mm512_dpbusd_epi32(sums, codes, inputs);
}
SLUICE_INLINE Ints sums_of_twos(Pairs sums) { return (Ints)sums; }
SLUICE_INLINE Ints sums_of_fours(Pairs sums) { return (Ints)sums; }

#define SLUICE_GROUP_SUMS SLUICE_INLINE

#elif defined(__AVX2__)

constexpr int kQuantisedTileRows = 4;

typedef __m256i Pairs;

SLUICE_INLINE Pairs zero() { return _mm256_setzero_si256(); }
SLUICE_INLINE Pairs widened(const uint8_t* codes) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)codes));
}
SLUICE_INLINE Pairs loaded(const uint8_t* codes) { return _mm256_loadu_si256((const __m256i*)codes); }
SLUICE_INLINE Pairs and_all(Pairs codes, int32_t mask) { return _mm256_and_si256(codes, _mm256_set1_epi32(mask)); }
SLUICE_INLINE Pairs shifted(Pairs codes, int bits) { return _mm256_srli_epi16(codes, bits); }
SLUICE_INLINE Pairs for_all_outputs(int32_t inputs) { return _mm256_set1_epi32(inputs); }

// Keeps sums in this order: the compiler would make all products first, and have no register left for them.
SLUICE_INLINE Pairs in_order(Pairs sums) {
  __asm__("" : "+x"(sums));
  return sums;
}

SLUICE_INLINE Pairs plus_two_products(Pairs sums, Pairs codes, Pairs inputs) {
  return in_order(_mm256_add_epi32(sums, _mm256_madd_epi16(codes, inputs)));
}

// Sums of 16 bits, two for each output: those of a group, 8 times 2 products of 15 * 127, just fit.
SLUICE_INLINE Pairs plus_four_products(Pairs sums, Pairs codes, Pairs inputs) {
  static_assert(kGroupSize / 4 * 2 * 15 * 127 < 1 << 15);
  return in_order(_mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, inputs)));
}
SLUICE_INLINE Ints sums_of_twos(Pairs sums) { return (Ints)sums; }
SLUICE_INLINE Ints sums_of_fours(Pairs sums) { return (Ints)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

// Beside the caller's floats there are too few registers for these sums.
#define SLUICE_GROUP_SUMS __attribute__((noinline))

#else

constexpr int kQuantisedTileRows = 4;

struct Pairs {
  uint8_t bytes[4 * kLanes];  // as on AVX-512
};

SLUICE_INLINE Pairs zero() { return {}; }
SLUICE_INLINE Pairs widened(const uint8_t* codes) {
  int16_t wide[2 * kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) wide[i] = codes[i];
  Pairs pairs;
  std::memcpy(&pairs, wide, sizeof pairs);
  return pairs;
}
SLUICE_INLINE Pairs loaded(const uint8_t* codes) {
  Pairs packed;
  std::memcpy(&packed, codes, sizeof packed);
  return packed;
}
SLUICE_INLINE Pairs and_all(Pairs codes, int32_t mask) {
  for (int i = 0; i < 4 * kLanes; ++i) codes.bytes[i] &= uint8_t(mask >> (i % 4 * 8));
  return codes;
}
SLUICE_INLINE Pairs shifted(Pairs codes, int bits) {
  uint16_t pairs[2 * kLanes];
  std::memcpy(pairs, &codes, sizeof pairs);
  for (uint16_t& pair : pairs) pair >>= bits;
  std::memcpy(&codes, pairs, sizeof pairs);
  return codes;
}
SLUICE_INLINE Pairs for_all_outputs(int32_t inputs) {
  Pairs pairs;
  for (int i = 0; i < kLanes; ++i) std::memcpy(pairs.bytes + 4 * i, &inputs, sizeof inputs);
  return pairs;
}
template <class Code, class Input>
SLUICE_INLINE Pairs plus_some_products(Pairs sums, Pairs codes, Pairs inputs) {
  constexpr int kCount = 4 / sizeof(Code);
  int32_t totals[kLanes];
  Code left[kCount * kLanes];
  Input right[kCount * kLanes];
  std::memcpy(totals, &sums, sizeof totals);
  std::memcpy(left, &codes, sizeof left);
  std::memcpy(right, &inputs, sizeof right);
  for (int i = 0; i < kCount * kLanes; ++i) totals[i / kCount] += left[i] * right[i];
  std::memcpy(&sums, totals, sizeof totals);
  return sums;
}
SLUICE_INLINE Pairs plus_two_products(Pairs sums, Pairs codes, Pairs inputs) {
  return plus_some_products<int16_t, int16_t>(sums, codes, inputs);
}
SLUICE_INLINE Pairs plus_four_products(Pairs sums, Pairs codes, Pairs inputs) {
  return plus_some_products<uint8_t, int8_t>(sums, codes, inputs);
}
SLUICE_INLINE Ints sums_of_twos(Pairs sums) {
  Ints whole;
  std::memcpy(&whole, &sums, sizeof whole);
  return whole;
}
SLUICE_INLINE Ints sums_of_fours(Pairs sums) { return sums_of_twos(sums); }

#define SLUICE_GROUP_SUMS inline

#endif

// Masks for 4-bit codes, as numbers of 16 bits and as bytes.
constexpr int32_t kOneOfTwo = 0x000f000f, kOneOfFour = 0x0f0f0f0f;

template <int kRows>
SLUICE_INLINE void clear(Pairs (&totals)[kRows][2]) {
  for (int r = 0; r < kRows; ++r) totals[r][0] = totals[r][1] = zero();
}

SLUICE_INLINE Pairs numbers_at(const void* from) {
  int32_t numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  return for_all_outputs(numbers);
}

template <int kRows>
SLUICE_INLINE void add_twos(const int16_t* numbers, int64_t stride, Pairs left, Pairs right, Pairs (&totals)[kRows][2]) {
  for (int r = 0; r < kRows; ++r) {
    const Pairs two = numbers_at(numbers + r * stride);
    totals[r][0] = plus_two_products(totals[r][0], left, two);
    totals[r][1] = plus_two_products(totals[r][1], right, two);
  }
}

template <int kRows>
SLUICE_INLINE void add_fours(const int8_t* numbers, int64_t stride, Pairs left, Pairs right, Pairs (&totals)[kRows][2]) {
  for (int r = 0; r < kRows; ++r) {
    const Pairs four = numbers_at(numbers + r * stride);
    totals[r][0] = plus_four_products(totals[r][0], left, four);
    totals[r][1] = plus_four_products(totals[r][1], right, four);
  }
}

template <int kRows>
SLUICE_INLINE void take_sums_of_twos(const Pairs (&totals)[kRows][2], Ints (&sums)[kRows][2]) {
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half) sums[r][half] = sums_of_twos(totals[r][half]);
}

// Sums of products within a group, exact: [row][half of the panel].
template <int kRows>
SLUICE_GROUP_SUMS void group_sums(const int16_t* numbers, int64_t stride, const Codes8& group, Ints (&sums)[kRows][2]) {
  Pairs totals[kRows][2];
  clear(totals);
  const uint8_t* codes = group.codes;
#pragma GCC unroll 4  // fewer copies between registers, of which the loop is full
  for (int k = 0; k < kGroupSize; k += 2, codes += 2 * kPanelWidth)
    add_twos(numbers + k, stride, widened(codes), widened(codes + 2 * kLanes), totals);
  take_sums_of_twos(totals, sums);
}

// Of every four codes, bytes each, the first and the third are taken as two of 16 bits, then the others.
template <int kRows>
SLUICE_GROUP_SUMS void group_sums(const int16_t* numbers, int64_t stride, const Codes4& group, Ints (&sums)[kRows][2]) {
  Pairs totals[kRows][2];
  clear(totals);
  const uint8_t* codes = group.codes;
  for (int k = 0; k < kGroupSize; codes += 4 * kPanelWidth) {
    const Pairs left = loaded(codes), right = loaded(codes + 4 * kLanes);
#pragma GCC unroll 4
    for (int shift : {0, 8, 4, 12}) {
      add_twos(numbers + k, stride, and_all(shifted(left, shift), kOneOfTwo), and_all(shifted(right, shift), kOneOfTwo),
               totals);
      k += 2;
    }
  }
  take_sums_of_twos(totals, sums);
}

template <int kRows>
SLUICE_GROUP_SUMS void group_sums(const int8_t* numbers, int64_t stride, const Codes4& group, Ints (&sums)[kRows][2]) {
  Pairs totals[kRows][2];
  clear(totals);
  const uint8_t* codes = group.codes;
#pragma GCC unroll 4
  for (int k = 0; k < kGroupSize; k += 8, codes += 4 * kPanelWidth) {
    const Pairs left = loaded(codes), right = loaded(codes + 4 * kLanes);
    add_fours(numbers + k, stride, and_all(left, kOneOfFour), and_all(right, kOneOfFour), totals);
    add_fours(numbers + k + 4, stride, and_all(shifted(left, 4), kOneOfFour), and_all(shifted(right, 4), kOneOfFour),
              totals);
  }
  for (int r = 0; r < kRows; ++r)
    for (int half = 0; half < 2; ++half) sums[r][half] = sums_of_fours(totals[r][half]);
}

// The groups' sums are scaled and added in order.
template <int kRows, class Codes, class Number>
void quantised_tile(const LinearInput& all, int first_row, const Linear& layer, int panel, Floats (&sums)[kRows][2]) {
  const QuantisedRows& input = all.quantised;
  const int in_size = padded_in_size(layer.in_size), count = num_groups(layer.in_size);
  const auto* groups = static_cast<const Group<Codes>*>(layer.panels) + int64_t(panel) * count;
  const float* scales = layer.scales + panel * kPanelWidth;
  const auto* numbers = reinterpret_cast<const Number*>(input.values + int64_t(first_row) * in_size);
  const int64_t first_group = int64_t(first_row) * count;
  for (int g = 0; g < count; ++g) {
    Ints exact[kRows][2];
    group_sums<kRows>(numbers + g * kGroupSize, in_size * int64_t(sizeof(int16_t) / sizeof(Number)), groups[g], exact);
    const Floats left_scale = load(groups[g].scales), right_scale = load(groups[g].scales + kLanes);
    const Floats left_minimum = load(groups[g].minima), right_minimum = load(groups[g].minima + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = first_group + int64_t(r) * count + g;
      const Floats scale = splat(input.scales[at]), sum = splat(input.sums[at]);
      sums[r][0] += __builtin_convertvector(exact[r][0], Floats) * (left_scale * scale);
      sums[r][1] += __builtin_convertvector(exact[r][1], Floats) * (right_scale * scale);
      sums[r][0] += left_minimum * sum;
      sums[r][1] += right_minimum * sum;
    }
  }
  const Floats left = load(scales), right = load(scales + kLanes);
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] *= left;
    sums[r][1] *= right;
  }
}

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
    case WeightKind::kInt8:
      quantised_tile<kRows, Codes8, int16_t>(input, row, layer, panel, sums);
      break;
    case WeightKind::kInt4:
      if (Detail(input.quantised.details[row]) == Detail::kFine)
        quantised_tile<kRows, Codes4, int16_t>(input, row, layer, panel, sums);
      else
        quantised_tile<kRows, Codes4, int8_t>(input, row, layer, panel, sums);
      break;
  }
  write_tile<kRows>(layer, sums, row, panel, output, mode);
}

template <class Codes>
void pack_codes(const uint8_t* codes, const Half* scales, const Half* minima, int out_size, int in_size,
                void* panels) {
  const int groups = num_groups(in_size);
  parallel_for(num_panels(out_size), [&](int panel) {
    for (int g = 0; g < groups; ++g) {
      Group<Codes>& to = static_cast<Group<Codes>*>(panels)[int64_t(panel) * groups + g];
      to = {};
      for (int n = 0; n < kPanelWidth && panel * kPanelWidth + n < out_size; ++n) {
        const int64_t at = int64_t(panel * kPanelWidth + n) * groups + g;
        to.scales[n] = scales[at];
        to.minima[n] = minima[at];
        for (int k = 0; k < kGroupSize; ++k) to.set(n, k, codes[at * kGroupSize + k]);
      }
    }
  });
}

// How many rows from `row` on make a tile: quantised ones of one detail.
int num_tile_rows(WeightKind kind, const LinearInput& input, int row, int num_rows) {
  if (!reads_quantised(kind)) return std::min(kTileRows, num_rows - row);
  const int most = std::min(kQuantisedTileRows, num_rows - row);
  const uint8_t* details = input.quantised.details + row;
  int count = 1;
  while (count < most && details[count] == details[0]) ++count;
  return count;
}

}  // namespace

void linear(const Linear& layer, const LinearInput& input, int num_rows, float* output, Output mode) {
  const int panels = num_panels(layer.out_size);
  // Few panels a task even out the threads; many keep a tile's rows in the nearest cache for longer.
  const int per_task = std::clamp(panels / (num_threads() * 8), 1, 8);
  const auto rows_at = [&](int row) { return num_tile_rows(layer.kind, input, row, num_rows); };
  parallel_for((panels + per_task - 1) / per_task, [&](int task) {
    const int first = task * per_task, last = std::min(panels, first + per_task);
    for (int row = 0, count; row < num_rows; row += count) {
      count = rows_at(row);
      for (int panel = first; panel < last; ++panel)
        with_tile_rows(count, [&](auto rows) { compute_tile<rows>(layer, input, row, panel, output, mode); });
    }
  });
}

typedef int16_t Numbers __attribute__((vector_size(kLanes * sizeof(int16_t))));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

// Writes neighbouring numbers of a row, `first` and those after it, as a layer of `kind` reads them.
SLUICE_INLINE void write_numbers(Ints numbers, WeightKind kind, Detail detail, int first, int16_t* row) {
  if (kind == WeightKind::kInt4 && detail == Detail::kCoarse) {
    const Bytes bytes = __builtin_convertvector(numbers, Bytes);
    std::memcpy(reinterpret_cast<int8_t*>(row) + first, &bytes, sizeof bytes);
    return;
  }
  if (kind == WeightKind::kInt4) {
    Ints order;
    for (int lane = 0; lane < kLanes; ++lane) order[lane] = lane / 4 * 4 + lane % 2 * 2 + lane % 4 / 2;
    numbers = __builtin_shuffle(numbers, order);
  }
  const Numbers narrow = __builtin_convertvector(numbers, Numbers);
  std::memcpy(row + first, &narrow, sizeof narrow);
}

void quantise_row(const float* values, int in_size, WeightKind kind, Detail detail, const QuantisedRows& quantised,
                  int row) {
  const int groups = num_groups(in_size);
  const float largest_number = detail == Detail::kFine ? 16383.0f : 127.0f;
  int16_t* to = quantised.values + int64_t(row) * padded_in_size(in_size);
  quantised.details[row] = uint8_t(detail);
  for (int g = 0; g < groups; ++g) {
    const int first = g * kGroupSize, size = std::min(kGroupSize, in_size - first);
    alignas(64) float last[kGroupSize] = {};
    if (size < kGroupSize) std::memcpy(last, values + first, size * sizeof(float));
    const float* group = size < kGroupSize ? last : values + first;
    Floats largest{}, faults{};
    for (int i = 0; i < kGroupSize; i += kLanes) {
      const Floats some = load(group + i);
      largest = maximum(absolute(some), largest);
      faults += some * 0.0f;  // NaN for what is not a number
    }
    const float most = largest_lane(largest), fault = sum_of_lanes(faults);
    const bool is_empty = most == 0 || fault != 0;
    const float scale = is_empty ? 1.0f : most / largest_number;
    Ints sums{};
    for (int i = 0; i < kGroupSize; i += kLanes) {
      const Floats rounder = splat(12582912.0f);  // adding it rounds to a whole number, ties to even
      const Floats whole = is_empty ? Floats{} : load(group + i) / splat(scale) + rounder - rounder;
      const Ints numbers = __builtin_convertvector(whole, Ints);
      write_numbers(numbers, kind, detail, first + i, to);
      sums += numbers;
    }
    int32_t sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += sums[lane];
    quantised.scales[int64_t(row) * groups + g] = (is_empty ? 0.0f : scale) + fault;
    quantised.sums[int64_t(row) * groups + g] = float(sum) * scale + fault;
  }
}

}  // namespace sluice

using namespace sluice;

extern "C" {

int64_t sluice_linear_packed_bytes(int kind, int out_size, int in_size) {
  const int64_t panels = num_panels(out_size);
  switch (WeightKind(kind)) {
    case WeightKind::kFloat32: return panels * kPanelWidth * in_size * 4;
    case WeightKind::kBfloat16: return panels * kPanelWidth * in_size * 2;
    case WeightKind::kInt8: return panels * num_groups(in_size) * sizeof(Group<Codes8>);
    default: return panels * num_groups(in_size) * sizeof(Group<Codes4>);
  }
}

int sluice_linear_panel_width() { return kPanelWidth; }

// Packs `weight` [out_size, in_size] as float32 or bfloat16. What pads the last panel is zero.
void sluice_linear_pack_floats(int kind, const float* weight, int out_size, int in_size, void* panels) {
  parallel_for(num_panels(out_size), [&](int panel) {
    const int first = panel * kPanelWidth, width = std::min(kPanelWidth, out_size - first);
    const int64_t start = int64_t(first) * in_size;
    for (int n = 0; n < kPanelWidth; ++n)
      for (int k = 0; k < in_size; ++k) {
        const float value = n < width ? weight[int64_t(first + n) * in_size + k] : 0;
        const int64_t at = start + int64_t(k) * kPanelWidth + n;
        if (WeightKind(kind) == WeightKind::kFloat32)
          narrow(value, static_cast<float*>(panels) + at);
        else
          narrow(value, static_cast<Bfloat16*>(panels) + at);
      }
  });
}

// Packs `codes` [out_size, padded in_size] with `scales` and `minima` [out_size, num_groups]; for kInt4 all codes
// are below 16.
void sluice_linear_pack_codes(int kind, const uint8_t* codes, const Half* scales, const Half* minima, int out_size,
                              int in_size, void* panels) {
  if (WeightKind(kind) == WeightKind::kInt8)
    pack_codes<Codes8>(codes, scales, minima, out_size, in_size, panels);
  else
    pack_codes<Codes4>(codes, scales, minima, out_size, in_size, panels);
}

// Bytes of scratch that quantised rows take, all four parts.
int64_t sluice_linear_scratch_bytes(int num_rows, int in_size) {
  return int64_t(num_rows) * (padded_in_size(in_size) * sizeof(int16_t) + num_groups(in_size) * 8 + 1);
}

void sluice_linear(const Linear* layer, const float* rows, int num_rows, int detail, void* scratch, float* output) {
  LinearInput input{rows, {}};
  if (reads_quantised(layer->kind)) {
    const int64_t groups = int64_t(num_rows) * num_groups(layer->in_size);
    QuantisedRows& quantised = input.quantised;
    quantised.scales = static_cast<float*>(scratch);
    quantised.sums = quantised.scales + groups;
    quantised.values = reinterpret_cast<int16_t*>(quantised.sums + groups);
    quantised.details =
        reinterpret_cast<uint8_t*>(quantised.values + int64_t(num_rows) * padded_in_size(layer->in_size));
    parallel_ranges(num_rows, 4, [&](int first, int last) {
      for (int row = first; row < last; ++row)
        quantise_row(rows + int64_t(row) * layer->in_size, layer->in_size, layer->kind, Detail(detail), quantised, row);
    });
  }
  linear(*layer, input, num_rows, output, Output::kStore);
}
}
