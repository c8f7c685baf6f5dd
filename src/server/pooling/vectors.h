// Arithmetic on pooled vectors, and their form in JSON.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/pooling.h"

namespace switchyard::pooling {

// Scales `vector` to length 1. A vector of zeros is not changed.
void Normalize(std::span<float> vector);
void Softmax(std::span<float> scores);
// Applies the activation of a classifier.
void Activate(const PoolingConfig& config, std::span<float> scores);
// The cosine of the angle between two vectors of equal size; 0 if one of them is zero.
float Cosine(std::span<const float> a, std::span<const float> b);

// Converts `values` to a JSON list. Each number has the fewest digits that give the same float32
// value.
std::string JsonList(std::span<const float> values);

}  // namespace switchyard::pooling
