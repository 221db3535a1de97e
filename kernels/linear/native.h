// A linear layer over packed weights: rows times the transpose of a matrix, in float32, bfloat16 or int8.
#pragma once

#include "simd.h"
#include "tile.h"

namespace sluice {

// Columns of one panel: outputs that a tile computes together.
constexpr int kPanelWidth = kTileWidth;

// Inputs that share one scale, of weights and of activations.
constexpr int kGroupSize = 32;

// kInt4 is kInt8 with codes below 16, and half the memory.
enum class WeightKind : int32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt4 = 3 };

SLUICE_INLINE bool reads_quantised(WeightKind kind) { return kind == WeightKind::kInt8 || kind == WeightKind::kInt4; }

// Weights in panels of kPanelWidth outputs, so that one panel is read from front to back. The order inside a
// panel is the kind's own. Mirrored by PackedWeight in Python.
struct Linear {
  WeightKind kind;
  int32_t in_size;
  int32_t out_size;
  const void* panels;
  const float* scales;  // quantised: [out_size rounded up to whole panels], what each output is multiplied by
  const float* bias;    // [out_size], or null
};

// Rows of activations as whole numbers of 15 bits, with one scale per group of inputs.
struct QuantisedRows {
  int16_t* values;    // [num_rows, padded in_size]
  float* scales;      // [num_rows, num_groups]
  float* sums;        // [num_rows, num_groups], of the group's numbers times its scale
  int8_t* split_row;  // [2 * padded in_size], written by `linear` for a single row
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

// Quantises one row to `row` of `quantised`: round to nearest, kLargest the largest of each group. A group that
// holds NaN or infinity gets NaN for its scale.
void quantise_row(const float* values, int in_size, const QuantisedRows& quantised, int row);

constexpr float kLargest = 16383.0f;

}  // namespace sluice
