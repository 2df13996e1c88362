// TensorFlow's types of image values, and ours.
#pragma once

#include "refurbish_tf/cc/image/image.h"
#include "tensorflow/core/framework/types.h"

namespace refurbish_tf {

struct TypePair {
  ValueType ours;
  tensorflow::DataType theirs;
};
inline constexpr TypePair kTypePairs[] = {
    {ValueType::kUint8, tensorflow::DT_UINT8},
    {ValueType::kUint16, tensorflow::DT_UINT16},
    {ValueType::kInt16, tensorflow::DT_INT16},
    {ValueType::kFloat32, tensorflow::DT_FLOAT},
    {ValueType::kBfloat16, tensorflow::DT_BFLOAT16},
    {ValueType::kFloat16, tensorflow::DT_HALF}};

inline ValueType TypeOf(tensorflow::DataType type) {
  for (const TypePair& pair : kTypePairs) {
    if (pair.theirs == type) return pair.ours;
  }
  return ValueType::kUnknown;
}

inline tensorflow::DataType TypeOf(ValueType type) {
  for (const TypePair& pair : kTypePairs) {
    if (pair.ours == type) return pair.theirs;
  }
  return tensorflow::DT_INVALID;
}

}  // namespace refurbish_tf
