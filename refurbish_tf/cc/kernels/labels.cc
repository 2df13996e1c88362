#include "refurbish_tf/cc/kernels/labels.h"

#include <cmath>
#include <cstddef>
#include <functional>
#include <string_view>
#include <type_traits>

#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/tstring.h"

namespace refurbish_tf {
namespace {

using tensorflow::Tensor;

// A longer string is a text or a record.
constexpr size_t kLongestName = 256;
// A larger float is no number of a class.
constexpr double kMostWhole = 1 << 24;

// Where the only one among zeros is.
template <typename T>
std::optional<int64_t> HotOne(const Tensor& tensor) {
  const auto values = tensor.vec<T>();
  std::optional<int64_t> place;
  for (int64_t i = 0; i < values.size(); ++i) {
    if (values(i) == T(0)) continue;
    if (values(i) != T(1) || place.has_value()) return std::nullopt;
    place = i;
  }
  return place;
}

template <typename T>
std::optional<int64_t> Number(const Tensor& tensor) {
  if (tensor.dims() > 1 || tensor.NumElements() == 0) return std::nullopt;
  if (tensor.NumElements() > 1) return HotOne<T>(tensor);
  const T number = tensor.flat<T>()(0);
  if constexpr (!std::is_integral_v<T>) {
    // Others are measurements.
    if (!(std::abs(static_cast<double>(number)) < kMostWhole) ||
        number != static_cast<T>(static_cast<int64_t>(number))) {
      return std::nullopt;
    }
  }
  return static_cast<int64_t>(number);
}

std::optional<int64_t> Name(const Tensor& tensor) {
  if (tensor.dims() != 0) return std::nullopt;
  const tensorflow::tstring& name = tensor.scalar<tensorflow::tstring>()();
  if (name.size() > kLongestName) return std::nullopt;
  return static_cast<int64_t>(
      std::hash<std::string_view>()({name.data(), name.size()}));
}

}  // namespace

std::optional<int64_t> LabelOf(const std::vector<Tensor>& sample) {
  // A component that is alone is no label of anything.
  if (sample.size() < 2) return std::nullopt;
  const Tensor& label = sample.back();
  switch (label.dtype()) {
    case tensorflow::DT_BOOL:
      return Number<bool>(label);
    case tensorflow::DT_UINT8:
      return Number<uint8_t>(label);
    case tensorflow::DT_INT8:
      return Number<int8_t>(label);
    case tensorflow::DT_INT16:
      return Number<int16_t>(label);
    case tensorflow::DT_INT32:
      return Number<int32_t>(label);
    case tensorflow::DT_INT64:
      return Number<int64_t>(label);
    case tensorflow::DT_HALF:
      return Number<Eigen::half>(label);
    case tensorflow::DT_FLOAT:
      return Number<float>(label);
    case tensorflow::DT_DOUBLE:
      return Number<double>(label);
    case tensorflow::DT_STRING:
      return Name(label);
    default:
      return std::nullopt;
  }
}

}  // namespace refurbish_tf
