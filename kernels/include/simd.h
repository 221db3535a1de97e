// Vectors of floats in the width of the level this file is compiled for, and the little arithmetic on them.
// Written with the compiler's own vector types: one source serves AVX-512, AVX2 and no SIMD at all.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define SLUICE_INLINE inline __attribute__((always_inline))

namespace sluice {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A brain float: the upper half of a float's bits.
struct Bfloat16 {
  uint16_t bits;
};

// A half-precision number of IEEE 754: finite here, as infinity is never stored.
struct Half {
  uint16_t bits;
};

SLUICE_INLINE Floats splat(float value) { return value - Floats{}; }

SLUICE_INLINE Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

SLUICE_INLINE Floats load(const Bfloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  Ints bits = __builtin_convertvector(halves, Ints) << 16;
  return (Floats)bits;
}

SLUICE_INLINE Floats load(const Half* from) {
#if defined(__F16C__) && defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  const Ints bits = __builtin_convertvector(halves, Ints);
  const Floats magnitude = (Floats)((bits & 0x7fff) << 13) * 0x1p112f;  // the exponents' biases differ by 112
  return (Floats)((Ints)magnitude | (bits & 0x8000) << 16);
#endif
}

SLUICE_INLINE void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

// The nearest whole numbers, ties to even, of what is below 2^22. What is no number becomes any.
SLUICE_INLINE Ints nearest(Floats value) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtps_epi32((__m512)value);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32((__m256)value);
#else
  const Floats rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves a whole number in the low bits
  return (Ints)(value + rounder) - (Ints)rounder;
#endif
}

SLUICE_INLINE float widen(float value) { return value; }

SLUICE_INLINE float widen(Bfloat16 value) {
  uint32_t bits = uint32_t(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

SLUICE_INLINE void narrow(float value, float* to) { *to = value; }

// Round to nearest, ties to even; NaN stays NaN.
SLUICE_INLINE void narrow(float value, Bfloat16* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  to->bits = value != value ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

SLUICE_INLINE Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

SLUICE_INLINE Floats absolute(Floats value) { return (Floats)((Ints)value & 0x7fffffff); }

// `value` with each lane exchanged with the one `distance`, a power of two, away.
template <int distance>
SLUICE_INLINE Floats exchanged(Floats value) {
  Ints order;
  for (int lane = 0; lane < kLanes; ++lane) order[lane] = lane ^ distance;
  return __builtin_shuffle(value, order);
}

// Lanes are added pairwise, so the order is the same whatever the length of what came before.
SLUICE_INLINE float sum_of_lanes(Floats value) {
  if (kLanes == 16) value += exchanged<kLanes / 2>(value);
  value += exchanged<4>(value);
  value += exchanged<2>(value);
  value += exchanged<1>(value);
  return value[0];
}

SLUICE_INLINE int32_t sum_of_lanes(Ints value) {
  if (kLanes == 16) value += (Ints)exchanged<kLanes / 2>((Floats)value);
  value += (Ints)exchanged<4>((Floats)value);
  value += (Ints)exchanged<2>((Floats)value);
  value += (Ints)exchanged<1>((Floats)value);
  return value[0];
}

SLUICE_INLINE Ints maximum(Ints a, Ints b) { return a > b ? a : b; }

// The largest lane, in every lane.
SLUICE_INLINE Ints splat_largest_lane(Ints value) {
  if (kLanes == 16) value = maximum((Ints)exchanged<kLanes / 2>((Floats)value), value);
  value = maximum((Ints)exchanged<4>((Floats)value), value);
  value = maximum((Ints)exchanged<2>((Floats)value), value);
  return maximum((Ints)exchanged<1>((Floats)value), value);
}

SLUICE_INLINE float largest_lane(Floats value) {
  if (kLanes == 16) value = maximum(exchanged<kLanes / 2>(value), value);
  value = maximum(exchanged<4>(value), value);
  value = maximum(exchanged<2>(value), value);
  value = maximum(exchanged<1>(value), value);
  return value[0];
}

// e to the power of `x`: 0 below -87.3, and within 2 units in the last place up to 88.
// Range reduction and polynomial as in Cephes' expf (S. Moshier).
SLUICE_INLINE Floats exponential(Floats x) {
  const Floats rounder = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves a whole number in the low bits
  Floats clamped = maximum(splat(-88.0f), x < 88.0f ? x : splat(88.0f));
  Floats biased = clamped * 1.44269504088896341f + rounder;
  Floats whole = biased - rounder;
  Floats rest = clamped - whole * 0.693359375f;
  rest = rest + whole * 2.12194440e-4f;
  Floats series = splat(1.9875691500e-4f);
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * (rest * rest) + rest + 1.0f;
  Ints exponent = __builtin_convertvector(whole, Ints) << 23;
  Floats result = (Floats)((Ints)series + exponent);
  result = x < -87.3f ? Floats{} : result;
  return x != x ? x : result;
}

SLUICE_INLINE float exponential(float x) { return exponential(splat(x))[0]; }

}  // namespace sluice
