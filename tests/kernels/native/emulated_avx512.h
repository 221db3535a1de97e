// The AVX-512 instructions that the operators use, written out, so that their code for it can be checked on a
// machine without it. Included before everything else, in place of the compiler's own header.
#pragma once

#define _IMMINTRIN_H_INCLUDED
#define __AVX512F__ 1
#define __AVX512VNNI__ 1

#include <cmath>
#include <cstdint>
#include <cstring>

typedef int64_t __m512i __attribute__((vector_size(64)));
typedef float __m512 __attribute__((vector_size(64)));
typedef int64_t __m256i __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint8_t Emulated8 __attribute__((vector_size(32)));
typedef int8_t EmulatedBytes __attribute__((vector_size(64)));
typedef uint8_t EmulatedU8 __attribute__((vector_size(64)));
typedef int16_t Emulated16 __attribute__((vector_size(64)));
typedef uint16_t EmulatedU16 __attribute__((vector_size(64)));
typedef int32_t Emulated32 __attribute__((vector_size(64)));

inline void _mm_pause() {}

inline __m512i _mm512_loadu_si512(const void* from) {
  __m512i value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline __m512i _mm512_set1_epi32(int32_t value) { return (__m512i)(value - Emulated32{}); }

inline __m512i _mm512_set1_epi8(int8_t value) { return (__m512i)(value - EmulatedBytes{}); }

inline __m512i _mm512_add_epi32(__m512i a, __m512i b) { return (__m512i)((Emulated32)a + (Emulated32)b); }

inline int32_t _mm512_reduce_add_epi32(__m512i value) {
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += ((Emulated32)value)[i];
  return total;
}

inline __m256i _mm256_loadu_si256(const __m256i* from) {
  __m256i value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline __m512i _mm512_cvtepu8_epi16(__m256i bytes) {
  return (__m512i)__builtin_convertvector((Emulated8)bytes, Emulated16);
}

inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }

inline __m512i _mm512_cvtps_epi32(__m512 value) {
  Emulated32 result;
  for (int i = 0; i < 16; ++i) result[i] = value[i] < 1e9f ? int32_t(std::nearbyint(value[i])) : INT32_MIN;
  return (__m512i)result;
}

inline __m512i _mm512_slli_epi32(__m512i value, int bits) { return (__m512i)((Emulated32)value << bits); }

inline __m512i _mm512_srli_epi16(__m512i value, int bits) { return (__m512i)((EmulatedU16)value >> bits); }

// Each sum grows by two products of neighbouring 16-bit numbers.
inline __m512i _mm512_dpwssd_epi32(__m512i sums, __m512i a, __m512i b) {
  const Emulated16 left = (Emulated16)a, right = (Emulated16)b;
  Emulated32 result = (Emulated32)sums;
  for (int i = 0; i < 32; ++i) result[i / 2] += int32_t(left[i]) * right[i];
  return (__m512i)result;
}

// Each sum grows by four products of neighbouring bytes, those of `a` without a sign.
inline __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
  const EmulatedU8 left = (EmulatedU8)a;
  const EmulatedBytes right = (EmulatedBytes)b;
  Emulated32 result = (Emulated32)sums;
  for (int i = 0; i < 64; ++i) result[i / 4] += int32_t(left[i]) * right[i];
  return (__m512i)result;
}
