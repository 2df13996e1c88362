#include "refurbish_tf/cc/image/layer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "refurbish_tf/cc/image/arguments.h"
#include "refurbish_tf/cc/image/policy.h"

namespace refurbish_tf {
namespace {

constexpr int64_t kMaxPadding = 16383;
// The longest side that a crop is resized to.
constexpr int64_t kMaxResized = 65535;

// Joins the pieces to one text for each layer: only its first word has no
// value.
std::vector<std::string> LayersOf(const std::vector<std::string>& pieces) {
  std::vector<std::string> layers;
  for (const std::string& piece : pieces) {
    for (absl::string_view word :
         absl::StrSplit(piece, ' ', absl::SkipEmpty())) {
      const bool continues_word = word.front() == ',';
      const bool has_value =
          continues_word || word.find('=') != absl::string_view::npos;
      if (!has_value || layers.empty()) {
        layers.emplace_back(word);
      } else {
        absl::StrAppend(&layers.back(), continues_word ? "" : " ", word);
      }
    }
  }
  return layers;
}

void ParseResize(Arguments& arguments, Layer* layer) {
  layer->height = arguments.Integer("height", 1, kMaxResized);
  layer->width = arguments.Integer("width", 1, kMaxResized);
  layer->antialias = arguments.Boolean("antialias");
}

Normalization ParseNormalization(Arguments& arguments) {
  Normalization parsed;
  const absl::string_view type = arguments.Text("dtype");
  if (type == "float32") {
    parsed.type = ValueType::kFloat32;
  } else if (type == "bfloat16") {
    parsed.type = ValueType::kBfloat16;
  } else if (type == "float16") {
    parsed.type = ValueType::kFloat16;
  } else {
    arguments.Fail("dtype must be float32, bfloat16 or float16");
  }
  const std::vector<double> mean = arguments.Numbers("mean");
  const std::vector<double> std = arguments.Numbers("std");
  parsed.num_channels = static_cast<int64_t>(mean.size());
  if (mean.size() != std.size() ||
      (mean.size() != 1 && mean.size() != 3 && mean.size() != 4)) {
    arguments.Fail("mean and std must be 1, 3 or 4 numbers each");
    return parsed;
  }
  for (size_t channel = 0; channel < 4; ++channel) {
    const size_t i = mean.size() == 1 ? 0 : channel;
    if (i >= mean.size()) break;
    parsed.scale[channel] = static_cast<float>(1 / (255 * std[i]));
    parsed.offset[channel] = static_cast<float>(-mean[i] / std[i]);
    if (!(std[i] > 0) || !std::isfinite(parsed.scale[channel]) ||
        !std::isfinite(parsed.offset[channel])) {
      arguments.Fail(
          "std must be above 0, and 1 / std must fit into a float32");
    }
  }
  return parsed;
}

}  // namespace

int Layer::NumDraws() const {
  switch (kind) {
    case LayerKind::kRandomCrop:
    case LayerKind::kCutout:
      return 2;
    case LayerKind::kRandomFlip:
      return 1;
    case LayerKind::kRandomResizedCrop:
      return 2 * kNumAttempts + 2;
    case LayerKind::kPolicy:
      return policy->num_draws();
    case LayerKind::kResize:
    case LayerKind::kNormalize:
      return 0;
  }
  return 0;
}

absl::StatusOr<LayerChain> LayerChain::Parse(
    const std::vector<std::string>& pieces) {
  const std::vector<std::string> texts = LayersOf(pieces);
  if (texts.empty() || texts.size() > kMaxLayers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "There must be 1 to ", kMaxLayers, " layers, got ", texts.size(), "."));
  }
  LayerChain chain;
  for (const std::string& text : texts) {
    Arguments arguments(text);
    Layer layer;
    if (chain.normalization_.type != ValueType::kUint8) {
      arguments.Fail("nothing may follow normalize");
    }
    layer.position = arguments.Integer("position", -1, kMaxSide);
    const absl::string_view name = arguments.name();
    if (name == "random_crop") {
      layer.kind = LayerKind::kRandomCrop;
      layer.padding = arguments.Integer("padding", 0, kMaxPadding);
      layer.reflects = arguments.Boolean("reflect");
    } else if (name == "random_flip") {
      layer.kind = LayerKind::kRandomFlip;
    } else if (name == "random_resized_crop") {
      layer.kind = LayerKind::kRandomResizedCrop;
      ParseResize(arguments, &layer);
      layer.scale = arguments.Range("scale");
      layer.ratio = arguments.Range("ratio");
    } else if (name == "resize") {
      layer.kind = LayerKind::kResize;
      ParseResize(arguments, &layer);
    } else if (name == "cutout") {
      layer.kind = LayerKind::kCutout;
      layer.side = arguments.Integer("side", 1, kMaxSide);
    } else if (name == "policy") {
      layer.kind = LayerKind::kPolicy;
      layer.policy = std::make_shared<Policy>(arguments);
      if (!chain.layers_.empty() &&
          !layer.policy->MayFollow(chain.layers_.back().policy.get())) {
        arguments.Fail("it goes on from no policy of its end and group");
      }
    } else if (name == "normalize") {
      layer.kind = LayerKind::kNormalize;
      chain.normalization_ = ParseNormalization(arguments);
    } else {
      arguments.Fail("unknown name");
    }
    if (absl::Status status = arguments.Check(); !status.ok()) return status;
    chain.num_draws_ += layer.NumDraws();
    if (layer.kind != LayerKind::kNormalize) chain.layers_.push_back(layer);
  }
  return chain;
}

LayerChain LayerChain::UpToLastPolicy() const {
  LayerChain made = *this;
  made.normalization_ = {};
  while (!made.layers_.empty() &&
         made.layers_.back().kind != LayerKind::kPolicy) {
    made.num_draws_ -= made.layers_.back().NumDraws();
    made.layers_.pop_back();
  }
  return made;
}

absl::Status LayerChain::CheckChannels(int64_t channels) const {
  if (channels != 1 && channels != 3 && channels != 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Images must have 1, 3 or 4 channels, got ", channels, "."));
  }
  if (normalization_.num_channels != 1 &&
      normalization_.num_channels != channels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "normalize has mean and std of ", normalization_.num_channels,
        " channels, and the images have ", channels,
        ". There must be one number for all channels, or one for each."));
  }
  if (channels != 3 &&
      std::any_of(layers_.begin(), layers_.end(), [](const Layer& layer) {
        return layer.kind == LayerKind::kPolicy;
      })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Policies need images with 3 channels, got ", channels, "."));
  }
  return absl::OkStatus();
}

absl::StatusOr<ImageSize> LayerChain::SizeBehind(ImageSize size) const {
  for (const int64_t side : {size.height, size.width}) {
    if (side != kUnknown && (side < 1 || side > kMaxSide)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Images must have sides of 1 to ", kMaxSide,
                       " pixels, got ", size.height, " x ", size.width, "."));
    }
  }
  for (const Layer& layer : layers_) {
    if (layer.kind == LayerKind::kPolicy) {
      if (std::max(size.height, size.width) > Policy::kMaxSide) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Policies need images with sides of at most ", Policy::kMaxSide,
            " pixels, got ", size.height, " x ", size.width, "."));
      }
    } else if (layer.kind == LayerKind::kRandomResizedCrop ||
               layer.kind == LayerKind::kResize) {
      size = {layer.height, layer.width};
    } else if (layer.kind == LayerKind::kRandomCrop && layer.reflects) {
      for (const int64_t side : {size.height, size.width}) {
        if (side != kUnknown && layer.padding >= side) {
          return absl::InvalidArgumentError(absl::StrCat(
              "random_crop with mode 'reflect' needs a padding below the sides "
              "of the image, got padding=",
              layer.padding, " for ", size.height, " x ", size.width,
              " pixels."));
        }
      }
    }
  }
  return size;
}

bool LayerChain::ChangesNothing(const int32_t* draws) const {
  if (normalization_.type != ValueType::kUint8) return false;
  for (const Layer& layer : layers_) {
    const bool unchanged =
        layer.kind == LayerKind::kRandomFlip ? draws[0] == 0
        : layer.kind == LayerKind::kRandomCrop
            ? draws[0] == layer.padding && draws[1] == layer.padding
            : layer.kind == LayerKind::kPolicy &&
                  layer.policy->At(draws[0]).ChangesNothing();
    if (!unchanged) return false;
    draws += layer.NumDraws();
  }
  return true;
}

absl::Status LayerChain::CheckDraws(const int32_t* draws) const {
  for (const Layer& layer : layers_) {
    const int num_draws = layer.NumDraws();
    int64_t end = layer.kind == LayerKind::kRandomCrop   ? 2 * layer.padding + 1
                  : layer.kind == LayerKind::kRandomFlip ? 2
                  : layer.kind == LayerKind::kPolicy     ? layer.policy->end()
                                                         : kMaxSide + 1;
    for (int i = 0; i < num_draws; ++i) {
      if (draws[i] < 0 || draws[i] >= end) {
        return absl::InvalidArgumentError(absl::StrCat(
            "A draw must be from 0 to ", end - 1, ", got ", draws[i],
            ". Draws must come from the same layers as the pixels."));
      }
      if (i == 0 && layer.kind == LayerKind::kPolicy) {
        end = layer.policy->At(draws[0]).EndOfMore();
      }
    }
    draws += num_draws;
  }
  return absl::OkStatus();
}

}  // namespace refurbish_tf
