// What this machine can do at best, measured as the operators would do it: the measure for benchmarks.

#include "../linear/native.h"
#include "simd.h"
#include "threads.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace sluice {
namespace {

volatile float kept;  // so that no result is thrown away

// Multiply-adds on registers alone, as many independent chains as hide their latency.
void multiply_add(int64_t rounds) {
  Floats sums[10];
  for (int i = 0; i < 10; ++i) sums[i] = splat(float(i));
  const Floats a = splat(0.999f), b = splat(1e-3f);
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < 10; ++i) sums[i] = sums[i] * a + b;
  Floats total{};
  for (int i = 0; i < 10; ++i) total += sums[i];
  kept = sum_of_lanes(total);
}

#if defined(__AVX512VNNI__)

constexpr int kDotProducts = 32;  // products of one instruction

void dot_products(int64_t rounds) {
  __m512i sums[10];
  for (int i = 0; i < 10; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x04030201);
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < 10; ++i) sums[i] = _mm512_dpwssd_epi32(sums[i], a, b);
  for (int i = 1; i < 10; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
  kept = float(_mm512_reduce_add_epi32(sums[0]));
}

#elif defined(__AVX2__)

constexpr int kDotProducts = 16;  // products of one pair of instructions

// The sums have names, since GCC would keep an array of them in memory.
void dot_products(int64_t rounds) {
  const __m256i b = _mm256_set1_epi32(0x00040003);
  const auto add_products = [&](__m256i& sum) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(sum, b));
    __asm__ volatile("" : "+x"(sum));
  };
  __m256i s0 = b, s1 = b, s2 = b, s3 = b, s4 = b, s5 = b, s6 = b, s7 = b, s8 = b, s9 = b;
  for (int64_t round = 0; round < rounds; ++round) {
    add_products(s0), add_products(s1), add_products(s2), add_products(s3), add_products(s4);
    add_products(s5), add_products(s6), add_products(s7), add_products(s8), add_products(s9);
  }
  kept = float(_mm256_extract_epi32(s0, 0));
}

#else

constexpr int kDotProducts = 0;

void dot_products(int64_t) {}

#endif

}  // namespace
}  // namespace sluice

using namespace sluice;

extern "C" {

// Computes on all threads and returns how many float operations that were.
double sluice_machine_float_operations(int64_t rounds) {
  parallel_for(num_threads(), [&](int) { multiply_add(rounds); });
  return double(rounds) * num_threads() * 10 * kLanes * 2;
}

// The same for int8's multiply-adds; 0 where there is no instruction for them.
double sluice_machine_int8_operations(int64_t rounds) {
  parallel_for(num_threads(), [&](int) { dot_products(rounds); });
  return double(rounds) * num_threads() * 10 * kDotProducts * 2;
}

// Reads `size` floats once, on all threads.
void sluice_machine_read(const float* values, int64_t size) {
  constexpr int64_t kPiece = 1 << 18;
  parallel_for(int(size / kPiece), [&](int piece) {
    Floats sums[4] = {};
    const float* from = values + piece * kPiece;
    for (int64_t i = 0; i < kPiece; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) sums[j] += load(from + i + j * kLanes);
    kept = sum_of_lanes(sums[0] + sums[1] + sums[2] + sums[3]);
  });
}
}
