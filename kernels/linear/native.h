// A linear layer over packed weights: rows times the transpose of a matrix, in float32, bfloat16 or int8.
#pragma once

#include "simd.h"
#include "tile.h"

namespace sluice {

// Columns of one panel: outputs that a tile computes together.
constexpr int kPanelWidth = kTileWidth;

// Inputs that share one scale when activations are int8.
constexpr int kGroupSize = 64;

enum class WeightKind : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

// Weights in panels of kPanelWidth outputs, so that one panel is read from front to back. The order inside a
// panel is the kind's own. Mirrored by PackedLinear in Python.
struct Linear {
  WeightKind kind;
  int32_t in_size;
  int32_t out_size;
  const void* panels;
  const float* scales;  // int8: [out_size rounded up to whole panels]
  const float* bias;    // [out_size], or null
};

// Rows of int8 activations with one scale per group of inputs, as the int8 tiles read them.
#if defined(__AVX512VNNI__)
typedef int8_t Quantised;
#else
typedef int16_t Quantised;  // the values are int8's; wider, because these levels multiply 16-bit numbers
#endif

struct QuantisedRows {
  Quantised* values;   // [num_rows, padded in_size]
  float* scales;       // [num_rows, num_groups]
  int32_t* offsets;    // [num_rows, num_groups], what a sum starts from: makes up for weights stored unsigned
};

SLUICE_INLINE int num_groups(int in_size) { return (in_size + kGroupSize - 1) / kGroupSize; }
SLUICE_INLINE int padded_in_size(int in_size) { return num_groups(in_size) * kGroupSize; }
SLUICE_INLINE int num_panels(int out_size) { return (out_size + kPanelWidth - 1) / kPanelWidth; }

// What a layer reads: rows as they are, or quantised where the weights are int8.
struct LinearInput {
  const float* rows;  // [num_rows, in_size]
  QuantisedRows quantised;
};

enum class Output { kStore, kAdd };

// `output` [num_rows, out_size] becomes (kStore), or grows by (kAdd), rows times weights plus bias.
void linear(const Linear& layer, const LinearInput& input, int num_rows, float* output, Output mode);

// Quantises one row to `row` of `quantised`: round to nearest, 127 the largest of each group. A group that
// holds NaN or infinity gets NaN for its scale.
void quantise_row(const float* values, int in_size, const QuantisedRows& quantised, int row);

}  // namespace sluice
