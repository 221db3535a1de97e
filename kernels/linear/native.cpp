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
// A weight is (code * scale + minimum) * its output's scale in Linear. Codes are taken two inputs at a time, as
// [output][2] of 16 bits, which is what the processors' instructions multiply and add in pairs.

// Codes as bytes, [kGroupSize / 2][kPanelWidth][2].
struct Codes8 {
  uint8_t codes[kGroupSize * kPanelWidth];

  void set(int n, int k, uint8_t code) { codes[(k / 2 * kPanelWidth + n) * 2 + k % 2] = code; }
};

// Codes below 16: a number of 16 bits holds those of four pairs of inputs that follow one another, the first in
// its lowest bits. [kGroupSize / 8][kPanelWidth][2].
struct Codes4 {
  uint16_t codes[kGroupSize / 8 * kPanelWidth * 2];

  void set(int n, int k, uint8_t code) {
    codes[(k / 8 * kPanelWidth + n) * 2 + k % 2] |= uint16_t(code << (k % 8 / 2 * 4));
  }
};

template <class Codes>
struct Group : Codes {
  Half scales[kPanelWidth];
  Half minima[kPanelWidth];
};

// A number of a split row is (1 << kLowBits) * high + low, which are bytes with and without a sign.
constexpr int kLowBits = 7;

#if defined(__AVX512VNNI__)

constexpr int kQuantisedTileRows = kTileRows;

typedef __m512i Pairs;  // of codes, or sums: one of 32 bits for each of kLanes outputs

SLUICE_INLINE Pairs zero() { return _mm512_set1_epi32(0); }
SLUICE_INLINE Pairs widened(const uint8_t* codes) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)codes));
}
SLUICE_INLINE Pairs loaded(const uint16_t* codes) { return _mm512_loadu_si512(codes); }
SLUICE_INLINE Pairs lowest_codes(Pairs packed) { return _mm512_and_si512(packed, _mm512_set1_epi32(0x000f000f)); }
SLUICE_INLINE Pairs next_codes(Pairs packed) { return _mm512_srli_epi16(packed, 4); }
SLUICE_INLINE Pairs both_inputs(int32_t two) { return _mm512_set1_epi32(two); }
SLUICE_INLINE Pairs plus_products(Pairs sums, Pairs codes, Pairs inputs) {
  return _mm512_dpwssd_epi32(sums, codes, inputs);
}

SLUICE_INLINE Pairs low_nibbles(Pairs packed) { return _mm512_and_si512(packed, _mm512_set1_epi8(15)); }
SLUICE_INLINE Pairs plus_byte_products(Pairs sums, Pairs codes, Pairs inputs) {
  return _mm512_dpbusd_epi32(sums, codes, inputs);
}
SLUICE_INLINE Pairs joined(Pairs high, Pairs low) { return _mm512_add_epi32(_mm512_slli_epi32(high, kLowBits), low); }

#define SLUICE_GROUP_SUMS SLUICE_INLINE

#elif defined(__AVX2__)

constexpr int kQuantisedTileRows = 4;

typedef __m256i Pairs;

SLUICE_INLINE Pairs zero() { return _mm256_setzero_si256(); }
SLUICE_INLINE Pairs widened(const uint8_t* codes) {
  return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)codes));
}
SLUICE_INLINE Pairs loaded(const uint16_t* codes) { return _mm256_loadu_si256((const __m256i*)codes); }
SLUICE_INLINE Pairs lowest_codes(Pairs packed) { return _mm256_and_si256(packed, _mm256_set1_epi16(15)); }
SLUICE_INLINE Pairs next_codes(Pairs packed) { return _mm256_srli_epi16(packed, 4); }
SLUICE_INLINE Pairs both_inputs(int32_t two) { return _mm256_set1_epi32(two); }
SLUICE_INLINE Pairs plus_products(Pairs sums, Pairs codes, Pairs inputs) {
  sums = _mm256_add_epi32(sums, _mm256_madd_epi16(codes, inputs));
  // In this order: the compiler would make all products first, and have no register left for them.
  __asm__("" : "+x"(sums));
  return sums;
}

SLUICE_INLINE Pairs low_nibbles(Pairs packed) { return _mm256_and_si256(packed, _mm256_set1_epi8(15)); }
// Here sums have 16 bits: those of a whole group fit, 2 * 8 products of at most 15 * 128 each.
SLUICE_INLINE Pairs plus_byte_products(Pairs sums, Pairs codes, Pairs inputs) {
  return _mm256_add_epi16(sums, _mm256_maddubs_epi16(codes, inputs));
}
SLUICE_INLINE Pairs joined(Pairs high, Pairs low) {
  return _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(1 << kLowBits)),
                          _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

// Beside the caller's floats there are too few registers for these sums.
#define SLUICE_GROUP_SUMS __attribute__((noinline))

#else

constexpr int kQuantisedTileRows = 4;

struct Pairs {
  int16_t numbers[2 * kLanes];  // as codes; as sums they are taken for kLanes of 32 bits
};

SLUICE_INLINE Pairs zero() { return {}; }
SLUICE_INLINE Pairs widened(const uint8_t* codes) {
  Pairs wide;
  for (int i = 0; i < 2 * kLanes; ++i) wide.numbers[i] = codes[i];
  return wide;
}
SLUICE_INLINE Pairs loaded(const uint16_t* codes) {
  Pairs packed;
  std::memcpy(&packed, codes, sizeof packed);
  return packed;
}
SLUICE_INLINE Pairs lowest_codes(Pairs packed) {
  for (int16_t& number : packed.numbers) number &= 15;
  return packed;
}
SLUICE_INLINE Pairs next_codes(Pairs packed) {
  for (int16_t& number : packed.numbers) number = int16_t(uint16_t(number) >> 4);
  return packed;
}
SLUICE_INLINE Pairs both_inputs(int32_t two) {
  Pairs pairs;
  for (int i = 0; i < kLanes; ++i) std::memcpy(pairs.numbers + 2 * i, &two, sizeof two);
  return pairs;
}
SLUICE_INLINE Pairs plus_products(Pairs sums, Pairs codes, Pairs inputs) {
  int32_t totals[kLanes];
  std::memcpy(totals, &sums, sizeof totals);
  for (int i = 0; i < kLanes; ++i)
    totals[i] += codes.numbers[2 * i] * inputs.numbers[2 * i] + codes.numbers[2 * i + 1] * inputs.numbers[2 * i + 1];
  std::memcpy(&sums, totals, sizeof totals);
  return sums;
}

#define SLUICE_GROUP_SUMS inline

#endif

template <int kRows>
SLUICE_INLINE void add_pairs(const int16_t* values, int stride, Pairs left, Pairs right, Pairs (&totals)[kRows][2]) {
  for (int r = 0; r < kRows; ++r) {
    int32_t two;
    std::memcpy(&two, values + int64_t(r) * stride, sizeof two);
    const Pairs inputs = both_inputs(two);
    totals[r][0] = plus_products(totals[r][0], left, inputs);
    totals[r][1] = plus_products(totals[r][1], right, inputs);
  }
}

// Sums of products within a group, exact: [row][half of the panel].
template <int kRows>
SLUICE_GROUP_SUMS void group_sums(const int16_t* values, int stride, const Codes8& group, Ints (&sums)[kRows][2]) {
  Pairs totals[kRows][2];
  for (int r = 0; r < kRows; ++r) totals[r][0] = totals[r][1] = zero();
  const uint8_t* codes = group.codes;
#pragma GCC unroll 4  // fewer copies between registers, of which the loop is full
  for (int k = 0; k < kGroupSize; k += 2, codes += 2 * kPanelWidth)
    add_pairs<kRows>(values + k, stride, widened(codes), widened(codes + 2 * kLanes), totals);
  std::memcpy(sums, totals, sizeof totals);
}

template <int kRows>
SLUICE_GROUP_SUMS void group_sums(const int16_t* values, int stride, const Codes4& group, Ints (&sums)[kRows][2]) {
  Pairs totals[kRows][2];
  for (int r = 0; r < kRows; ++r) totals[r][0] = totals[r][1] = zero();
  const uint16_t* codes = group.codes;
  for (int k = 0; k < kGroupSize; codes += 2 * kPanelWidth) {
    Pairs left = loaded(codes), right = loaded(codes + 2 * kLanes);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair, k += 2) {
      const bool is_last = pair == 3;  // its codes are alone by now
      add_pairs<kRows>(values + k, stride, is_last ? left : lowest_codes(left), is_last ? right : lowest_codes(right),
                       totals);
      left = next_codes(left);
      right = next_codes(right);
    }
  }
  std::memcpy(sums, totals, sizeof totals);
}

// ---- One row by codes below 16 ----------------------------------------------------------------------------
// Beside a single row, taking codes apart costs as much as multiplying them. As bytes they come apart in half the
// steps, if the row's numbers are split in two that fit bytes. Sums stay exact: the result has the same bits.

#if defined(__AVX2__)

constexpr bool kSplitsSingleRows = true;

// Numbers of eight inputs become 16 bytes, in the order of Codes4: for inputs 0, 4, 1, 5 the high parts, then the
// low ones, and the same for 2, 6, 3, 7.
void split_row(const int16_t* values, int size, int8_t* split) {
  typedef int16_t Eight __attribute__((vector_size(16)));
  typedef int8_t Bytes __attribute__((vector_size(16)));
  for (int k = 0; k < size; k += 8) {
    Eight numbers;
    std::memcpy(&numbers, values + k, sizeof numbers);
    const Eight low = numbers & ((1 << kLowBits) - 1), high = numbers >> kLowBits;
    const Bytes order = {0, 8, 2, 10, 16, 24, 18, 26, 4, 12, 6, 14, 20, 28, 22, 30};
    const Bytes bytes = __builtin_shuffle((Bytes)high, (Bytes)low, order);
    std::memcpy(split + 2 * k, &bytes, sizeof bytes);
  }
}

SLUICE_INLINE void split_group_sums(const int8_t* split, const Codes4& group, Ints (&sums)[2]) {
  Pairs high[2] = {zero(), zero()}, low[2] = {zero(), zero()};
#pragma GCC unroll 4
  for (int k = 0; k < kGroupSize; k += 8) {
    int32_t inputs[4];
    std::memcpy(inputs, split + 2 * k, sizeof inputs);
    for (int half = 0; half < 2; ++half) {
      const Pairs packed = loaded(group.codes + k / 8 * 2 * kPanelWidth + half * 2 * kLanes);
      const Pairs first = low_nibbles(packed), second = low_nibbles(next_codes(packed));
      high[half] = plus_byte_products(high[half], first, both_inputs(inputs[0]));
      low[half] = plus_byte_products(low[half], first, both_inputs(inputs[1]));
      high[half] = plus_byte_products(high[half], second, both_inputs(inputs[2]));
      low[half] = plus_byte_products(low[half], second, both_inputs(inputs[3]));
    }
  }
  for (int half = 0; half < 2; ++half) {
    const Pairs total = joined(high[half], low[half]);
    std::memcpy(&sums[half], &total, sizeof total);
  }
}

#else

constexpr bool kSplitsSingleRows = false;

inline void split_row(const int16_t*, int, int8_t*) {}
inline void split_group_sums(const int8_t*, const Codes4&, Ints (&)[2]) {}

#endif

// ---- Tiles ------------------------------------------------------------------------------------------------

template <class Codes>
SLUICE_INLINE const Group<Codes>* groups_of(const Linear& layer, int panel) {
  return static_cast<const Group<Codes>*>(layer.panels) + int64_t(panel) * num_groups(layer.in_size);
}

// A row's exact sums of one group, scaled, are added to its `sums`; `at` is the group's place among the scales.
template <class Codes>
SLUICE_INLINE void add_group(const Ints (&exact)[2], const Group<Codes>& group, const QuantisedRows& input, int64_t at,
                             Floats (&sums)[2]) {
  const Floats scale = splat(input.scales[at]), sum = splat(input.sums[at]);
  for (int half = 0; half < 2; ++half) {
    const Floats weight_scale = load(group.scales + half * kLanes), minimum = load(group.minima + half * kLanes);
    sums[half] += __builtin_convertvector(exact[half], Floats) * (weight_scale * scale);
    sums[half] += minimum * sum;
  }
}

template <int kRows>
SLUICE_INLINE void scale_outputs(const Linear& layer, int panel, Floats (&sums)[kRows][2]) {
  const float* scales = layer.scales + panel * kPanelWidth;
  const Floats left = load(scales), right = load(scales + kLanes);
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] *= left;
    sums[r][1] *= right;
  }
}

// The processor follows a panel by itself, but stops at the end of each page of memory.
constexpr int kBytesAhead = 4096;

template <class Codes>
SLUICE_INLINE void fetch_ahead(const Group<Codes>& group) {
  const char* from = reinterpret_cast<const char*>(&group) + kBytesAhead;
  for (size_t line = 0; line < sizeof group; line += 64) __builtin_prefetch(from + line);
}

void split_tile(const QuantisedRows& input, const Linear& layer, int panel, Floats (&sums)[1][2]) {
  const Group<Codes4>* groups = groups_of<Codes4>(layer, panel);
  for (int g = 0; g < num_groups(layer.in_size); ++g) {
    fetch_ahead(groups[g]);
    Ints exact[2];
    split_group_sums(input.split_row + 2 * g * kGroupSize, groups[g], exact);
    add_group(exact, groups[g], input, g, sums[0]);
  }
  scale_outputs(layer, panel, sums);
}

// The groups' sums are scaled and added in order.
template <int kRows, class Codes>
void quantised_tile(const LinearInput& all, int first_row, const Linear& layer, int panel, Floats (&sums)[kRows][2]) {
  const QuantisedRows& input = all.quantised;
  const Group<Codes>* groups = groups_of<Codes>(layer, panel);
  const int count = num_groups(layer.in_size), stride = count * kGroupSize;
  const int16_t* values = input.values + int64_t(first_row) * stride;
  const int64_t first_group = int64_t(first_row) * count;
  for (int g = 0; g < count; ++g) {
    Ints exact[kRows][2];
    group_sums<kRows>(values + g * kGroupSize, stride, groups[g], exact);
    for (int r = 0; r < kRows; ++r)
      add_group(exact[r], groups[g], input, first_group + int64_t(r) * count + g, sums[r]);
  }
  scale_outputs(layer, panel, sums);
}

typedef int16_t Numbers __attribute__((vector_size(kLanes * sizeof(int16_t))));

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
      quantised_tile<kRows, Codes8>(input, row, layer, panel, sums);
      break;
    case WeightKind::kInt4:
      quantised_tile<kRows, Codes4>(input, row, layer, panel, sums);
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

}  // namespace

void linear(const Linear& layer, const LinearInput& input, int num_rows, float* output, Output mode) {
  const int panels = num_panels(layer.out_size);
  // Few panels a task even out the threads; many keep a tile's rows in the nearest cache for longer.
  const int per_task = std::clamp(panels / (num_threads() * 8), 1, 8);
  const int tile_rows = reads_quantised(layer.kind) ? kQuantisedTileRows : kTileRows;
  const bool is_split = kSplitsSingleRows && layer.kind == WeightKind::kInt4 && num_rows == 1;
  if (is_split) split_row(input.quantised.values, padded_in_size(layer.in_size), input.quantised.split_row);
  parallel_for((panels + per_task - 1) / per_task, [&](int task) {
    const int first = task * per_task, last = std::min(panels, first + per_task);
    for (int panel = first; is_split && panel < last; ++panel) {
      Floats sums[1][2] = {};
      split_tile(input.quantised, layer, panel, sums);
      write_tile<1>(layer, sums, 0, panel, output, mode);
    }
    if (is_split) return;
    for (int row = 0; row < num_rows; row += tile_rows)
      for (int panel = first; panel < last; ++panel)
        with_tile_rows(std::min(tile_rows, num_rows - row), [&](auto rows) {
          compute_tile<rows>(layer, input, row, panel, output, mode);
        });
  });
}

namespace {

constexpr float kLeast = 1e-30f;  // a group without a larger number is taken for zeros, so that inverses are finite

// One group, whole.
SLUICE_INLINE void quantise_group(const float* values, int16_t* numbers, float* scale, float* sum) {
  Ints largest{};
  for (int i = 0; i < kGroupSize; i += kLanes) {
    const Ints bits = (Ints)absolute(load(values + i));  // as whole numbers in the same order, and NaN is largest
    largest = maximum(bits, largest);
  }
  const Floats most = (Floats)splat_largest_lane(largest);
  const Floats inverse = most > kLeast ? splat(kLargest) / most : Floats{};
  Ints total{};
  for (int i = 0; i < kGroupSize; i += kLanes) {
    const Ints whole = nearest(load(values + i) * inverse);
    const auto narrowed = __builtin_convertvector(whole, Numbers);
    std::memcpy(numbers + i, &narrowed, sizeof narrowed);
    total += whole;
  }
  const float fault = most[0] * 0.0f;  // NaN for what is not a number
  *scale = (most[0] > kLeast ? most[0] * (1 / kLargest) : 0.0f) + fault;
  *sum = float(sum_of_lanes(total)) * *scale;
}

}  // namespace

void quantise_row(const float* values, int in_size, const QuantisedRows& quantised, int row) {
  const int groups = num_groups(in_size), whole_groups = in_size / kGroupSize;
  const int64_t first = int64_t(row) * groups;
  int16_t* numbers = quantised.values + first * kGroupSize;
  float *scales = quantised.scales + first, *sums = quantised.sums + first;
  for (int g = 0; g < whole_groups; ++g)
    quantise_group(values + g * kGroupSize, numbers + g * kGroupSize, scales + g, sums + g);
  if (whole_groups < groups) {
    float rest[kGroupSize] = {};
    std::copy(values + whole_groups * kGroupSize, values + in_size, rest);
    quantise_group(rest, numbers + whole_groups * kGroupSize, scales + whole_groups, sums + whole_groups);
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
  const int64_t row_bytes = padded_in_size(in_size) * sizeof(int16_t);
  return num_rows * (row_bytes + num_groups(in_size) * 8) + row_bytes;
}

void sluice_linear(const Linear* layer, const float* rows, int num_rows, void* scratch, float* output) {
  LinearInput input{rows, {}};
  if (reads_quantised(layer->kind)) {
    const int64_t groups = int64_t(num_rows) * num_groups(layer->in_size);
    input.quantised.scales = static_cast<float*>(scratch);
    input.quantised.sums = input.quantised.scales + groups;
    input.quantised.values = reinterpret_cast<int16_t*>(input.quantised.sums + groups);
    input.quantised.split_row = reinterpret_cast<int8_t*>(input.quantised.values + groups * kGroupSize);
    parallel_ranges(num_rows, 4, [&](int first, int last) {
      for (int row = first; row < last; ++row)
        quantise_row(rows + int64_t(row) * layer->in_size, layer->in_size, input.quantised, row);
    });
  }
  linear(*layer, input, num_rows, output, Output::kStore);
}
}
