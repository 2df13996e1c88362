// The native layers, as the attributes of an op describe them. Adjacent ones
// are one chain of layers and one op, which draws int32 numbers from the seed
// and applies them to the image. Each half is an op of its own, too, so that
// draws can be sent to where the pixels are.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace refurbish_tf {

class Policy;

enum class LayerKind {
  kRandomCrop,
  kRandomFlip,
  kRandomResizedCrop,
  kResize,
  kCutout,
  kPolicy,
  kNormalize,
};

enum class ValueType { kUint8, kFloat32, kBfloat16, kFloat16 };

struct Layer {
  // How often a random resized crop tries to find its part of the image.
  static constexpr int kNumAttempts = 10;

  LayerKind kind;
  // The position in `compose`, from which the layer's seed is made; -1: it
  // takes the seed as it is.
  int64_t position = -1;
  // For a random crop.
  int64_t padding = 0;
  bool reflects = false;
  // For a random resized crop and a resize.
  int64_t height = 0, width = 0;
  bool antialias = false;
  // For a random resized crop.
  std::array<double, 2> scale = {0, 0}, ratio = {0, 0};
  // For a cutout.
  int64_t side = 0;
  // For a layer of a policy.
  std::shared_ptr<const Policy> policy;

  int NumDraws() const;
};

// value * scale + offset, in float32, by channel.
struct Normalization {
  ValueType type = ValueType::kUint8;
  // How many values were given: 1 for all channels, or one for each.
  int64_t num_channels = 1;
  std::array<float, 4> scale = {1, 1, 1, 1}, offset = {0, 0, 0, 0};
};

struct ImageSize {
  int64_t height, width;
};

// Adjacent layers, which are applied to an image together.
class LayerChain {
 public:
  // More than any augmentation has. A bit for each cutout fits in a word.
  static constexpr int kMaxLayers = 64;
  static constexpr int64_t kMaxSide = (int64_t{1} << 31) - 1;
  static constexpr int64_t kUnknown = -1;

  // A layer is text: its name, then `argument=value` for each argument, where
  // several numbers are separated by commas. The pieces may be cut at any space
  // and before any comma.
  static absl::StatusOr<LayerChain> Parse(
      const std::vector<std::string>& pieces);

  // Without the normalization, which is the last layer.
  const std::vector<Layer>& layers() const { return layers_; }
  const Normalization& normalization() const { return normalization_; }
  // The layers up to the last policy; none if there is none.
  LayerChain UpToLastPolicy() const;
  int num_draws() const { return num_draws_; }

  absl::Status CheckChannels(int64_t channels) const;
  // The size of the output for an image of this size; either side may be
  // unknown.
  absl::StatusOr<ImageSize> SizeBehind(ImageSize size) const;
  // Whether these draws leave every image as it is.
  bool ChangesNothing(const int32_t* draws) const;
  // Checks that `draws`, `num_draws()` numbers, are in the layers' ranges.
  absl::Status CheckDraws(const int32_t* draws) const;

 private:
  std::vector<Layer> layers_;
  Normalization normalization_;
  int num_draws_ = 0;
};

}  // namespace refurbish_tf
